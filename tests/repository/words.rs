//! Words that this project does not use any more, and what it says instead.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::path::PathBuf;

use crate::architecture::before_tests;
use crate::page::{DEVELOPERS, files_below, root};

/// Retired words and their replacements. All forms of a word are listed.
const RETIRED: [(&[&str], &str); 22] = [
    (&["episode", "episodes"], "remediation"),
    (&["rung", "rungs"], "step, step index"),
    (&["ladder", "ladders"], "steps"),
    (&["wish", "wishes", "start by hand", "starts by hand", "started by hand"], "manual request"),
    (&["look", "looks", "looked", "looking", "last look"], "check, preflight; relist (of the kubelet)"),
    (&["lane", "lanes"], "collector, executor"),
    (&["act", "acts", "acted", "acting"], "action, execute"),
    (&["held"], "blocked"),
    (&["veto", "vetoes", "vetoed"], "exclusion"),
    (&["outlook", "outlooks"], "status view"),
    (&["told", "tells"], "report, notify, message"),
    (&["order", "orders", "ordered"], "command"),
    (&["undo", "undone", "put back", "puts back", "putting back"], "cleanup"),
    (&["contained"], "quarantined"),
    (&["heir", "heirs"], "successor"),
    (&["relapse", "relapses"], "recurrence"),
    (&["going down"], "pending reboot"),
    (&["cure", "cures", "cured"], "resolution, clear check"),
    (&["heal", "heals", "healed", "healing"], "resolve, remediate"),
    (&["deaf", "blind"], "unresponsive; unavailable, degraded"),
    (&["leftover", "leftovers", "stranger", "strangers"], "orphan; untracked process"),
    (&["sick", "sickness"], "faulty; injected fault"),
];

/// Uses that stay, each with its reason.
const ALLOWED: [(&str, &str); 14] = [
    ("in the order", "a sequence"),
    ("in their order", "a sequence"),
    ("in its order", "a sequence"),
    ("in any order", "a sequence"),
    ("in this order", "a sequence"),
    ("in order", "a sequence"),
    ("in that order", "a sequence"),
    ("order of", "a sequence"),
    ("same order", "a sequence"),
    ("byte order", "of a message on the bus"),
    ("self-healing", "the name of a condition"),
    ("/healing::", "the name of tests"),
    ("shop/orders", "the name of a pod in an example"),
    ("is held by", "a Lease has a holder"),
];

fn files(folder: &str, ends: &[&str]) -> Vec<PathBuf> {
    let mut found = files_below(&root().join(folder));
    found.retain(|path| path.extension().is_some_and(|end| ends.iter().any(|known| end == *known)));
    found
}

/// The retired words of a text, each with its replacement.
fn retired(text: &str) -> Vec<(&'static str, &'static str)> {
    let mut text = text.to_lowercase();
    for (phrase, _) in ALLOWED {
        text = text.replace(phrase, " ");
    }
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    let words: Vec<&str> = text.split(|c| !is_word(c)).filter(|word| !word.is_empty()).collect();
    let has = |phrase: &str| {
        let parts: Vec<&str> = phrase.split(' ').collect();
        words.windows(parts.len()).any(|some| some == parts)
    };
    let all = RETIRED.iter().flat_map(|(forms, new)| forms.iter().map(move |form| (*form, *new)));
    all.filter(|(form, _)| has(form)).collect()
}

/// The string literals of Rust source before its tests, without what a format string names, each with its line.
fn literals(source: &str) -> Vec<(usize, String)> {
    let source = before_tests(source);
    let (mut found, mut rest, mut line) = (Vec::new(), source, 1);
    while let Some(first) = rest.chars().next() {
        let raw = rest.starts_with("r\"") || rest.starts_with("r#\"");
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if raw {
            let open = rest.find('"').unwrap() + 1;
            let close = if rest.starts_with("r#") { "\"#" } else { "\"" };
            let end = rest[open..].find(close).map_or(rest.len(), |at| open + at);
            found.push((line, rest[open..end].to_owned()));
            (end + close.len()).min(rest.len())
        } else if first == '"' {
            let mut escaped = false;
            let is_end = |c: char| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            };
            let end = rest[1..].find(is_end).map_or(rest.len(), |at| at + 1);
            found.push((line, rest[1..end].to_owned()));
            end + 1
        } else if rest.starts_with("'\"'") || rest.starts_with("'\\") {
            rest[2..].find('\'').map_or(rest.len(), |at| at + 3)
        } else {
            first.len_utf8()
        };
        let (done, after) = rest.split_at(length.min(rest.len()));
        line += done.matches('\n').count();
        rest = after;
    }
    found
}

/// The text without what stands in braces: names of code.
fn without_names(text: &str) -> String {
    let mut depth = 0_u32;
    let keep = |c: &char| {
        match c {
            '{' => depth += 1,
            '}' => {
                depth = depth.saturating_sub(1);
                return false;
            }
            _ => {}
        }
        depth == 0
    };
    text.chars().filter(keep).collect()
}

fn complain(unwanted: &[String]) {
    assert!(unwanted.is_empty(), "retired words:\n{}", unwanted.join("\n"));
}

#[test]
fn manifests_and_documents_use_todays_words() {
    let mut unwanted = Vec::new();
    let texts = files("crds", &["yaml"]).into_iter().chain(files("config", &["yaml", "service"]));
    let pages = ["README.md", "SECURITY.md"].iter().chain(&DEVELOPERS).map(|name| root().join(name));
    let texts = texts.chain(files("docs", &["md"])).chain(pages);
    for path in texts {
        let text = std::fs::read_to_string(&path).unwrap();
        for (number, line) in text.lines().enumerate() {
            for (word, new) in retired(line) {
                unwanted.push(format!("{}:{}: {word} -> {new}", path.display(), number + 1));
            }
        }
    }
    complain(&unwanted);
}

#[test]
fn the_command_line_uses_todays_words() {
    use clap::CommandFactory;

    let mut unwanted = Vec::new();
    let mut open = vec![nrh::cli::Cli::command(), nrh::cli::ProbeCli::command()];
    while let Some(mut command) = open.pop() {
        let help = command.render_long_help().to_string();
        unwanted.extend(retired(&help).iter().map(|(word, new)| format!("{}: {word} -> {new}", command.get_name())));
        open.extend(command.get_subcommands().cloned());
    }
    complain(&unwanted);
}

#[test]
fn messages_use_todays_words() {
    let mut unwanted = Vec::new();
    let is_shipped = |path: &PathBuf| {
        let path = path.strip_prefix(root()).unwrap().to_string_lossy();
        !["/tests", "/fuzz", "fake.rs", "examples.rs", "src/migrate.rs"].iter().any(|part| path.contains(part))
    };
    for path in files("src", &["rs"]).into_iter().chain(files("crates", &["rs"])).filter(is_shipped) {
        let source = std::fs::read_to_string(&path).unwrap();
        for (line, text) in literals(&source) {
            for (word, new) in retired(&without_names(&text)) {
                unwanted.push(format!("{}:{line}: {word} -> {new}: {text:.80}", path.display()));
            }
        }
    }
    complain(&unwanted);
}

#[test]
fn retired_words_are_found_and_nothing_else() {
    let of = |text| retired(text).into_iter().map(|(word, _)| word).collect::<Vec<_>>();
    assert_eq!(of("An Episode was held; its ladder"), ["episode", "ladder", "held"]);
    assert_eq!(of("the threshold, in the order of the spec; household, self-healing"), [] as [&str; 0]);
    assert_eq!(literals("let a = \"held\"; // \"told\"\nlet b = '\"';"), [(1, "held".to_owned())]);
    assert_eq!(without_names("node {told} is {x:?}"), "node  is ");
}
