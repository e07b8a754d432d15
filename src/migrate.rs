//! `nrh migrate`: rewrites policy files of earlier versions to the names of this version. It goes with the next release.
//!
//! It changes keys at their place and the values of four keys. Comments and layout stay as they are.

use anyhow::Context;

use crate::cli::MigrateArgs;
use crate::terminal;

/// The new name of a key of a policy, by the key that it stands under.
fn key(parent: &str, old: &str) -> Option<&'static str> {
    Some(match (parent, old) {
        ("match", "for") => "minDuration",
        ("verify", "for") => "stableFor",
        ("match" | "drain", "exceptNamespaces") => "excludedNamespaces",
        ("steps", "attempts") => "maxAttempts",
        ("cordon", "keepFor") => "quarantineFor",
        ("drain", "evenIfRuntimeHangs") => "ignoreRuntimeHang",
        ("restart", "evenIfUnsafe") => "skipSafetyCheck",
        ("restart", "evenIfStopped") => "startIfStopped",
        ("reboot", "evenIfNotDrained") => "requireDrain",
        ("perNode", "acts") => "maxActions",
        ("perNode" | "storm", "within") => "window",
        ("storm", "nodes") => "minNodes",
        _ => return None,
    })
}

/// The new value of a key of a policy.
fn value(key: &str, old: &str) -> Option<&'static str> {
    Some(match (key, old) {
        ("onFailure", "Next") => "Continue",
        ("signal", "Cont") => "SIGCONT",
        ("signal", "Kill") => "SIGKILL",
        ("evenIfNotDrained", "true") => "false",
        ("evenIfNotDrained", "false") => "true",
        ("faults", "DeafShim") => "UnresponsiveShim",
        ("faults", "UnknownKubepodsProcess") => "UntrackedPodProcess",
        ("faults", "ExitedContainerPileUp") => "ExitedContainerBacklog",
        ("faults", "ProbeBlind") => "ProbeDegraded",
        ("faults", "ProbeSilent") => "ProbeNotReporting",
        _ => return None,
    })
}

/// Where a line is in its document.
#[derive(Default)]
struct Place {
    /// Keys above, each with its column.
    block: Vec<(usize, String)>,
    /// Keys above within brackets.
    flow: Vec<String>,
    /// Indentation of a text that goes over several lines.
    text: Option<usize>,
}

impl Place {
    fn parent(&self) -> &str {
        self.flow.last().or_else(|| self.block.last().map(|(_, key)| key)).map_or("", String::as_str)
    }

    /// One line with the new names; `None` where it cannot be read with certainty.
    fn line(&mut self, line: &str) -> Option<String> {
        let indent = line.len() - line.trim_start().len();
        if self.text.is_some_and(|from| indent > from || line.trim().is_empty()) {
            return Some(line.to_owned());
        }
        self.text = None;
        let (mut out, mut rest, mut current) = (String::new(), line, None::<String>);
        while let Some(first) = rest.chars().next() {
            let column = line.len() - rest.len();
            if first == '#' && (out.is_empty() || out.ends_with(' ')) {
                out.push_str(rest);
                break;
            }
            let quoted = matches!(first, '"' | '\'');
            let end = if quoted {
                rest[1..].find(first)? + 2
            } else {
                rest.find(|c: char| " ,{}[]:".contains(c)).unwrap_or(rest.len()).max(1)
            };
            // A colon within a word is part of it.
            let end = if quoted { end } else { colon_within(rest, end) };
            let (word, after) = rest.split_at(end);
            rest = after;
            let bare = if quoted { &word[1..end - 1] } else { word };
            match first {
                '{' | '[' => self.flow.push(current.take().unwrap_or_else(|| self.parent().to_owned())),
                '}' | ']' => drop(self.flow.pop()),
                ',' if self.flow.last().is_some() => current = None,
                '&' | '*' | '<' if after.starts_with(|c: char| c.is_alphanumeric() || c == '<') => return None,
                '|' | '>' if self.flow.is_empty() => self.text = Some(indent),
                ' ' | ',' | ':' | '-' => {}
                _ => {
                    let is_key = after.starts_with(": ") || after == ":" || (quoted && after.starts_with(':'));
                    let new = if is_key {
                        if self.flow.is_empty() {
                            self.block.retain(|(above, _)| *above < column);
                        }
                        let new = key(self.parent(), bare);
                        if self.flow.is_empty() {
                            self.block.push((column, bare.to_owned()));
                        }
                        current = Some(bare.to_owned());
                        new
                    } else {
                        value(current.as_deref().unwrap_or_else(|| self.parent()), bare)
                    };
                    out.push_str(&new.map_or_else(|| word.to_owned(), |new| word.replace(bare, new)));
                    continue;
                }
            }
            out.push_str(word);
        }
        Some(out)
    }
}

/// The end of a word that may have colons in it, such as a time.
fn colon_within(rest: &str, end: usize) -> usize {
    let after = &rest[end..];
    if !after.starts_with(':') || after[1..].starts_with(' ') || after.len() == 1 {
        return end;
    }
    after[1..].find(|c: char| " ,{}[]".contains(c)).map_or(rest.len(), |more| end + 1 + more)
}

/// The text with the new names, and the numbers of the lines that a person has to read.
fn migrated(text: &str) -> (String, Vec<usize>) {
    let (mut place, mut out, mut unread) = (Place::default(), Vec::new(), Vec::new());
    for (number, line) in text.lines().enumerate() {
        if line.starts_with("---") {
            place = Place::default();
        }
        out.push(place.line(line).unwrap_or_else(|| {
            unread.push(number + 1);
            line.to_owned()
        }));
    }
    (out.join("\n") + if text.ends_with('\n') { "\n" } else { "" }, unread)
}

/// Prints or rewrites the files.
///
/// # Errors
/// A file cannot be read or written.
pub fn run(args: &MigrateArgs) -> anyhow::Result<()> {
    for path in &args.files {
        let shown = path.display();
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
        let (new, unread) = if text.contains("RemediationPolicy") { migrated(&text) } else { (text, Vec::new()) };
        for line in unread {
            terminal::complain(&format!(
                "{shown}:{line} is unchanged: anchors, aliases and texts in quotes over several lines are not read; check it by hand"
            ));
        }
        if args.in_place {
            std::fs::write(path, new).with_context(|| format!("cannot write {shown}"))?;
        } else {
            terminal::print(&new)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> serde_json::Value {
        serde_saphyr::from_str(text).unwrap()
    }

    #[test]
    fn policies_of_before_get_todays_names_and_keep_their_comments() {
        for (old, new) in [
            (include_str!("../tests/migrate/sample.yaml"), include_str!("../config/samples/policy.yaml")),
            (include_str!("../tests/migrate/flow.yaml"), include_str!("../tests/cluster/definitions/policy.yaml")),
        ] {
            let (found, unread) = migrated(old);
            assert_eq!((read(&found), unread), (read(new), Vec::new()), "{found}");
            assert_eq!(found.matches('#').count(), old.matches('#').count());
            assert_eq!(migrated(&found).0, found, "what has the new names stays");
        }
    }

    #[test]
    fn only_keys_of_a_policy_are_changed() {
        for line in ["  # keepFor: 1h", "labels: {for: x, within: y}", "message: \"attempts: 3\"", "at: 12:30:00"] {
            assert_eq!(Place::default().line(line).unwrap(), line);
        }
        assert!(Place::default().line("steps: *same").is_none());
        assert_eq!(
            migrated("message: |\n  signal: Kill\nsignal: Kill").0,
            "message: |\n  signal: Kill\nsignal: SIGKILL"
        );
    }
}
