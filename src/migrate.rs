//! `nrh migrate`: rewrites keys and values of old policy files to the names of this version; comments and layout stay.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use anyhow::Context;

use crate::caller::objects_in;
use crate::cli::MigrateArgs;
use crate::terminal::complain;

/// Only documents with this word are rewritten.
const KIND: &str = "RemediationPolicy";

/// Renamed keys: the parent keys, the old name and the new one.
const KEYS: [(&[&str], &str, &str); 12] = [
    (&["match"], "for", "minDuration"),
    (&["verify"], "for", "stableFor"),
    (&["match", "drain"], "exceptNamespaces", "excludedNamespaces"),
    (&["steps"], "attempts", "maxAttempts"),
    (&["cordon"], "keepFor", "quarantineFor"),
    (&["drain"], "evenIfRuntimeHangs", "ignoreRuntimeHang"),
    (&["restart"], "evenIfUnsafe", "skipSafetyCheck"),
    (&["restart"], "evenIfStopped", "startIfStopped"),
    (&["reboot"], INVERTED, "requireDrain"),
    (&["perNode"], "acts", "maxActions"),
    (&["perNode", "storm"], "within", "window"),
    (&["storm"], "nodes", "minNodes"),
];
/// Renamed values: the key, the old value and the new one.
const VALUES: [(&str, &str, &str); 8] = [
    ("onFailure", "Next", "Continue"),
    ("signal", "Cont", "SIGCONT"),
    ("signal", "Kill", "SIGKILL"),
    ("faults", "DeafShim", "UnresponsiveShim"),
    ("faults", "UnknownKubepodsProcess", "UntrackedPodProcess"),
    ("faults", "ExitedContainerPileUp", "ExitedContainerBacklog"),
    ("faults", "ProbeBlind", "ProbeDegraded"),
    ("faults", "ProbeSilent", "ProbeNotReporting"),
];

/// The key whose value has the opposite meaning under its new name.
const INVERTED: &str = "evenIfNotDrained";

/// The opposite of a boolean, as YAML 1.1 and so `kubectl` read it.
fn opposite(word: &str) -> Option<&'static str> {
    match word.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "y" => Some("false"),
        "false" | "no" | "off" | "n" => Some("true"),
        _ => None,
    }
}

/// The position of a line in its document: parent keys with their columns, parent keys in brackets, indentation of a multi-line
/// text.
#[derive(Default)]
struct Place {
    block: Vec<(usize, String)>,
    flow: Vec<String>,
    text: Option<usize>,
}

impl Place {
    fn parent(&self) -> &str {
        self.flow.last().or_else(|| self.block.last().map(|(_, key)| key)).map_or("", String::as_str)
    }

    /// One line with the new names; `None` where it cannot be parsed with certainty.
    fn line(&mut self, line: &str) -> Option<String> {
        let indent = line.len() - line.trim_start().len();
        if self.text.is_some_and(|from| indent > from || line.trim().is_empty()) {
            return Some(line.to_owned());
        }
        self.text = None;
        let (mut out, mut rest, mut current) = (String::new(), line, None::<String>);
        while let Some(first) = rest.chars().next().filter(|first| *first != '#') {
            let column = line.len() - rest.len();
            let quoted = matches!(first, '"' | '\'');
            let end = rest.find(|c| " \t,{}[]".contains(c)).unwrap_or(rest.len()).max(1);
            let end = if quoted { rest[1..].find(first)? + 2 } else { end };
            let (word, after) = rest.split_at(end);
            rest = after;
            let bare = if quoted { &word[1..end - 1] } else { word.trim_end_matches(':') };
            let mut new = None;
            match first {
                '{' | '[' => self.flow.push(current.take().unwrap_or_else(|| self.parent().to_owned())),
                '}' | ']' => drop(self.flow.pop()),
                ',' => current = None,
                '&' | '*' | '<' => return None,
                '|' | '>' if self.flow.is_empty() => self.text = Some(indent),
                ' ' | '\t' | '-' => {}
                _ if word.len() > bare.len() && !quoted || quoted && after.starts_with(':') => {
                    let is_flow = !self.flow.is_empty();
                    self.block.retain(|(above, _)| is_flow || *above < column);
                    let parent = self.parent();
                    let found = KEYS.iter().find(|(under, old, _)| *old == bare && under.contains(&parent));
                    new = found.map(|(_, old, new)| (*old, *new));
                    self.block.extend((!is_flow).then(|| (column, bare.to_owned())));
                    current = Some(bare.to_owned());
                }
                _ => {
                    let key = current.as_deref().unwrap_or_else(|| self.parent());
                    if key == INVERTED {
                        out.push_str(opposite(bare)?);
                        continue;
                    }
                    new =
                        VALUES.iter().find(|(of, old, _)| *of == key && *old == bare).map(|(_, old, new)| (*old, *new));
                }
            }
            out.push_str(&new.map_or_else(|| word.to_owned(), |(old, new)| word.replace(old, new)));
        }
        Some(out + rest)
    }
}

fn has_old_name(line: &str) -> bool {
    let is_old =
        |word: &str| KEYS.iter().any(|(_, old, _)| *old == word) || VALUES.iter().any(|(_, old, _)| *old == word);
    line.split(|c: char| !c.is_alphanumeric()).any(is_old)
}

/// Whether a line makes its object a policy.
fn names_policy(line: &str) -> bool {
    let kind = line.trim_start().trim_start_matches("- ").strip_prefix("kind:");
    kind.is_some_and(|kind| kind.split('#').next().is_some_and(|kind| kind.contains(KIND)))
}

/// The text with the new names, and the numbers of the lines that a person has to check. Documents of other kinds stay.
fn migrated(text: &str) -> (String, Vec<usize>) {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let (mut out, mut unread, mut number) = (String::new(), Vec::new(), 0);
    for document in lines.chunk_by(|_, next| !next.starts_with("---")) {
        let (is_policy, mut place) = (document.iter().any(|line| names_policy(line)), Place::default());
        for line in document {
            number += 1;
            let bare = line.trim_end_matches(['\r', '\n']);
            let new = if is_policy { place.line(bare) } else { Some(bare.to_owned()) };
            unread.extend((new.is_none() && has_old_name(line)).then_some(number));
            out.push_str(new.as_deref().unwrap_or(bare));
            out.push_str(&line[bare.len()..]);
        }
    }
    (out, unread)
}

/// The same for a whole file; `None`: no policy is in it.
fn migrated_file(text: &str) -> anyhow::Result<Option<(String, Vec<usize>)>> {
    let has_policy = objects_in(text)?.iter().any(|object| object["kind"] == KIND);
    Ok(has_policy.then(|| migrated(text)))
}

/// Replaces a file as a whole: an interruption leaves the old one. A symbolic link stays, and its target is replaced.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let path = path.canonicalize()?;
    // A name that the next run knows: it removes what an interrupted one has left.
    let new = path.with_added_extension("nrh-new");
    let _ = fs::remove_file(&new);
    let permissions = fs::metadata(&path)?.permissions();
    let mut file = File::create_new(&new).with_context(|| format!("cannot create {}", new.display()))?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.set_permissions(permissions));
    let replaced = written.and_then(|()| file.sync_all()).and_then(|()| fs::rename(&new, &path));
    if replaced.is_err() {
        let _ = fs::remove_file(&new);
    }
    Ok(replaced?)
}

/// What is printed between two files, so that their documents stay apart.
fn between(before: &str, next: &str) -> String {
    let end = if before.ends_with('\n') { "" } else { "\n" };
    let separator = if next.starts_with("---") { "" } else { "---\n" };
    format!("{end}{separator}")
}

/// Prints or rewrites the files.
///
/// # Errors
/// A file cannot be read or written, or has lines that a person has to change.
pub fn run(args: &MigrateArgs) -> anyhow::Result<()> {
    let (mut left, mut before) = (0, None::<String>);
    for path in &args.files {
        let shown = path.display();
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
        let done = migrated_file(&text).with_context(|| format!("cannot use {shown}"))?;
        let (new, unread) = done.unwrap_or_else(|| {
            complain(&format!("{shown}: no {KIND} in it, nothing to migrate"));
            (text.clone(), Vec::new())
        });
        left += unread.len();
        for line in unread {
            complain(&format!("{shown}:{line} is unchanged, since it has an anchor, an alias or an open quote"));
        }
        if args.in_place {
            if new != text {
                replace(path, &new).with_context(|| format!("cannot write {shown}"))?;
            }
        } else {
            let separator = before.map_or_else(String::new, |before| between(&before, &new));
            crate::terminal::print_file(&format!("{separator}{new}"))?;
            before = Some(new);
        }
    }
    anyhow::ensure!(left == 0, "{left} line(s) with an old name are unchanged: change them yourself");
    Ok(())
}

#[cfg(test)]
#[test]
fn old_policies_get_todays_names_and_keep_their_comments() {
    let sample = (include_str!("../tests/migrate/sample.yaml"), include_str!("../config/samples/policy.yaml"));
    let flow = (include_str!("../tests/migrate/flow.yaml"), include_str!("../tests/cluster/definitions/policy.yaml"));
    for (old, new) in [sample, flow] {
        let read = |text: &str| serde_saphyr::from_str::<serde_json::Value>(text).unwrap();
        let (found, unread) = migrated(old);
        assert_eq!(
            (read(&found), unread, found.matches('#').count()),
            (read(new), Vec::new(), old.matches('#').count())
        );
        assert_eq!(migrated(&found).0, found, "today's names stay");
    }
    for line in ["  # keepFor: 1h", "labels: {for: x, within: y}", "message: \"attempts: 3\"", "at: 12:30:00"] {
        assert_eq!(Place::default().line(line).unwrap(), line);
    }
    let policy = |rest: &str| migrated(&format!("kind: RemediationPolicy\n{rest}"));
    assert_eq!(policy("steps: *same\nsignal: &one Kill\n").1, [3], "an alias needs no change, an old name does");
    assert!(Place::default().line("steps: *same").is_none() && Place::default().line("note: 'open").is_none());
    assert_eq!(policy("message: |\n  signal: Kill\nsignal: Kill").0.matches("SIGKILL").count(), 1);
}

#[cfg(test)]
#[test]
fn a_reboot_without_a_drain_never_becomes_one_by_another_spelling_and_other_documents_stay() {
    for (old, new) in
        [("False", "true"), ("no", "true"), ("false\t# why", "true\t# why"), ("TRUE", "false"), ("on", "false")]
    {
        let policy = |key: &str, value: &str| format!("kind: RemediationPolicy\r\nreboot:\r\n  {key}: {value}\r\n");
        assert_eq!(migrated(&policy(INVERTED, old)), (policy("requireDrain", new), Vec::new()), "{old}");
    }
    assert_eq!(migrated("kind: RemediationPolicy\nreboot: {evenIfNotDrained: maybe}\n").1, [2]);
    let other = "# beside a RemediationPolicy\nkind: Other # no RemediationPolicy\nsignal: Kill\n---\n";
    assert_eq!(migrated(&format!("{other}kind: RemediationPolicy\nsignal: Kill\n")).0.matches("SIGKILL").count(), 1);
}

#[cfg(test)]
#[test]
fn files_that_are_printed_one_after_the_other_stay_documents_of_their_own() {
    for (one, two) in [("kind: A\n", "kind: B\n"), ("kind: A", "kind: B"), ("kind: A\n", "---\nkind: B\n")] {
        let printed = format!("{one}{}{two}", between(one, two));
        assert_eq!(objects_in(&printed).unwrap().len(), 2, "{printed}");
    }
}

#[cfg(test)]
#[test]
fn a_file_without_a_policy_is_told_from_one_and_one_that_cannot_be_read_is_an_error() {
    let policy = "kind: RemediationPolicy\nsignal: Kill\n";
    let list = format!("kind: List\nitems:\n- {}\n", policy.trim_end().replace('\n', "\n  "));
    for text in [policy, &format!("kind: Other\n---\n{policy}"), &list] {
        assert!(migrated_file(text).unwrap().unwrap().0.contains("SIGKILL"), "{text}");
    }
    for text in ["", "# RemediationPolicy\n", "kind: ConfigMap\ndata: {of: RemediationPolicy}\n"] {
        assert_eq!(migrated_file(text).unwrap(), None, "{text}");
    }
    assert!(migrated_file("kind: RemediationPolicy\nspec: [\n").is_err());
}

#[cfg(all(test, unix))]
#[test]
fn a_file_is_replaced_as_a_whole_and_keeps_its_mode_and_its_link() {
    use std::os::unix::fs::{PermissionsExt, symlink};

    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("policy.yaml"), folder.path().join("link.yaml"));
    fs::write(&file, "kind: RemediationPolicy\nsignal: Kill\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    symlink(&file, &link).unwrap();
    fs::write(folder.path().join("policy.yaml.nrh-new"), "kind: Remed").unwrap();
    let mut open = File::open(&file).unwrap();
    run(&MigrateArgs { files: vec![link.clone()], in_place: true }).unwrap();

    assert_eq!(fs::read_to_string(&file).unwrap(), "kind: RemediationPolicy\nsignal: SIGKILL\n");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
    let old = std::io::read_to_string(&mut open).unwrap();
    assert_eq!(old, "kind: RemediationPolicy\nsignal: Kill\n", "a reader that has opened the old file reads it whole");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "what an interrupted run has left is gone");
}
