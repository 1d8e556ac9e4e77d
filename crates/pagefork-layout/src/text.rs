//! Text out of modules, made fit for people to read.

use std::fmt::{self, Write};

/// Text out of a module as a part of one line for people: names of functions, imports
/// and exports, paths in debug information.
///
/// The module's author chooses such text freely. Displayed, it has no
/// character that ends a line, moves a cursor or turns the direction of writing: those
/// are escaped as in Rust's literals. Only [`OneLine::SIZE_MAX`] bytes are shown; of
/// longer text the start, and how long it is. With `{:?}` it stands in quotes, in which
/// quotes and backslashes are escaped too.
///
/// # Examples
///
/// ```
/// use pagefork_layout::text::OneLine;
///
/// assert_eq!(OneLine("main").to_string(), "main");
/// assert_eq!(OneLine("it's\u{1b}[2J\n").to_string(), r"it's\u{1b}[2J\n");
/// assert_eq!(format!("{:?}", OneLine("a \"b\"")), r#""a \"b\"""#);
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct OneLine<'a>(pub &'a str);

impl OneLine<'_> {
    /// At most this many bytes are shown.
    pub const SIZE_MAX: usize = 512;

    fn write(self, f: &mut fmt::Formatter<'_>, raw: impl Fn(char) -> bool) -> fmt::Result {
        let mut left = Self::SIZE_MAX;
        for c in self.0.chars() {
            let escaped = c.escape_debug();
            let raw = raw(c);
            let size = if raw { c.len_utf8() } else { escaped.clone().map(char::len_utf8).sum() };
            if size > left {
                return write!(f, "... ({} bytes)", self.0.len());
            }
            left -= size;
            match raw {
                true => f.write_char(c)?,
                false => write!(f, "{escaped}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, |c| matches!(c, '"' | '\'' | '\\'))
    }
}

impl fmt::Debug for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        self.write(f, |c| c == '\'')?;
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_character_ends_the_line_or_commands_a_terminal() {
        let hostile = ['\n', '\r', '\0', '\u{7f}', '\u{1b}', '\u{85}', '\u{9b}', '\u{2028}'];
        let turning = ['\u{200f}', '\u{202e}', '\u{2066}', '\u{feff}'];
        for c in hostile.into_iter().chain(turning) {
            let text = format!("a{c}b");
            for shown in [OneLine(&text).to_string(), format!("{:?}", OneLine(&text))] {
                assert!(!shown.contains(c) && shown.contains('\\'), "{shown:?}");
            }
        }
        for kept in ["grüße", "operator\"\" _s(char const*)", r"C:\a", "函数", "<T as 'a>"] {
            assert_eq!(OneLine(kept).to_string(), kept);
        }
    }

    #[test]
    fn however_long_the_text_what_is_shown_is_short() {
        for c in ['a', 'ü', '\n', '\u{10ffff}'] {
            let text = String::from_iter(std::iter::repeat_n(c, 100_000));
            for shown in [OneLine(&text).to_string(), format!("{:?}", OneLine(&text))] {
                assert!(shown.len() < OneLine::SIZE_MAX + 30, "{}", shown.len());
                assert!(shown.contains(&format!("... ({} bytes)", text.len())));
            }
        }
        let fits = "x".repeat(OneLine::SIZE_MAX);
        assert_eq!(OneLine(&fits).to_string(), fits);
    }
}
