//! The known name that is most like a misspelt one.

/// Names are compared as far as this, in bytes: no module makes an error cost much.
const LENGTH_MAX: usize = 64;

/// At most this many are compared.
const COUNT_MAX: usize = 10_000;

/// The pair of names that is most similar to `wanted`, if one is similar enough that it was
/// perhaps meant: the same name in another module, or at most a third of the bytes of both
/// names different.
pub(crate) fn most_similar<'a>(
    wanted: (&str, &str),
    known: impl Iterator<Item = (&'a str, &'a str)>,
) -> Option<(&'a str, &'a str)> {
    let by_distance = |candidate: (&'a str, &'a str)| {
        let modules = distance(wanted.0, candidate.0);
        let names = distance(wanted.1, candidate.1);
        let short = (wanted.0.len() + wanted.1.len()).min(LENGTH_MAX);
        let close = names == 0 && wanted.1.len() > 2 || (modules + names) * 3 <= short;
        // Equally similar ones in the order of their names: which is first is no accident.
        close.then_some((names, modules, candidate))
    };
    known.take(COUNT_MAX).filter_map(by_distance).min().map(|(_, _, candidate)| candidate)
}

/// How many bytes must be inserted, removed or replaced to make one text of the other; other
/// cases of letters count as equal.
fn distance(a: &str, b: &str) -> usize {
    let cut = |text: &str| -> Vec<u8> {
        text.bytes().take(LENGTH_MAX).map(|byte| byte.to_ascii_lowercase()).collect()
    };
    let (a, b) = (cut(a), cut(b));
    // How far each beginning of `b` is from what of `a` was looked at.
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, byte) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, other) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(byte != other);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_counted() {
        for (a, b, expected) in
            [("", "", 0), ("abc", "", 3), ("log", "Log", 0), ("print", "prnt", 1), ("ab", "ba", 2)]
        {
            assert_eq!((distance(a, b), distance(b, a)), (expected, expected), "{a} {b}");
        }
    }

    #[test]
    fn what_was_perhaps_meant_is_found_and_nothing_else() {
        let known = [("env", "print"), ("env", "log_line"), ("host", "abort"), ("a", "b")];
        let find = |module, name| most_similar((module, name), known.into_iter());
        assert_eq!(find("env", "prnt"), Some(("env", "print")));
        assert_eq!(find("env", "logline"), Some(("env", "log_line")));
        assert_eq!(find("enb", "Print"), Some(("env", "print")));
        assert_eq!(find("env", "abort"), Some(("host", "abort")));
        assert_eq!(find("wasi_snapshot_preview1", "fd_write"), None);
        assert_eq!(find("x", "y"), None);
        let long = "n".repeat(100_000);
        assert_eq!(find("env", &long), None);
    }
}
