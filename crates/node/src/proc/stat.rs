//! The `stat` line of a process.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::bounded::invalid;
use super::is_dead;
use nrh_core::text::bounded;

/// Longest `stat` line: 52 numbers of at most 20 digits and a name of at most 64 bytes fit well.
const MAX_STAT: usize = 4096;

/// The fields of a `stat` line that are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Parent's process id.
    pub parent: i32,
    /// Start time in clock ticks since boot.
    pub start_ticks: u64,
    /// Processor time in clock ticks, of all its threads.
    pub cpu_ticks: u64,
    /// How many threads it has; 1 when only its entry is left.
    pub threads: u32,
    /// Scheduler state letter.
    pub state: char,
    /// Command name, control characters replaced.
    pub command: String,
}

impl Stat {
    /// Whether the first thread has ended before others. Then the state says nothing about those.
    pub(super) const fn lacks_first_thread(&self) -> bool {
        is_dead(self.state) && self.threads > 1
    }
}

pub(super) fn read(root: &Path, pid: i32) -> io::Result<Stat> {
    from_file(&mut File::open(root.join(pid.to_string()).join("stat"))?, pid)
}

pub(super) fn from_file(file: &mut File, pid: i32) -> io::Result<Stat> {
    let mut line = [0; MAX_STAT];
    let length = read_line(file, &mut line)?;
    parse(line.get(..length).unwrap_or_default())
        .ok_or_else(|| invalid(format!("stat of process {pid}: not of the form `pid (name) state …`")))
}

/// The kernel returns the whole line in one read. There are as many lines as processes, and a second call for each, only to see
/// the end of the file, would be a third of the work.
fn read_line(file: &mut File, line: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while let Some(room) = line.get_mut(length..).filter(|room| !room.is_empty()) {
        let read = match file.read(room) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        length += read;
        if read == 0 || line.get(..length).is_some_and(|line| line.ends_with(b"\n")) {
            break;
        }
    }
    Ok(length)
}

/// Parses a line. The name may hold spaces, parentheses, line ends and whole invented fields. Only the *last* closing
/// parenthesis ends it, since no later field can contain one.
pub(crate) fn parse(line: &[u8]) -> Option<Stat> {
    let open = line.iter().position(|byte| *byte == b'(')?;
    let close = line.iter().rposition(|byte| *byte == b')')?;
    let name = line.get(open.checked_add(1)?..close)?;
    let rest = std::str::from_utf8(line.get(close.checked_add(1)?..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let mut state = fields.next()?.chars();
    let letter = state.next().filter(char::is_ascii_alphabetic)?;
    if state.next().is_some() {
        return None;
    }
    let parent = fields.next()?.parse().ok()?;
    // `state` is field 3 and `parent` field 4; times in user and kernel mode are fields 14 and 15, the number of threads
    // is field 20, the start time is field 22.
    let (user, system): (u64, u64) = (fields.nth(9)?.parse().ok()?, fields.next()?.parse().ok()?);
    let (threads, start_ticks) = (fields.nth(4)?.parse().ok()?, fields.nth(1)?.parse().ok()?);
    // Every kernel writes more fields. If none follows, the line was cut, and perhaps the number too.
    fields.next()?;
    let cpu_ticks = user.saturating_add(system);
    let command = bounded(&String::from_utf8_lossy(name), 64);
    Some(Stat { parent, start_ticks, cpu_ticks, threads, state: letter, command })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str) -> Vec<u8> {
        format!("7 ({name}) T 3 7 7 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 98765 1000 200 18446744073709551615\n")
            .into_bytes()
    }

    #[test]
    fn names_cannot_forge_fields() {
        for name in ["sleep", "a b", "x) S 1 (y", "a\nb", ")", "(", "", "((()))"] {
            let stat = parse(&line(name)).unwrap();
            assert_eq!((stat.parent, stat.threads, stat.start_ticks, stat.state), (3, 1, 98765, 'T'), "name {name:?}");
        }
        assert_eq!(parse(&line("a\nb")).unwrap().command, "a b");
    }

    #[test]
    fn a_name_need_not_be_text() {
        let mut bytes = b"7 (".to_vec();
        bytes.extend([0xff, 0xfe, b' ', b')']);
        bytes.extend(&line("x")[4..]);
        assert_eq!(parse(&bytes).unwrap().start_ticks, 98765);
    }

    #[test]
    fn cut_or_odd_lines_are_no_answer() {
        let whole = line("sleep");
        let start = whole.windows(5).position(|window| window == b"98765").unwrap();
        for cut in 0..=start + 5 {
            assert_eq!(parse(&whole[..cut]), None, "cut at {cut}");
        }
        assert_eq!(parse(b"7 (x) TT 3 7"), None);
        assert_eq!(parse(b"7 )x( T 3"), None);
    }
}
