//! The kernel's log from `/dev/kmsg`: each read returns one record, none twice, and never waits.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{Mode, OFlags, SeekFrom, seek};

/// The device that shows the log.
pub const KMSG: &str = "/dev/kmsg";
/// Approximate maximum length of a kernel record.
const RECORD: usize = 8 << 10;

/// The head of a record and its text, as in `6,1234,98765432,-;text`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The writer of the record: 0 for the kernel itself, which no other writer can claim.
    pub facility: u64,
    /// Its number. Numbers rise by one, so a gap shows how many were skipped.
    pub sequence: u64,
    /// Microseconds since boot.
    pub micros: u64,
    /// Its text.
    pub text: &'a str,
}

impl<'a> Record<'a> {
    /// Parses a line; `None` for one that continues another (names of devices), and for anything else.
    pub fn of(line: &'a str) -> Option<Self> {
        let (head, text) = line.split_once(';').filter(|(head, _)| !head.starts_with(' '))?;
        let mut numbers = head.split(',').map(|word| word.parse::<u64>().ok());
        let (priority, sequence, micros) = (numbers.next()??, numbers.next()??, numbers.next()??);
        Some(Self { facility: priority >> 3, sequence, micros, text })
    }
}

/// An open log.
#[derive(Debug)]
pub struct Log {
    file: File,
    buffer: Vec<u8>,
}

impl Log {
    /// Opens it at its beginning.
    ///
    /// # Errors
    /// Those of the kernel: a container may not open the device, and not every process may read it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        Ok(Self { file, buffer: vec![0; RECORD] })
    }

    /// Skips all present records.
    ///
    /// # Errors
    /// When this is not a log.
    pub fn skip(&mut self) -> io::Result<()> {
        seek(&self.file, SeekFrom::End(0))?;
        Ok(())
    }

    /// The text of the next read; `None` when there is no record now.
    pub fn read(&mut self) -> io::Result<Option<Cow<'_, str>>> {
        let length = loop {
            match self.file.read(&mut self.buffer) {
                Ok(0) => return Ok(None),
                Ok(length) => break length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                // The record was overwritten before this read. The next read continues with the oldest present one.
                Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        };
        Ok(Some(String::from_utf8_lossy(self.buffer.get(..length).unwrap_or_default())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_a_head_and_what_continues_one_has_none() {
        let record = Record::of("6,1234,98765432,-;text; of it").unwrap();
        assert_eq!(record, Record { facility: 0, sequence: 1234, micros: 98_765_432, text: "text; of it" });
        assert_eq!(Record::of("30,7,1,-,caller=T1;systemd[1]: x").unwrap().facility, 3, "a daemon's");
        for odd in ["", " SUBSYSTEM=block", " DEVICE=b8:0;x", "6,1;no time", "6,x,1,-;x", "-1,1,1,-;x", "no head"] {
            assert_eq!(Record::of(odd), None, "{odd:?}");
        }
    }
}
