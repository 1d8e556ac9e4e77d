//! Messages as bytes of a stream: a length of four bytes, then the message in postcard's encoding.

use crate::base::error::ProtocolError;
use crate::base::limits::{FAREWELL_MAX, MESSAGE_SIZE_MAX};
use crate::wire::message::{Message, PROTOCOL_VERSION};

/// A stream of a connection. On each, messages come in the order in which they were sent; those of
/// different ones come in any order. A connection that has only one stream keeps all in order.
///
/// # Examples
///
/// ```
/// use pagefork_postcopy::Lane;
///
/// assert!(Lane::Control < Lane::Background);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Lane {
    /// All that a running node sends; of a memory node, all but groups that were asked for.
    Control,
    /// Groups that guests wait for.
    Urgent,
    /// Groups that guests will probably touch soon.
    Planned,
    /// All other groups.
    Background,
}

impl Lane {
    /// All lanes.
    pub const ALL: [Self; 4] = [Self::Control, Self::Urgent, Self::Planned, Self::Background];
}

/// Bytes of a length.
const LENGTH: usize = 4;

/// The number of [`Message::Hello`], which stands before its version.
const HELLO: u8 = 0;

/// The number of [`Message::Welcome`].
const WELCOME: u8 = 1;

/// The message as it travels. [`FrameDecoder`] has an example of the way back. Of a farewell's text no more
/// travels than its first [`FAREWELL_MAX`] bytes: it says what went wrong, which can name what the peer has sent.
///
/// # Panics
/// If it has more than [`MESSAGE_SIZE_MAX`] bytes: whoever makes messages splits them before.
pub fn encode(message: &Message) -> Vec<u8> {
    if let Message::Farewell { text } = message
        && text.len() > FAREWELL_MAX
    {
        let text = text[..text.floor_char_boundary(FAREWELL_MAX)].to_owned();
        return encode(&Message::Farewell { text });
    }
    let bytes = postcard::to_extend(message, vec![0; LENGTH]);
    let mut bytes = bytes.expect("memory takes all messages");
    let size = (bytes.len() - LENGTH) as u32;
    assert!(size <= MESSAGE_SIZE_MAX, "a message has {size} bytes");
    bytes[..LENGTH].copy_from_slice(&size.to_le_bytes());
    bytes
}

/// Takes messages from the bytes of one stream, as they come. It holds no more than was pushed, and
/// refuses a message that is too long at its first bytes.
///
/// # Examples
///
/// ```
/// use pagefork_postcopy::{FrameDecoder, Message};
///
/// let mut decoder = FrameDecoder::default();
/// decoder.push(&[1, 0, 0]);
/// assert_eq!(decoder.message()?, None);
/// decoder.push(&[0, 11]);
/// assert_eq!(decoder.message()?, Some(Message::KeepAlive));
/// # Ok::<(), pagefork_postcopy::ProtocolError>(())
/// ```
#[derive(Debug, Default)]
pub struct FrameDecoder {
    bytes: Vec<u8>,
    /// Of these, how many were read.
    read: usize,
}

impl FrameDecoder {
    /// Adds bytes that have come.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.read);
        self.read = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message, if all of it is there.
    ///
    /// # Errors
    /// [`ProtocolError::MessageTooLong`], [`ProtocolError::Version`] or
    /// [`ProtocolError::Malformed`]; the stream is of no use then.
    pub fn message(&mut self) -> Result<Option<Message>, ProtocolError> {
        let Some((length, rest)) = self.bytes[self.read..].split_first_chunk::<LENGTH>() else {
            return Ok(None);
        };
        let size = u32::from_le_bytes(*length);
        if size > MESSAGE_SIZE_MAX {
            return Err(ProtocolError::MessageTooLong { size, limit: MESSAGE_SIZE_MAX });
        }
        let Some(body) = rest.get(..size as usize) else { return Ok(None) };
        let message = decode(body)?;
        self.read += LENGTH + size as usize;
        Ok(Some(message))
    }
}

fn decode(body: &[u8]) -> Result<Message, ProtocolError> {
    // Of another version only this much is sure.
    if let [HELLO | WELCOME, rest @ ..] = body {
        let version = postcard::take_from_bytes::<u32>(rest).map_err(malformed)?.0;
        if version != PROTOCOL_VERSION {
            let supported = PROTOCOL_VERSION;
            return Err(ProtocolError::Version { found: version, supported });
        }
    }
    match postcard::take_from_bytes(body).map_err(malformed)? {
        (message, []) => Ok(message),
        _ => Err(ProtocolError::Malformed("bytes behind its end".to_owned())),
    }
}

fn malformed(error: postcard::Error) -> ProtocolError {
    ProtocolError::Malformed(error.to_string())
}
