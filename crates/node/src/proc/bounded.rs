//! Reads that end: never more than a fixed number of bytes, and the caller learns when there was more.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Initial room, enough for a usual read.
const USUAL: usize = 1024;

/// What was read, and whether something was left.
#[derive(Debug)]
pub(crate) struct Bytes {
    pub(crate) bytes: Vec<u8>,
    pub(crate) truncated: bool,
}

/// Reads at most `most` bytes of an open file.
pub(crate) fn read_file(file: &mut File, most: usize) -> io::Result<Bytes> {
    // Most files here are small, and without initial room a vector asks for 32 bytes at first.
    let mut bytes = Vec::with_capacity(USUAL.min(most.saturating_add(1)));
    let limit = u64::try_from(most).unwrap_or(u64::MAX);
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    let truncated = bytes.len() > most;
    bytes.truncate(most);
    Ok(Bytes { bytes, truncated })
}

/// What was found; `None` where it does not exist.
pub(crate) fn existing<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The error of a file whose content is not of the form expected.
pub(crate) fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

/// The lines of a text that may have been cut. A line without an end does not count: a number in it may have lost its last
/// digits.
pub(crate) fn whole_lines(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'))
}

/// Reads a whole small file; a larger one is an error, not a cut text.
pub(crate) fn read_whole(path: &Path, most: usize) -> io::Result<String> {
    let read = read_file(&mut File::open(path)?, most)?;
    if read.truncated {
        return Err(io::Error::other(format!("{} is larger than {most} bytes", path.display())));
    }
    Ok(String::from_utf8_lossy(&read.bytes).into_owned())
}
