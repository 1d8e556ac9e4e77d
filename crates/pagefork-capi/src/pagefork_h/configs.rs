//! Configurations and engines.

use std::ffi::{OsStr, c_char};
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use pagefork::{
    Cache, CodeBounds, DeltaTracker, GrowthKind, PoolConfig, ResetKind, Result, StrategyConfig,
};

use crate::base::border::{BorderError, exported, given};
use crate::objects::engine::{wasm_config_t, wasm_engine_t};
use crate::objects::fallible::{OutBox, fallible, make, string};

/// What is null, if it is.
const CONFIG: &str = "configuration";

/// How slots are reset, by the numbers of `pagefork_reset_enum`.
pub(super) const RESETS: [ResetKind; 8] = [
    ResetKind::Auto,
    ResetKind::Remap,
    ResetKind::Discard,
    ResetKind::Scan,
    ResetKind::Resident,
    ResetKind::Copy,
    ResetKind::Protect,
    ResetKind::Fault,
];

/// How slots are reset and memories grow, as the header has it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct pagefork_strategies_t {
    reset: u8,
    growth: u8,
    bounds: u8,
    clear_stack: bool,
    no_copy_on_write: bool,
    accessible: u64,
    resident_max: u64,
    stack_kept: u64,
    deltas: u64,
    fault_threads: u32,
    fault_eager: bool,
    reserved: [u64; 2],
}

impl pagefork_strategies_t {
    /// What the runtime is told; 0 stands for its own number.
    ///
    /// # Errors
    /// If there is no such strategy, or they do not go together.
    pub(super) fn to_config(self) -> Result<StrategyConfig> {
        check_reserved(&self.reserved)?;
        let default = StrategyConfig::default();
        let reset = RESETS.get(usize::from(self.reset)).copied();
        let reset = reset.ok_or_else(|| unknown("way", self.reset, "of resetting slots"))?;
        let growth = match self.growth {
            0 => GrowthKind::Mprotect,
            1 => {
                let accessible = (self.accessible != 0).then_some(self.accessible);
                GrowthKind::Checked { accessible }
            }
            2 => GrowthKind::Kept,
            3 => GrowthKind::Auto,
            4 => GrowthKind::Ftruncate,
            5 => GrowthKind::Fault,
            number => return Err(unknown("way", number, "in which memories grow")),
        };
        let code = match self.bounds {
            0 => CodeBounds::Guarded,
            1 => CodeBounds::Checked,
            2 => CodeBounds::Dual,
            number => return Err(unknown("kind", number, "of bounds")),
        };
        let deltas = match self.deltas {
            0 => DeltaTracker::Off,
            1 => DeltaTracker::Compare,
            2 => DeltaTracker::Writes,
            3 => DeltaTracker::Protect,
            4 => DeltaTracker::Fault,
            number => return Err(unknown("way", number, "of finding what was written")),
        };
        let config = StrategyConfig {
            reset,
            growth,
            code,
            clear_stack: self.clear_stack,
            copy_on_write: !self.no_copy_on_write,
            resident_max: or_default(self.resident_max, default.resident_max),
            stack_kept: or_default(self.stack_kept, default.stack_kept),
            deltas,
            fault_threads: self.fault_threads,
            fault_eager: self.fault_eager,
        };
        config.check()?;
        Ok(config)
    }
}

/// What the pool keeps, as the header has it.
#[derive(Clone, Copy)]
#[repr(C)]
struct pagefork_pool_t {
    kept_max: u64,
    resident_max: u64,
    resident_max_per_image: u64,
    idle_milliseconds_max: u64,
    ignore_pressure: bool,
    reserved: [u64; 4],
}

impl pagefork_pool_t {
    /// What the runtime is told; 0 stands for its own number.
    fn to_config(self) -> Result<PoolConfig> {
        check_reserved(&self.reserved)?;
        let default = PoolConfig::default();
        let idle = self.idle_milliseconds_max;
        let kept_max = usize::try_from(self.kept_max).unwrap_or(usize::MAX);
        Ok(PoolConfig {
            kept_max: if kept_max == 0 { default.kept_max } else { kept_max },
            resident_max: or_default(self.resident_max, default.resident_max),
            resident_max_per_image: or_default(
                self.resident_max_per_image,
                default.resident_max_per_image,
            ),
            idle_max: match idle {
                0 => default.idle_max,
                u64::MAX => None,
                idle => Some(Duration::from_millis(idle)),
            },
            heed_pressure: !self.ignore_pressure,
        })
    }
}

fn or_default(number: u64, default: u64) -> u64 {
    if number == 0 { default } else { number }
}

/// # Errors
/// If C has set something of a later version.
#[inline]
pub(super) fn check_reserved(reserved: &[u64]) -> Result<()> {
    match reserved.iter().all(|word| *word == 0) {
        true => Ok(()),
        false => Err(BorderError::Unfit("what is reserved must be zero".to_owned()).into()),
    }
}

#[cold]
fn unknown(what: &str, number: impl Display, of: &str) -> pagefork::Error {
    BorderError::Unfit(format!("there is no {what} {number} {of}")).into()
}

macro_rules! settings {
    ($($name:ident($ty:ty) $set:ident;)*) => {
        exported! {$(
            fn $name(config: Option<&mut wasm_config_t>, value: $ty) {
                given(config, CONFIG)?.config.$set(value);
                Ok(())
            }
        )*}
    };
}

settings! {
    pagefork_config_stack_size(u64) stack_size;
    pagefork_config_table_elements(u64) table_elements;
    pagefork_config_memory64_size(u64) memory64_size;
    pagefork_config_exceptions_size(u64) exceptions_size;
    pagefork_config_resident_max(u64) resident_max;
    pagefork_config_compile_memory(u64) compile_memory;
    pagefork_config_compile_work(u64) compile_work;
    pagefork_config_interruption(bool) interruption;
    pagefork_config_fuel(bool) fuel;
    pagefork_config_deterministic(bool) deterministic;
    pagefork_config_sources(bool) sources;
}

exported! {
    fn pagefork_config_compile_timeout(config: Option<&mut wasm_config_t>, milliseconds: u64) {
        let time = (milliseconds != 0).then(|| Duration::from_millis(milliseconds));
        given(config, CONFIG)?.config.compile_timeout(time);
        Ok(())
    }

    fn pagefork_config_cache(config: Option<&mut wasm_config_t>, directory: *const c_char) {
        let cache = match directory.is_null() {
            true => Cache::in_default_directory(),
            false => Cache::new(Path::new(OsStr::from_bytes(string(directory, "directory")?))),
        };
        given(config, CONFIG)?.config.cache(cache);
        Ok(())
    }

    fn pagefork_engine_increment_epoch(engine: Option<&wasm_engine_t>) {
        given(engine, "engine")?.engine.increment_epoch();
        Ok(())
    }
}

fallible! {
    fn pagefork_config_strategies(
        config: Option<&mut wasm_config_t>,
        strategies: Option<&pagefork_strategies_t>,
    ) {
        let strategies = given(strategies, "strategies")?.to_config()?;
        given(config, CONFIG)?.config.strategies(strategies);
        Ok(())
    }

    fn pagefork_config_pool(
        config: Option<&mut wasm_config_t>,
        pool: Option<&pagefork_pool_t>,
    ) {
        let pool = given(pool, "pool")?.to_config()?;
        given(config, CONFIG)?.config.pool(pool);
        Ok(())
    }

    fn pagefork_config_feature(config: Option<&mut wasm_config_t>, feature: u8, on: bool) {
        let config = &mut given(config, CONFIG)?.config;
        match feature {
            0 => config.wasm_bulk_memory(on),
            1 => config.wasm_exceptions(on),
            2 => config.wasm_extended_const(on),
            3 => config.wasm_function_references(on),
            4 => config.wasm_memory64(on),
            5 => config.wasm_multi_memory(on),
            6 => config.wasm_multi_value(on),
            7 => config.wasm_mutable_global(on),
            8 => config.wasm_reference_types(on),
            9 => config.wasm_saturating_float_to_int(on),
            10 => config.wasm_sign_extension(on),
            11 => config.wasm_simd(on),
            12 => config.wasm_relaxed_simd(on),
            13 => config.wasm_tail_call(on),
            _ => {
                let text = format!("there is no feature {feature}");
                return Err(BorderError::Unfit(text).into());
            }
        };
        Ok(())
    }

    fn pagefork_engine_new(config: Option<Box<wasm_config_t>>, out: OutBox<'_, wasm_engine_t>) {
        make(out, || {
            let config = config.map_or_else(wasm_config_t::new, |config| *config);
            Ok(Box::new(wasm_engine_t::new(&config)?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pagefork_h::errors::tests::{enumerated, plain};

    #[test]
    fn strategies_have_the_numbers_of_the_header() {
        assert_eq!(enumerated("pagefork_reset_enum", "PAGEFORK_RESET_"), RESETS.map(plain));
        let numbered = |growth, bounds, deltas| {
            let strategies = pagefork_strategies_t {
                reset: 0,
                growth,
                bounds,
                clear_stack: false,
                no_copy_on_write: false,
                accessible: 0,
                resident_max: 0,
                stack_kept: 0,
                deltas,
                fault_threads: 0,
                fault_eager: false,
                reserved: [0; 2],
            };
            strategies.to_config()
        };
        for (name, number) in enumerated("pagefork_growth_enum", "PAGEFORK_GROWTH_").iter().zip(0..)
        {
            // All of them go with code that compares, but for one.
            let bounds = if number == 4 { 0 } else { 1 };
            assert_eq!(plain(numbered(number, bounds, 0).unwrap().growth), *name);
        }
        for (name, number) in enumerated("pagefork_bounds_enum", "PAGEFORK_BOUNDS_").iter().zip(0..)
        {
            assert_eq!(plain(numbered(0, number, 0).unwrap().code), *name);
        }
        for (name, number) in enumerated("pagefork_deltas_enum", "PAGEFORK_DELTAS_").iter().zip(0..)
        {
            assert_eq!(plain(numbered(0, 0, number).unwrap().deltas), *name);
        }
    }

    #[test]
    fn every_setting_of_the_strategies_reaches_the_runtime() {
        let strategies = pagefork_strategies_t {
            reset: 3,
            growth: 2,
            bounds: 2,
            clear_stack: true,
            no_copy_on_write: true,
            accessible: 0,
            resident_max: 5 << 20,
            stack_kept: 8 << 10,
            deltas: 0,
            fault_threads: 3,
            fault_eager: true,
            reserved: [0; 2],
        };
        let expected = StrategyConfig {
            reset: ResetKind::Scan,
            growth: GrowthKind::Kept,
            code: CodeBounds::Dual,
            copy_on_write: false,
            resident_max: 5 << 20,
            stack_kept: 8 << 10,
            clear_stack: true,
            deltas: DeltaTracker::Off,
            fault_threads: 3,
            fault_eager: true,
        };
        for (number, deltas) in (0..).zip(DeltaTracker::ALL) {
            let strategies = pagefork_strategies_t { deltas: number, ..strategies };
            assert_eq!(strategies.to_config().unwrap(), StrategyConfig { deltas, ..expected });
        }
        let deltas = DeltaTracker::ALL.len() as u64;
        let error = pagefork_strategies_t { deltas, ..strategies }.to_config().unwrap_err();
        assert!(error.to_string().contains(&format!("way {deltas} of finding")), "{error}");
    }
}
