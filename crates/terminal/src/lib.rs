//! The outlet for all printed and logged text. Much of it comes from nodes. Control characters that a terminal obeys (to clear
//! the screen, to write to the clipboard, to turn the order of letters) must not reach a terminal.

use std::io::{self, ErrorKind, IsTerminal, Write};
#[cfg(unix)]
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use tabwriter::TabWriter;

use clap::{Args, ValueEnum};

use nrh_core::text::{is_obeyed, shown};

/// Time between two checks for a reader.
const READER_CHECK: Duration = Duration::from_millis(500);

/// Form of what a command prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// For people: a table, or lines.
    #[default]
    Table,
    /// One JSON document.
    Json,
    /// One YAML document.
    Yaml,
}

/// How a command prints what it has found.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct OutputArgs {
    /// Output format.
    #[arg(long, short, value_enum, default_value_t)]
    pub output: OutputFormat,
}

/// A writer that replaces each control character with U+FFFD and keeps line ends.
#[derive(Debug)]
pub struct Harmless<W>(pub W);

impl<W: Write> Write for Harmless<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // The formatter passes whole `str`s. Of other bytes only text is worth reading.
        self.0.write_all(shown(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Prints a text to standard output. A reader that closes the pipe early is no error.
///
/// # Errors
/// It cannot be written to.
pub fn print(text: &str) -> anyhow::Result<()> {
    write_to(Harmless(io::stdout()), text)
}

/// Prints the content of a file: unchanged, unless a terminal would obey what is in it.
///
/// # Errors
/// Standard output cannot be written to.
pub fn print_file(text: &str) -> anyhow::Result<()> {
    if io::stdout().is_terminal() { print(text) } else { write_to(io::stdout(), text) }
}

fn write_to(mut out: impl Write, text: &str) -> anyhow::Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}

/// Ends when nobody reads standard output any more. A watch that prints nothing learns of it in no other way.
pub async fn unread() {
    while !is_unread(&io::stdout()) {
        tokio::time::sleep(READER_CHECK).await;
    }
}

/// Whether the reader of a pipe has closed it, or a terminal is gone. A file has no reader to lose.
#[cfg(unix)]
fn is_unread(output: &impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    let mut polled = [PollFd::new(output, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

#[cfg(not(unix))]
fn is_unread(_: &io::Stdout) -> bool {
    false
}

/// Prints a sentence on standard error. A closed standard error is ignored, since no other channel exists.
pub fn complain(text: &str) {
    let _ = writeln!(Harmless(io::stderr().lock()), "{text}");
}

/// Prints a value in the requested form; `table` makes the form for people.
///
/// # Errors
/// It is no JSON, or standard output cannot be written to.
pub fn print_as<T: Serialize>(format: OutputFormat, value: &T, table: impl FnOnce(&T) -> String) -> anyhow::Result<()> {
    print(&match format {
        OutputFormat::Table => table(value),
        OutputFormat::Json => format!("{}\n", json(value)?),
        OutputFormat::Yaml => yaml(value)?,
    })
}

/// A value as YAML, each text on one line.
pub fn yaml(value: &impl Serialize) -> anyhow::Result<String> {
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    Ok(serde_saphyr::to_string_with_options(value, options)?)
}

/// Rows under their titles, in columns as wide as needed; the last column is not padded.
pub fn columns<const N: usize>(titles: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = TabWriter::new(Vec::new()).padding(3);
    let rows = rows.into_iter().map(|row| row.map(|cell| cell.replace(['\t', '\n'], " ")).join("\t"));
    for line in std::iter::once(titles.join("\t")).chain(rows) {
        // A write to memory does not fail.
        let _ = writeln!(table, "{line}");
    }
    String::from_utf8(table.into_inner().unwrap_or_default()).unwrap_or_default()
}

/// A value as JSON, without loss: control characters are written as `\u` and their number.
pub fn json(value: &impl Serialize) -> anyhow::Result<String> {
    let raw = serde_json::to_string_pretty(value)?;
    // Outside of texts JSON has no control characters but line ends. In texts a `\u` means the same character.
    let escaped = |c: char| if is_obeyed(c) && c != '\n' { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
    Ok(raw.chars().map(escaped).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\u{1b}]52;c;eA==\u{7}\n\u{9b}2J\u{7f}\r\tb\u{202e}c\u{2066}\u{2028}é";

    #[test]
    fn nothing_that_a_terminal_obeys_goes_out() {
        let mut out = Harmless(Vec::new());
        write!(out, "node {HOSTILE}").unwrap();
        out.write_all(b"\xff\x1b[31m\n").unwrap();
        let text = String::from_utf8(out.0).unwrap();
        assert_eq!(text, "node a�]52;c;eA==�\n�2J���b�c��é\u{fffd}�[31m\n");
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_is_unread_once_its_reader_has_closed_it_and_a_file_never_is() {
        let (reader, writer) = io::pipe().unwrap();
        assert!(!is_unread(&writer));
        drop(reader);
        assert!(is_unread(&writer));
        assert!(!is_unread(&std::fs::File::open("Cargo.toml").unwrap()));
    }

    #[test]
    fn yaml_keeps_each_text_on_one_line_and_a_terminal_obeys_none_of_it() {
        let text = yaml(&serde_json::json!({"message": HOSTILE})).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        let mut out = Harmless(Vec::new());
        out.write_all(text.as_bytes()).unwrap();
        let text = String::from_utf8(out.0).unwrap();
        assert!(!text.contains(|c: char| is_obeyed(c) && c != '\n'), "{text:?}");
    }

    #[test]
    fn json_says_it_all_and_a_terminal_obeys_none_of_it() {
        let value = serde_json::json!({"message": HOSTILE, HOSTILE: [1, 2]});
        let text = json(&value).unwrap();
        assert!(!text.contains(|c: char| is_obeyed(c) && c != '\n'), "{text:?}");
        assert!(text.contains("\\u009b2J\\u007f") && text.contains("\\u202e"), "{text:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
        let mut out = Harmless(Vec::new());
        out.write_all(text.as_bytes()).unwrap();
        assert_eq!(out.0, text.as_bytes());
    }
}
