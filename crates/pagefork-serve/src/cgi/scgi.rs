//! Requests as programs read them from standard input: the variables as SCGI has them.
//!
//! A netstring of names and values, each followed by a NUL: its size in decimal, a colon, the
//! bytes, a comma. The body follows. `CONTENT_LENGTH` is the first name, as the protocol wants
//! it; it is empty where the size is not known in advance.

use crate::handler::failure::{Failure, FailureKind};

/// Appends a variable.
///
/// # Errors
/// If it has a NUL.
pub(super) fn push(variables: &mut Vec<u8>, name: &[u8], value: &[&[u8]]) -> Result<(), Failure> {
    let parts = || std::iter::once(&name).chain(value);
    if parts().any(|part| part.contains(&0)) {
        let detail = format!("{} has a NUL", String::from_utf8_lossy(name));
        return Err(Failure::new(FailureKind::BadRequest, detail));
    }
    variables.extend_from_slice(name);
    variables.push(0);
    value.iter().for_each(|part| variables.extend_from_slice(part));
    variables.push(0);
    Ok(())
}

/// The bytes as a netstring.
pub(super) fn netstring(bytes: &[u8]) -> Vec<u8> {
    let mut string = format!("{}:", bytes.len()).into_bytes();
    string.extend_from_slice(bytes);
    string.push(b',');
    string
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_a_netstring() {
        let mut variables = Vec::new();
        push(&mut variables, b"CONTENT_LENGTH", &[b"2", b"7"]).unwrap();
        push(&mut variables, b"SCGI", &[b"1"]).unwrap();
        assert_eq!(netstring(&variables), b"25:CONTENT_LENGTH\x0027\0SCGI\x001\0,");
        assert!(push(&mut variables, b"X", &[b"a\0b"]).is_err());
    }
}
