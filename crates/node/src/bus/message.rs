//! The D-Bus wire format, as far as it is needed to call methods with texts or one boolean as arguments, and to read their
//! answers.

use nrh_core::text::bounded;

/// Largest message that is read. An expected answer has a hundred bytes, and a sentence where it is an error.
pub(super) const MAX_MESSAGE: usize = 64 << 10;
/// Longest name of an error that is kept, in bytes.
pub(crate) const MAX_NAME: usize = 128;
/// Longest text of an answer that is kept, in bytes.
pub(crate) const MAX_TEXT: usize = 512;
/// Size of the fixed part before the fields of a header.
const FIXED: usize = 16;

const METHOD_CALL: u8 = 1;
const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;
const SIGNAL: u8 = 4;
/// The code for a number and a path together in this module.
const JOB: u8 = b'(';
/// The code for a list of texts in this module.
const LIST: u8 = b'a';
/// The signature of the login manager's list of inhibitors: what, who, why, how, user id, process id.
const INHIBITORS: &[u8] = b"a(ssssuu)";
/// The bus must not start a service for this call.
const NO_AUTO_START: u8 = 2;

/// A call with these header fields (path, destination, interface, member), and texts as arguments.
pub(super) fn call(serial: u32, fields: &[(u8, &str)], arguments: &[&str]) -> Vec<u8> {
    call_with(serial, fields, &"s".repeat(arguments.len()), &texts(arguments))
}

/// A call whose one argument is a boolean.
pub(super) fn call_saying(serial: u32, fields: &[(u8, &str)], yes: bool) -> Vec<u8> {
    call_with(serial, fields, "b", &u32::from(yes).to_le_bytes())
}

fn call_with(serial: u32, fields: &[(u8, &str)], kinds: &str, body: &[u8]) -> Vec<u8> {
    let kind_of = |code: u8| if code == 1 { b'o' } else { b's' };
    let fields = fields.iter().map(|(code, value)| field(*code, kind_of(*code), value));
    let fields: Vec<_> = fields.chain((!kinds.is_empty()).then(|| signature(kinds))).collect();
    encoded(METHOD_CALL, NO_AUTO_START, serial, &fields, body)
}

/// A message of this kind and with these flags.
pub(super) fn encoded(kind: u8, flags: u8, serial: u32, fields: &[Vec<u8>], body: &[u8]) -> Vec<u8> {
    let mut header = Vec::new();
    for field in fields {
        header.resize(header.len().next_multiple_of(8), 0);
        header.extend(field);
    }
    let mut message = vec![b'l', kind, flags, 1];
    message.extend(length(body));
    message.extend(serial.to_le_bytes());
    message.extend(length(&header));
    message.extend(header);
    message.resize(message.len().next_multiple_of(8), 0);
    message.extend(body);
    message
}

/// A header field that is a text.
pub(super) fn field(code: u8, kind: u8, value: &str) -> Vec<u8> {
    [&[code, 1, kind, 0][..], &text(value)].concat()
}

/// The header field that names the kinds of the values in the body.
pub(super) fn signature(kinds: &str) -> Vec<u8> {
    let length = u8::try_from(kinds.len()).unwrap_or_default();
    [&[8, 1, b'g', 0, length][..], kinds.as_bytes(), &[0]].concat()
}

/// These texts one after another, each where D-Bus aligns it.
pub(super) fn texts(values: &[impl AsRef<str>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for value in values {
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend(text(value.as_ref()));
    }
    bytes
}

pub(super) fn text(value: &str) -> Vec<u8> {
    [&length(value.as_bytes())[..], value.as_bytes(), &[0]].concat()
}

fn length(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).unwrap_or_default().to_le_bytes()
}

/// The parts of one message that are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// Serial of the call that it answers, if it is an answer.
    pub(crate) answers: Option<u32>,
    /// Name of the error, if it is one.
    pub(crate) error: Option<String>,
    pub(crate) signal: Option<String>,
    /// The sender, as the bus reports it.
    pub(crate) sender: Option<String>,
    /// The values at the start of its body, up to the first of a kind that is not read.
    pub(crate) values: Vec<Value>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// A text or the path of an object; only its start where it is long.
    Text(String),
    Number(u32),
    List(Vec<String>),
}

impl Value {
    pub(crate) fn text(self) -> Option<String> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub(crate) fn list(self) -> Option<Vec<String>> {
        if let Self::List(list) = self { Some(list) } else { None }
    }

    pub(crate) const fn number(&self) -> Option<u32> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }
}

/// The header fields that are used.
#[derive(Default)]
struct Fields<'a> {
    answers: Option<u32>,
    error: Option<String>,
    member: Option<String>,
    sender: Option<String>,
    signature: &'a [u8],
}

impl Message {
    /// The first message of these bytes and its length; `None` while its end is missing.
    pub(crate) fn take(bytes: &[u8]) -> Result<Option<(Self, usize)>, &'static str> {
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
        let fields = Reader { bytes: message, ..header }.fields(end).ok_or("a header that cannot be understood")?;
        let rest = message.get(end.next_multiple_of(8)..).unwrap_or_default();
        let mut message = Self { answers: None, error: None, signal: None, sender: fields.sender, values: Vec::new() };
        match kind {
            METHOD_RETURN => message.answers = Some(fields.answers.ok_or("an answer to nothing")?),
            ERROR => {
                message.answers = Some(fields.answers.ok_or("an error about nothing")?);
                message.error = Some(fields.error.ok_or("an error without a name")?);
            }
            SIGNAL => message.signal = fields.member,
            _ => return Ok(Some((message, whole))),
        }
        message.values = Reader { bytes: rest, at: 0, little }.values(fields.signature);
        Ok(Some((message, whole)))
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

    /// This many bytes and a zero after them.
    fn text(&mut self, length: usize) -> Option<&'a [u8]> {
        let text = self.take(length)?;
        (self.take(1)? == [0]).then_some(text)
    }

    /// A text as it is encoded in a body, or in a field that is one.
    fn long_text(&mut self) -> Option<&'a str> {
        let length = usize::try_from(self.number()?).ok()?;
        std::str::from_utf8(self.text(length)?).ok()
    }

    /// The values of a body with this signature, up to the first that is neither text nor number, or is incomplete.
    fn values(mut self, signature: &[u8]) -> Vec<Value> {
        if signature == INHIBITORS {
            return self.inhibitors().unwrap_or_default();
        }
        let mut values = Vec::new();
        for kind in signature {
            let kind = match kind {
                b'v' => self.kind_of_variant(),
                kind => Some(*kind),
            };
            let value = match kind {
                Some(b's' | b'o') => self.long_text().map(|text| Value::Text(bounded(text, MAX_TEXT))),
                Some(b'u') => self.number().map(Value::Number),
                // A job: its number, and its path, which is not kept.
                Some(JOB) => {
                    self.at = self.at.next_multiple_of(8);
                    self.number().map(Value::Number)
                }
                Some(LIST) => self.texts().map(Value::List),
                _ => None,
            };
            let Some(value) = value else { break };
            values.push(value);
        }
        values
    }

    /// A list of texts; `None` where it is incomplete.
    fn texts(&mut self) -> Option<Vec<String>> {
        let bytes = usize::try_from(self.number()?).ok()?;
        let end = self.at.checked_add(bytes)?;
        let mut texts = Vec::new();
        while self.at < end {
            texts.push(bounded(self.long_text()?, MAX_TEXT));
        }
        (self.at == end).then_some(texts)
    }

    /// The number of inhibitors, and four texts and two numbers for each; `None` where the list is incomplete.
    fn inhibitors(&mut self) -> Option<Vec<Value>> {
        let bytes = usize::try_from(self.number()?).ok()?;
        self.at = self.at.next_multiple_of(8);
        let end = self.at.checked_add(bytes)?;
        let mut values = vec![Value::Number(0)];
        let mut count = 0_u32;
        while self.at < end {
            count = count.saturating_add(1);
            self.at = self.at.next_multiple_of(8);
            for _ in 0..4 {
                values.push(Value::Text(bounded(self.long_text()?, MAX_TEXT)));
            }
            for _ in 0..2 {
                values.push(Value::Number(self.number()?));
            }
        }
        if let Some(first) = values.first_mut() {
            *first = Value::Number(count);
        }
        (self.at == end && end == self.bytes.len()).then_some(values)
    }

    /// The type of the value that follows here, if it is one plain value.
    fn kind_of_variant(&mut self) -> Option<u8> {
        let length = usize::from(*self.take(1)?.first()?);
        match self.text(length)? {
            [kind] => Some(*kind),
            b"(uo)" => Some(JOB),
            b"as" => Some(LIST),
            _ => None,
        }
    }

    fn fields(mut self, end: usize) -> Option<Fields<'a>> {
        let mut fields = Fields::default();
        while self.at < end {
            self.at = self.at.next_multiple_of(8);
            let code = *self.take(1)?.first()?;
            let length = usize::from(*self.take(1)?.first()?);
            match self.text(length)? {
                b"u" => {
                    let number = self.number()?;
                    fields.answers = if code == 5 { Some(number) } else { fields.answers };
                }
                b"s" | b"o" => {
                    let text = self.long_text()?;
                    match code {
                        3 => fields.member = Some(bounded(text, MAX_NAME)),
                        4 => fields.error = Some(bounded(text, MAX_NAME)),
                        7 => fields.sender = Some(bounded(text, MAX_NAME)),
                        _ => {}
                    }
                }
                b"g" => {
                    let length = usize::from(*self.take(1)?.first()?);
                    let text = self.text(length)?;
                    fields.signature = if code == 8 { text } else { fields.signature };
                }
                _ => return None,
            }
        }
        (self.at == end).then_some(fields)
    }
}
