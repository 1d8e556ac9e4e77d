//! Tokens for images, as lines of hexadecimal digits.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use pagefork_postcopy::{ImageToken, TokenRights, TokenSubject};

use super::known::KnownNodes;
use crate::arguments::GrantArguments;
use crate::captured::{self, keys};
use crate::output;

/// Bytes of a file with a token, of which one has a few hundred.
const SIZE_MAX: u64 = 4096;

/// Prints a token.
pub(super) fn grant(arguments: &GrantArguments) -> Result<(), String> {
    let GrantArguments { image, holder, expires, store } = arguments;
    let images = captured::open(store.store.as_deref())?;
    let found = images.find(image).and_then(|hash| images.load(hash));
    let found = found.map_err(|error| format!("{image}: {error}"))?;
    if found.chain().tip().manifest().parent.is_some() {
        return Err(format!(
            "{image} is a delta, and tokens are for whole images: make one of it by `pagefork image \
             squash`"
        ));
    }
    let holder = KnownNodes::read()?.key_of(holder)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let token = ImageToken {
        subject: TokenSubject::Image(found.hash()),
        rights: TokenRights { lease: true, take_over: false },
        holder,
        expires_unix_s: now.saturating_add(expires.as_secs().max(1)),
    };
    let token = token.sign(&keys::of_node()?);
    let digits: String = token.iter().map(|byte| format!("{byte:02x}")).collect();
    output::print(digits + "\n")
}

/// Reads a token from a file. Whether it is one, and counts, is for the node to say to which it is shown.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, String> {
    let mut text = String::new();
    let file = File::open(path).and_then(|file| file.take(SIZE_MAX).read_to_string(&mut text));
    file.map_err(|error| format!("cannot read the token in {}: {error}", path.display()))?;
    let wrong = || {
        format!(
            "{} has no token: `pagefork node grant` prints one, a line of digits",
            path.display()
        )
    };
    let (pairs, rest) = text.trim().as_bytes().as_chunks::<2>();
    if pairs.is_empty() || !rest.is_empty() {
        return Err(wrong());
    }
    let byte = |pair: &[u8; 2]| {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8)
    };
    pairs.iter().map(byte).collect::<Option<_>>().ok_or_else(wrong)
}
