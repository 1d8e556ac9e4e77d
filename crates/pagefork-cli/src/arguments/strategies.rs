//! How instances are reset and memories grow, as the command line says it.

use clap::Args;
use pagefork::{
    CodeBounds, Config, Engine, FAULT_THREADS_MAX, GrowthChoice, GrowthKind, Reason, ResetKind,
    StrategyConfig,
};

use super::common::size;

#[derive(Args)]
pub(crate) struct StrategyArguments {
    #[command(flatten)]
    pub(crate) resets: ResetArguments,

    #[command(flatten)]
    pub(crate) growth: GrowthArguments,
}

/// How instances are reset.
#[derive(Args)]
pub(crate) struct ResetArguments {
    /// How an instance's pages become what they were at first: `remap`, `discard`, `scan`,
    /// `resident`, `protect`, `copy`, `fault`, or `auto`, which measures; said if this machine cannot do it.
    /// With `fault=THREADS` so many threads (or `cores`) copy pages, with `fault=eager` or
    /// `fault=THREADS,eager` all are copied at each reset
    #[arg(long, value_name = "STRATEGY", value_parser = reset)]
    reset: Option<AskedReset>,
}

/// What a line asks for.
#[derive(Clone, Copy)]
struct AskedReset {
    kind: ResetKind,
    /// How faults are served.
    threads: u32,
    eager: bool,
}

/// How memories grow.
#[derive(Args)]
pub(crate) struct GrowthArguments {
    /// How memories grow: `mprotect`, for each run anew; `kept`, what runs have grown to stays
    /// accessible; `checked` or `checked=SIZE`, all or 64KiB, 128MiB, 1GiB is accessible from the
    /// start; `ftruncate`, in a file of its own; `fault`, by signals; `auto`, which measures. A compiled
    /// program must have been compiled for it
    #[arg(long, value_name = "WAY", value_parser = growth)]
    growth: Option<GrowthKind>,
}

impl StrategyArguments {
    /// What the line asks for, else what is `usual`.
    pub(crate) fn set(&self, config: &mut Config, usual: StrategyConfig) {
        config.strategies(self.resets.strategies(self.growth.strategies(usual)));
    }
}

impl ResetArguments {
    /// What the line asks for, else what is `usual`.
    pub(crate) fn strategies(&self, usual: StrategyConfig) -> StrategyConfig {
        let Some(AskedReset { kind, threads, eager }) = self.reset else { return usual };
        StrategyConfig { reset: kind, fault_threads: threads, fault_eager: eager, ..usual }
    }

    /// What to say if an engine resets otherwise than the line asks for, or at a higher price.
    ///
    /// # Errors
    /// If the machine cannot be asked.
    pub(crate) fn notice(&self, engine: &Engine) -> Result<Option<String>, String> {
        if self.reset.is_none() {
            return Ok(None);
        }
        let choice = engine.strategies().choice().map_err(|error| error.to_string())?;
        Ok((choice.reason != Reason::Asked).then(|| format!("instances are reset by {choice}")))
    }
}

impl GrowthArguments {
    /// What to say if memories grow otherwise than the line asks for.
    pub(crate) fn notice(&self) -> Option<String> {
        let asked = self.growth?;
        let choice = GrowthChoice { asked, used: GrowthKind::Mprotect, reason: asked.lack()? };
        Some(format!("memories grow by {choice}"))
    }

    /// Whether the line says how.
    pub(crate) fn is_given(&self) -> bool {
        self.growth.is_some()
    }

    /// What the line asks for, with the code that it needs; else what is `usual`.
    pub(crate) fn strategies(&self, usual: StrategyConfig) -> StrategyConfig {
        let Some(growth) = self.growth else { return usual };
        let code = match growth {
            _ if growth.is_exact() => CodeBounds::Guarded,
            GrowthKind::Checked { .. } => CodeBounds::Checked,
            _ => CodeBounds::Dual,
        };
        StrategyConfig { growth, code, ..usual }
    }
}

fn reset(text: &str) -> Result<AskedReset, String> {
    if let Some(how) = text.strip_prefix("fault=") {
        return fault(how);
    }
    let named = ResetKind::ALL.into_iter().find(|kind| kind.to_string() == text);
    let names = || ResetKind::ALL.map(|kind| kind.to_string()).join(", ");
    let kind = named.ok_or_else(|| format!("give a strategy: {}", names()))?;
    Ok(AskedReset { kind, threads: 0, eager: false })
}

/// How faults are served.
fn fault(text: &str) -> Result<AskedReset, String> {
    let (threads, eager) = match text.strip_suffix("eager").map(|rest| rest.strip_suffix(',')) {
        Some(Some(threads)) => (threads, true),
        Some(None) if text == "eager" => ("0", true),
        _ => (text, false),
    };
    let threads = match threads {
        "cores" => std::thread::available_parallelism()
            .map_or(1, |cores| (cores.get() as u32).min(FAULT_THREADS_MAX)),
        number => match number.parse() {
            Ok(threads) if threads <= FAULT_THREADS_MAX => threads,
            _ => {
                return Err(format!(
                    "give `fault`, `fault=THREADS`, `fault=eager` or `fault=THREADS,eager`, with \
                     `cores` or a number up to {FAULT_THREADS_MAX} for THREADS"
                ));
            }
        },
    };
    Ok(AskedReset { kind: ResetKind::Fault, threads, eager })
}

fn growth(text: &str) -> Result<GrowthKind, String> {
    match (text, text.strip_prefix("checked=")) {
        ("mprotect", _) => Ok(GrowthKind::Mprotect),
        ("kept", _) => Ok(GrowthKind::Kept),
        ("auto", _) => Ok(GrowthKind::Auto),
        ("ftruncate", _) => Ok(GrowthKind::Ftruncate),
        ("fault", _) => Ok(GrowthKind::Fault),
        ("checked", _) => Ok(GrowthKind::Checked { accessible: None }),
        (_, Some(text)) => Ok(GrowthKind::Checked { accessible: Some(size(text)?) }),
        _ => {
            let ways = "mprotect, kept, checked, checked=SIZE, auto, ftruncate, fault";
            Err(format!("give a way to grow: {ways}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        strategies: StrategyArguments,
    }

    /// What an engine does that is made as the line says, where this is usual.
    fn engine(line: &str, usual: StrategyConfig) -> Engine {
        let line = Line::try_parse_from(format!("x {line}").split_whitespace()).unwrap();
        let mut config = Config::new();
        line.strategies.set(&mut config, usual);
        Engine::new(&config).unwrap()
    }

    #[test]
    fn engines_have_what_the_line_says_and_else_what_is_usual() {
        let (plain, code) = (StrategyConfig::default(), CodeBounds::Dual);
        let served = StrategyConfig { growth: GrowthKind::Auto, code, ..plain };
        for usual in [plain, served] {
            assert_eq!(engine("", usual).strategies().config(), usual);
            for reset in ResetKind::ALL {
                let chosen = engine(&format!("--reset {reset}"), usual);
                assert_eq!(chosen.strategies().config(), StrategyConfig { reset, ..usual });
            }
            let cores = std::thread::available_parallelism().unwrap().get() as u32;
            for (line, fault_threads, fault_eager) in [
                ("fault=2", 2, false),
                ("fault=eager", 0, true),
                ("fault=1,eager", 1, true),
                ("fault=cores", cores, false),
            ] {
                let reset = ResetKind::Fault;
                let expected = StrategyConfig { reset, fault_threads, fault_eager, ..usual };
                let chosen = engine(&format!("--reset {line}"), usual);
                assert_eq!(chosen.strategies().config(), expected, "{line}");
            }
            let checked = |accessible| GrowthKind::Checked { accessible };
            for (line, growth, code) in [
                ("mprotect", GrowthKind::Mprotect, CodeBounds::Guarded),
                ("kept", GrowthKind::Kept, CodeBounds::Dual),
                ("auto", GrowthKind::Auto, CodeBounds::Dual),
                ("ftruncate", GrowthKind::Ftruncate, CodeBounds::Guarded),
                ("fault", GrowthKind::Fault, CodeBounds::Guarded),
                ("checked", checked(None), CodeBounds::Checked),
                ("checked=2MiB", checked(Some(2 << 20)), CodeBounds::Checked),
            ] {
                let chosen = engine(&format!("--growth {line}"), usual);
                assert_eq!(chosen.strategies().config(), StrategyConfig { growth, code, ..usual });
            }
        }
    }

    #[test]
    fn mistakes_are_explained() {
        for (line, expected) in [
            ("--reset fast", "remap, discard, scan, resident, protect, copy, fault, auto"),
            ("--reset fault=many", "`fault=THREADS,eager`, with `cores` or a number up to 256"),
            ("--reset fault=257", "a number up to 256"),
            ("--reset fault=", "a number up to 256"),
            ("--reset fault=2eager", "a number up to 256"),
            ("--reset scan=2", "remap, discard, scan, resident, protect, copy, fault, auto"),
            ("--growth fast", "mprotect, kept, checked, checked=SIZE, auto, ftruncate, fault"),
            ("--growth checked=2M", "64KiB, 256MiB, 1GiB"),
            ("--growth kept=2MiB", "checked=SIZE"),
        ] {
            let parsed = Line::try_parse_from(format!("x {line}").split_whitespace());
            let message = parsed.map(|_| ()).expect_err(line).to_string();
            assert!(message.contains(expected), "{line}: {message}");
        }
    }
}
