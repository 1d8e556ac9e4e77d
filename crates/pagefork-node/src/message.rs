//! What the two sides say before a stream of images follows. `docs/PROTOCOL.md` has the bytes.

use std::io::{self, ErrorKind, Read, Write};

use pagefork_image::ContentHash;

/// Bytes of the name of an image; a reason has as many at most.
const TEXT_MAX: usize = u8::MAX as usize;

/// Bytes that are read at once.
const PART: usize = 64 << 10;

/// What a memory node answers to a name.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// It has the image.
    Has(ContentHash),
    /// It has not, and says why.
    Refuses(String),
}

/// What is wanted once it is known which image it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wish {
    /// Nothing: the image is here.
    Nothing,
    /// All of it.
    Stream,
    /// Its code images alone: its pages come otherwise.
    Code,
    /// The image alone: its ancestors and its code are here.
    Tip,
    /// Its manifest and signatures, before another wish.
    Head,
    /// Its modules, as far as they were kept, before another wish.
    Modules,
}

/// Writes a length and so many bytes of text. What is longer is cut.
pub(crate) fn write_text(out: &mut impl Write, text: &str) -> io::Result<()> {
    let text = &text[..text.floor_char_boundary(TEXT_MAX)];
    out.write_all(&[&[text.len() as u8], text.as_bytes()].concat())
}

/// Reads what [`write_text`] has written.
pub(crate) fn read_text(input: &mut impl Read) -> io::Result<String> {
    let mut text = vec![0; usize::from(read_byte(input)?)];
    input.read_exact(&mut text)?;
    String::from_utf8(text).map_err(|_| malformed("a text is no UTF-8"))
}

impl Answer {
    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Has(hash) => out.write_all(&[&[0], &hash.as_bytes()[..]].concat()),
            Self::Refuses(reason) => {
                out.write_all(&[1])?;
                write_text(out, reason)
            }
        }
    }

    pub(crate) fn read(input: &mut impl Read) -> io::Result<Self> {
        match read_byte(input)? {
            0 => {
                let mut hash = [0; ContentHash::SIZE];
                input.read_exact(&mut hash)?;
                Ok(Self::Has(ContentHash::from_bytes(hash)))
            }
            1 => read_text(input).map(Self::Refuses),
            _ => Err(malformed("an unknown answer")),
        }
    }
}

impl Wish {
    pub(crate) fn write(self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&[match self {
            Self::Nothing => 0,
            Self::Stream => 1,
            Self::Code => 2,
            Self::Tip => 3,
            Self::Head => 4,
            Self::Modules => 5,
        }])
    }

    pub(crate) fn read(input: &mut impl Read) -> io::Result<Self> {
        match read_byte(input)? {
            0 => Ok(Self::Nothing),
            1 => Ok(Self::Stream),
            2 => Ok(Self::Code),
            3 => Ok(Self::Tip),
            4 => Ok(Self::Head),
            5 => Ok(Self::Modules),
            _ => Err(malformed("an unknown wish")),
        }
    }
}

/// Writes a length and so many bytes.
pub(crate) fn write_blob(
    out: &mut impl Write,
    size: u64,
    mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
) -> io::Result<()> {
    out.write_all(&size.to_le_bytes())?;
    let mut part = vec![0; PART];
    for offset in (0..size).step_by(PART) {
        let part = &mut part[..PART.min((size - offset) as usize)];
        read(offset, part)?;
        out.write_all(part)?;
    }
    Ok(())
}

/// Reads what [`write_blob`] has written.
pub(crate) fn read_blob(input: &mut impl Read, size_max: u64) -> io::Result<Vec<u8>> {
    let size = read_size(input, size_max)?;
    read_bytes(input, size)
}

/// Reads how many bytes follow.
pub(crate) fn read_size(input: &mut impl Read, size_max: u64) -> io::Result<u64> {
    let mut size = [0; 8];
    input.read_exact(&mut size)?;
    match u64::from_le_bytes(size) {
        size if size <= size_max => Ok(size),
        _ => Err(malformed("more bytes than are allowed")),
    }
}

/// Reads so many bytes.
pub(crate) fn read_bytes(input: &mut impl Read, size: u64) -> io::Result<Vec<u8>> {
    // What was announced takes no memory before it comes.
    let mut bytes = Vec::new();
    match input.take(size).read_to_end(&mut bytes)? as u64 == size {
        true => Ok(bytes),
        false => Err(ErrorKind::UnexpectedEof.into()),
    }
}

fn read_byte(input: &mut impl Read) -> io::Result<u8> {
    let mut byte = [0];
    input.read_exact(&mut byte)?;
    Ok(byte[0])
}

fn malformed(what: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_as_they_went() {
        let long = "é".repeat(200);
        let hash = ContentHash::of(b"manifest");
        for answer in [Answer::Has(hash), Answer::Refuses("none".into())] {
            let mut bytes = Vec::new();
            answer.write(&mut bytes).unwrap();
            assert_eq!(Answer::read(&mut &bytes[..]).unwrap(), answer);
            let cut = Answer::read(&mut &bytes[..bytes.len() - 1]).unwrap_err();
            assert_eq!(cut.kind(), ErrorKind::UnexpectedEof);
        }
        let mut bytes = Vec::new();
        write_text(&mut bytes, &long).unwrap();
        assert_eq!(read_text(&mut &bytes[..]).unwrap(), "é".repeat(127));
    }

    #[test]
    fn nonsense_is_an_error() {
        assert!(Answer::read(&mut &[2, 0][..]).is_err());
        assert!(Wish::read(&mut &[9][..]).is_err());
        assert!(read_text(&mut &[1, 0xff][..]).is_err());
    }
}
