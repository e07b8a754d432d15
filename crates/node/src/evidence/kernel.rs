//! The last lines of the kernel log. It reads the lines that exist now, and does not wait for new ones.

use std::collections::VecDeque;
use std::io;
use std::path::Path;

use super::room::cost;
use crate::kmsg::{Log, Record};
use nrh_api::evidence::Section;
use nrh_core::text::bounded;

/// Space for the lines, in bytes of JSON.
const ROOM: usize = 12 << 10;
/// Maximum length of a line.
const MAX_LINE: usize = 200;
/// Maximum number of records skipped to reach the last ones.
const MAX_RECORDS: usize = 65_536;

/// Returns the last lines, or why there are none.
pub(super) fn last_lines(path: &Path) -> Section {
    const COMMAND: &str = "`journalctl -k -n 200` or `dmesg` as root on the node shows them";
    match read(path) {
        Ok(lines) if lines.is_empty() => Section::missing("the kernel has none"),
        Ok(lines) => Section { lines: lines.into(), note: String::new() },
        Err(error) => Section::missing(format!("cannot read {}: {error}; {COMMAND}", path.display())),
    }
}

fn read(path: &Path) -> io::Result<VecDeque<String>> {
    let mut log = Log::open(path)?;
    let (mut lines, mut used) = (VecDeque::new(), 0_usize);
    for _ in 0..MAX_RECORDS {
        let Some(text) = log.read()? else { break };
        for line in text.lines().filter_map(line) {
            used = used.saturating_add(cost(&line));
            lines.push_back(line);
            while used > ROOM {
                let Some(oldest) = lines.pop_front() else { break };
                used = used.saturating_sub(cost(&oldest));
            }
        }
    }
    Ok(lines)
}

/// Converts `6,1234,98765432,-;text` to `98.765432 text`.
fn line(line: &str) -> Option<String> {
    let Record { micros, text, .. } = Record::of(line)?;
    Some(bounded(&format!("{}.{:06} {text}", micros / 1_000_000, micros % 1_000_000), MAX_LINE))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use rustix::fs::{Mode, OFlags};

    use super::*;

    #[test]
    fn the_last_lines_are_kept_without_what_continues_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kmsg");
        let mut text = String::new();
        for number in 0..2_000 {
            writeln!(text, "6,{number},{number}000005,-;line {number} \u{1b}[31m\n SUBSYSTEM=block").unwrap();
        }
        std::fs::write(&path, text).unwrap();
        let section = last_lines(&path);
        assert_eq!(section.lines.last().unwrap(), "1999.000005 line 1999  [31m");
        assert!(section.lines.len() > 100 && section.lines.iter().map(|line| cost(line)).sum::<usize>() <= ROOM);
        assert!(section.lines.iter().all(|line| line.contains("line ")));
    }

    #[test]
    fn what_cannot_be_opened_is_said_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let section = last_lines(&folder.path().join("kmsg"));
        assert!(section.lines.is_empty() && section.note.contains("dmesg"), "{section:?}");
    }

    #[test]
    fn a_pipe_in_which_nothing_comes_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kmsg");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::from_raw_mode(0o600)).unwrap();
        let _writer = rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
        assert_eq!(last_lines(&path).note, "the kernel has none");
    }
}
