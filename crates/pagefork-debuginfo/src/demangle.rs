//! Function names of Rust and C++ as the source has them.

use std::borrow::Cow;
use std::fmt::{self, Write};

/// Longer names than this, in bytes, mangled or not, are shown as they are.
pub(crate) const NAME_MAX: usize = 4096;

/// A function's name as its source has it, if it is one of Rust or C++ and mangled.
/// For every name this takes little time, memory and stack: a few bytes can stand
/// for gigabytes of text.
pub fn demangle(name: &str) -> Cow<'_, str> {
    let demangled = if name.len() > NAME_MAX { None } else { rust(name).or_else(|| cpp(name)) };
    demangled.map_or(Cow::Borrowed(name), Cow::Owned)
}

fn rust(name: &str) -> Option<String> {
    let symbol = rustc_demangle::try_demangle(name).ok()?;
    let mut text = Bounded(String::new());
    // Without the hash at the end.
    write!(text, "{symbol:#}").ok()?;
    Some(text.0)
}

fn cpp(name: &str) -> Option<String> {
    // Others would be taken for types: `f` for `float`.
    if !name.starts_with("_Z") && !name.starts_with("__Z") {
        return None;
    }
    let symbol = cpp_demangle::Symbol::new(name).ok()?;
    let mut text = Bounded(String::new());
    symbol.structured_demangle(&mut text, &cpp_demangle::DemangleOptions::new()).ok()?;
    Some(text.0)
}

/// Text that takes only [`NAME_MAX`] bytes: writing more is an error.
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > NAME_MAX {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_source() {
        for (mangled, name) in [
            ("_ZN4core3fmt9Formatter3pad17h0123456789abcdefE", "core::fmt::Formatter::pad"),
            ("_RNvCskwGfYPst2Cb_3foo3bar", "foo::bar"),
            (
                "_ZNSt6vectorIiSaIiEE9push_backERKi",
                "std::vector<int, std::allocator<int> >::push_back(int const&)",
            ),
            ("main", "main"),
            ("f", "f"),
            ("_Z", "_Z"),
        ] {
            assert_eq!(demangle(mangled), name);
        }
    }

    #[test]
    fn names_that_stand_for_far_more_are_shown_as_they_are() {
        // Each type is a pair of the one before.
        let mut bomb = String::from("_Z1f4pairIiiE");
        for depth in 0..60 {
            let before = ["S0_".to_owned(), format!("S{depth}_")];
            let _ = write!(bomb, "4pairI{0}{0}E", before[usize::from(depth > 0)]);
        }
        assert_eq!(demangle(&bomb), bomb);
        // References to what came before, in Rust's scheme.
        let mut bomb = String::from("_RMC0");
        bomb += &"TTTTTTTTTTpB8_EB7_EB6_EB5_EB4_EB3_EB2_EB1_EB0_EB_E".repeat(4);
        let _ = demangle(&bomb);
        let nested = format!("_Z1f{}i", "P".repeat(NAME_MAX - 10));
        assert_eq!(demangle(&nested), nested);
        let long = format!("_ZN{}E", "1a".repeat(NAME_MAX));
        assert_eq!(demangle(&long), long);
    }

    #[test]
    fn whatever_follows_the_prefix_ends_soon_and_well() {
        const PIECES: &[&str] = &[
            "I", "E", "J", "S_", "S0_", "S1_", "T_", "T0_", "Dp", "DpT_", "P", "R", "N", "K", "i",
            "1a", "4pair", "X", "L", "Li1E", "F", "M", "A", "A1_", "C1", "D0", "St", "cv", "pl",
            "sZ", "sp", "Z", "_", "fp_", "fL0p_", "dt", "cl", "il", "DT", "Dt", "U", "Ut_",
            "UlvE_", "tl", "nw", "B_", "B0_", "C", "C0", "3foo", "Nv", "Y", "T", "R", "W", "O",
            "Q", "p",
        ];
        let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
        let mut below = |end: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed % end as u64) as usize
        };
        for round in 0..20_000 {
            let mut name = String::from(["_Z", "_ZN", "_Z1f", "_R", "_RM", "_ZTV"][below(6)]);
            let few = 1 + below(PIECES.len());
            for _ in 0..below(if round % 100 == 0 { 1000 } else { 60 }) {
                name += PIECES[below(few)];
            }
            let started = std::time::Instant::now();
            assert!(demangle(&name).len() <= NAME_MAX);
            let took = started.elapsed();
            assert!(took.as_secs() < 5, "{took:?}: {name}");
        }
    }
}
