//! D-Bus on the wire, as far as it takes to call something that has no arguments and to know what came of it.

use crate::core::text::bounded;

/// Largest message that is read. What is waited for has a hundred bytes, and a sentence where it is an error.
pub(super) const MAX_MESSAGE: usize = 64 << 10;
/// Longest name of an error that is kept, in bytes.
pub(in crate::node) const MAX_NAME: usize = 128;
/// What precedes the fields of a header.
const FIXED: usize = 16;

const METHOD_CALL: u8 = 1;
const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;
/// Nobody is to be started for the sake of this call.
const NO_AUTO_START: u8 = 2;

/// A call without arguments: these fields of the header (path, destination, interface, member) and nothing else.
pub(super) fn call(serial: u32, fields: &[(u8, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (code, value) in fields {
        body.resize(body.len().next_multiple_of(8), 0);
        body.extend([*code, 1, if *code == 1 { b'o' } else { b's' }, 0]);
        body.extend(u32::try_from(value.len()).unwrap_or_default().to_le_bytes());
        body.extend(value.as_bytes());
        body.push(0);
    }
    let mut message = vec![b'l', METHOD_CALL, NO_AUTO_START, 1, 0, 0, 0, 0];
    message.extend(serial.to_le_bytes());
    message.extend(u32::try_from(body.len()).unwrap_or_default().to_le_bytes());
    message.extend(body);
    message.resize(message.len().next_multiple_of(8), 0);
    message
}

/// What matters of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::node) struct Message {
    /// Serial of the call that it answers, where it is an answer.
    pub(in crate::node) answers: Option<u32>,
    /// Name of the error that it is.
    pub(in crate::node) error: Option<String>,
}

impl Message {
    /// The first message of these bytes and its length; `None` while its end is missing.
    pub(in crate::node) fn take(bytes: &[u8]) -> Result<Option<(Self, usize)>, &'static str> {
        let Some(fixed) = bytes.get(..FIXED) else { return Ok(None) };
        let little = match fixed.first() {
            Some(b'l') => true,
            Some(b'B') => false,
            _ => return Err("a message without a byte order"),
        };
        let mut header = Reader { bytes, at: 4, little };
        let (Some(body), Some(_), Some(fields)) = (header.number(), header.number(), header.number()) else {
            return Ok(None);
        };
        let size = |number: u32| usize::try_from(number).unwrap_or(usize::MAX).min(MAX_MESSAGE);
        let end = FIXED + size(fields);
        let whole = end.next_multiple_of(8) + size(body);
        if whole > MAX_MESSAGE {
            return Err("a message that is too large");
        }
        let Some(message) = bytes.get(..whole) else { return Ok(None) };
        let kind = fixed.get(1).copied().unwrap_or_default();
        let (answers, error) =
            Reader { bytes: message, ..header }.fields(end).ok_or("a header that cannot be understood")?;
        let said = match kind {
            METHOD_RETURN => Self { answers: Some(answers.ok_or("an answer to nothing")?), error: None },
            ERROR => Self {
                answers: Some(answers.ok_or("an error about nothing")?),
                error: Some(error.ok_or("an error without a name")?),
            },
            _ => Self { answers: None, error: None },
        };
        Ok(Some((said, whole)))
    }
}

/// Reads values where D-Bus aligns them.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    little: bool,
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(count)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn number(&mut self) -> Option<u32> {
        self.at = self.at.next_multiple_of(4);
        let bytes = self.take(4)?.try_into().ok()?;
        Some(if self.little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    }

    /// So many bytes and a zero after them.
    fn text(&mut self, length: usize) -> Option<&'a [u8]> {
        let text = self.take(length)?;
        (self.take(1)? == [0]).then_some(text)
    }

    /// Of the fields that end at `end`: serial of the call that is answered, and name of the error.
    fn fields(mut self, end: usize) -> Option<(Option<u32>, Option<String>)> {
        let (mut answers, mut error) = (None, None);
        while self.at < end {
            self.at = self.at.next_multiple_of(8);
            let code = *self.take(1)?.first()?;
            let length = usize::from(*self.take(1)?.first()?);
            match self.text(length)? {
                b"u" => {
                    let number = self.number()?;
                    answers = if code == 5 { Some(number) } else { answers };
                }
                b"s" | b"o" => {
                    let length = usize::try_from(self.number()?).ok()?;
                    let text = self.text(length)?;
                    error = if code == 4 { Some(bounded(std::str::from_utf8(text).ok()?, MAX_NAME)) } else { error };
                }
                b"g" => {
                    let length = usize::from(*self.take(1)?.first()?);
                    self.text(length)?;
                }
                _ => return None,
            }
        }
        (self.at == end).then_some((answers, error))
    }
}
