//! Rules of the source tree that the compiler cannot check.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::path::{Path, PathBuf};

use nrh::core::action::ActionType;
use nrh::core::fault::FaultType;
use syn::visit::Visit;
use syn::{ReturnType, Type};

use crate::page::{files_below, root};

/// The part of a file before the tests at its end. Tests in a file of their own are only named in it.
pub fn before_tests(text: &str) -> &str {
    const TESTS: &str = "#[cfg(test)]\n";
    let is_end = |at: usize| {
        let rest = &text[at + TESTS.len()..];
        (at == 0 || text[..at].ends_with('\n')) && !rest.lines().next().is_some_and(|line| line.ends_with(';'))
    };
    let end = text.match_indices(TESTS).map(|(at, _)| at).find(|at| is_end(*at));
    &text[..end.unwrap_or(text.len())]
}

/// Lines of code below a folder, each with its file and number.
fn code_below(folder: &str) -> Vec<(PathBuf, usize, String)> {
    let files = rust_files(folder).into_iter().filter(|path| !is_test(path));
    files
        .flat_map(|path| {
            let text = fs::read_to_string(&path).unwrap();
            code(&text).map(|(number, line)| (path.clone(), number, line.to_owned())).collect::<Vec<_>>()
        })
        .collect()
}

/// Lines of code: without comments and tests.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    before_tests(text)
        .lines()
        .enumerate()
        .map(|(number, line)| (number + 1, line.split("//").next().unwrap_or_default()))
}

#[test]
fn a_file_is_read_up_to_the_tests_that_stand_in_it() {
    let (named, inline) = ("#[cfg(test)]\nmod tests;\nfn a() {}\n", "#[cfg(test)]\nmod tests {}\n");
    assert_eq!(before_tests(&format!("{named}{inline}")), named);
    assert_eq!(before_tests(named), named);
}

/// Whether `word` stands in `line` with no letter, digit or underscore beside it.
fn has_word(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].chars().next_back().is_some_and(part) && !line[at + word.len()..].chars().next().is_some_and(part)
    })
}

pub fn rust_files(folder: &str) -> Vec<PathBuf> {
    files_below(&root().join(folder)).into_iter().filter(|path| path.extension().is_some_and(|e| e == "rs")).collect()
}

#[test]
fn the_core_decides_from_its_arguments_alone() {
    let forbidden = [
        "kube",
        "k8s_openapi",
        "tokio",
        "tracing",
        "rand",
        "getrandom",
        "SystemTime",
        "Instant::now",
        "Timestamp::now",
        "Zoned::now",
        "std::env",
        "std::fs",
        "std::net",
        "std::process",
        "std::thread",
    ];
    let mut wrong = Vec::new();
    let lines = code_below("crates/core/src");
    for (path, number, line) in &lines {
        for word in forbidden.iter().filter(|word| has_word(line, word)) {
            wrong.push(format!("{}:{number}: {word}: {}", path.display(), line.trim()));
        }
    }
    assert!(lines.len() > 3_000, "expected the core below crates/core/src, found {} lines", lines.len());
    let wrong = wrong.join("\n");
    assert!(wrong.is_empty(), "crates/core must not name these; pass what is needed as an argument:\n{wrong}");
}

/// What is true of a fault stands in its file below `faults/`; what an action is and how it proceeds, below `action/` and `procedure/`.
#[test]
fn the_engine_names_no_fault_and_no_action() {
    let faults = FaultType::ALL.into_iter().map(FaultType::as_str);
    let actions = ActionType::ALL.into_iter().map(ActionType::as_str);
    let names: Vec<String> = faults.chain(actions).map(|name| format!("::{name}")).collect();
    let types = ["FaultType", "Action", "ActionType"];
    let globs = ["use crate::fault::FaultType as", "use crate::action::ActionType as", "ActionType::{", "Action::{"];
    let lines = code_below("crates/core/src/engine");
    for (path, number, line) in &lines {
        let found = names.iter().find(|name| types.iter().any(|of| has_word(line, &format!("{of}{name}"))));
        assert_eq!(found, None, "{}:{number}: ask its spec() or its traits()", path.display());
        assert!(!globs.iter().any(|glob| line.contains(glob)), "{}:{number}: {line}", path.display());
    }
    assert!(lines.len() > 1_000, "expected the engine, found {} lines", lines.len());
}

/// Functions of a file whose name asks a question, with what they return.
#[derive(Default)]
struct Questions(Vec<(String, bool)>);

impl<'a> Visit<'a> for Questions {
    fn visit_signature(&mut self, signature: &'a syn::Signature) {
        let name = signature.ident.to_string();
        if name.starts_with("is_") || name.starts_with("has_") {
            let is_bool = matches!(&signature.output, ReturnType::Type(_, kind) if matches!(&**kind, Type::Path(path) if path.path.is_ident("bool")));
            self.0.push((name, is_bool));
        }
    }
}

/// A function that says why not is named after what it requires.
#[test]
fn a_question_of_the_core_is_answered_with_yes_or_no() {
    for path in rust_files("crates/core/src") {
        let mut questions = Questions::default();
        questions.visit_file(&syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap());
        let wrong: Vec<_> = questions.0.into_iter().filter(|(_, is_bool)| !is_bool).collect();
        assert!(wrong.is_empty(), "{}: {wrong:?}", path.display());
    }
}

/// The crates of this workspace that a manifest names, tests left out.
fn own_dependencies(folder: &str) -> Vec<String> {
    let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
    let (shipped, _) = manifest.split_once("[dev-dependencies]").unwrap_or((&manifest, ""));
    let names = shipped.lines().filter_map(|line| line.strip_prefix("nrh-")?.split([' ', '.']).next());
    names.map(ToOwned::to_owned).collect()
}

/// The rest follows: the compiler finds nothing of a crate that is not named.
#[test]
fn each_crate_knows_only_those_below_it() {
    let expected: [(&str, &[&str]); 9] = [
        ("api", &["core"]),
        ("caller", &[]),
        ("controller", &["api", "core", "server"]),
        ("core", &[]),
        ("explain", &["api", "caller", "core", "terminal"]),
        ("node", &["api", "core", "server"]),
        ("server", &[]),
        ("simulate", &["core"]),
        ("terminal", &["core"]),
    ];
    let folders = fs::read_dir(root().join("crates")).unwrap();
    let mut crates: Vec<_> = folders.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    crates.sort();
    assert_eq!(crates, expected.map(|(name, _)| name));
    for (name, below) in expected {
        assert_eq!(own_dependencies(&format!("crates/{name}")), below, "crates/{name}");
    }
    let api = fs::read_to_string(root().join("crates/api/Cargo.toml")).unwrap();
    assert!(!api.contains("\ntokio") && !api.contains("\ntracing"), "the kinds need no runtime and write no logs");
}

#[test]
fn all_that_is_printed_passes_through_one_place() {
    let raw = ["println", "print!", "eprintln", "eprint", "dbg", "io::stdout", "io::stderr"];
    for (path, number, line) in ["src", "crates"].into_iter().flat_map(code_below) {
        if path.ends_with("crates/terminal/src/lib.rs") || path.ends_with("src/telemetry.rs") {
            continue;
        }
        let wrong = raw.into_iter().find(|word| has_word(&line, word));
        let at = format!("{}:{number}", path.display());
        assert_eq!(wrong, None, "{at}: print by crates/terminal, which hides what terminals obey");
    }
}

#[test]
fn a_file_has_one_subject() {
    const LONGEST: usize = 400;
    let long: Vec<(usize, PathBuf)> = ["src", "crates", "tests", "testbed"]
        .iter()
        .flat_map(|folder| rust_files(folder))
        .map(|path| (fs::read_to_string(&path).unwrap().lines().count(), path))
        .filter(|(lines, _)| *lines > LONGEST)
        .collect();
    for (lines, path) in &long {
        println!("long: {}: {lines} lines", path.display());
    }
    // Tables of cases may be long; what runs may not.
    let wrong: Vec<_> = long.iter().filter(|(_, path)| !is_test(path)).collect();
    assert!(wrong.is_empty(), "longer than {LONGEST} lines, to be split by subject: {wrong:#?}");
}

pub fn is_test(path: &Path) -> bool {
    let within = path.strip_prefix(root()).unwrap_or(path);
    within.components().any(|part| part.as_os_str() == "tests")
        || within.file_stem().is_some_and(|name| name.to_string_lossy().ends_with("tests"))
}

#[test]
fn modules_are_named_after_things() {
    let vague = ["util", "utils", "common", "helper", "helpers", "misc", "manager"];
    for path in ["src", "crates", "testbed"].iter().flat_map(|folder| rust_files(folder)) {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert!(!vague.contains(&name.as_str()), "{}: name it after what it is about", path.display());
    }
}

#[test]
fn the_repository_speaks_of_itself_only() {
    // Put together here, so that this file does not hold what it looks for.
    let phrases = [
        ["/wo", "rk/"],
        ["Clau", "de"],
        ["Anthr", "opic"],
        ["Chat", "GPT"],
        ["AI-gen", "erated"],
        ["language mo", "del"],
    ]
    .map(|halves| halves.concat());
    let mut wrong = Vec::new();
    for path in files_below(root()) {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        for (number, line) in text.lines().enumerate() {
            for phrase in phrases.iter().filter(|phrase| line.contains(phrase.as_str())) {
                wrong.push(format!("{}:{}: {phrase}", path.display(), number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "of no meaning to a reader elsewhere:\n{}", wrong.join("\n"));
}

#[test]
fn the_words_are_found() {
    assert!(has_word("use kube::Client;", "kube") && !has_word("kubelet", "kube") && !has_word("operand", "rand"));
    assert_eq!(code("a // kube\n#[cfg(test)]\nkube").map(|(_, line)| line).collect::<String>(), "a ");
}
