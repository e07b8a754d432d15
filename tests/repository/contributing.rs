//! What the pages for developers name exists: paths, `make` targets, the quoted lines of the examples, the modules of the core.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::path::Path;

use crate::circles::{Module, imports};
use crate::page::{DEVELOPERS, files_below, page, pages, root};

/// Whether a span is a path of the repository, and not a command or a name of code.
fn is_path(span: &str) -> bool {
    let of_paths = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    let file_ends = ["md", "rs", "toml", "txt", "yaml"];
    let is_file = Path::new(span).extension().is_some_and(|end| file_ends.iter().any(|known| end == *known));
    span.chars().all(of_paths) && (span.contains('/') || is_file || ["Makefile", "Dockerfile"].contains(&span))
}

#[test]
fn each_path_that_is_named_exists() {
    let (mut seen, mut missing) = (0, Vec::new());
    for page in DEVELOPERS.map(page) {
        for span in page.spans().into_iter().filter(|span| is_path(span)) {
            seen += 1;
            if !root().join(&span).exists() {
                missing.push(format!("{}: {span}", page.name()));
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(seen > 40, "{seen} paths");
}

#[test]
fn each_make_target_that_is_named_exists() {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let targets: Vec<&str> = makefile.lines().filter_map(|line| line.strip_prefix(".PHONY: ")).collect();
    let (mut seen, mut missing) = (0, Vec::new());
    for page in pages() {
        for command in page.commands() {
            let mut words = command.split_whitespace().skip_while(|word| word.contains('='));
            if words.next() != Some("make") {
                continue;
            }
            for target in words.filter(|word| !word.contains('=') && !word.starts_with('-')) {
                seen += 1;
                if !targets.contains(&target) {
                    missing.push(format!("{}: {command}", page.name()));
                }
            }
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(seen > 10, "{seen} targets");
}

/// A file or a folder that an example names, and the lines that it quotes of it.
struct Quotes {
    path: String,
    lines: Vec<String>,
}

/// The quotes of a block: `// PATH: about it`, then lines of that file, or words of a file below that folder.
fn quotes(block: &str) -> Vec<Quotes> {
    let mut found: Vec<Quotes> = Vec::new();
    for line in block.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(head) = line.strip_prefix("// ") {
            found.push(Quotes { path: head.split(':').next().unwrap().to_owned(), lines: Vec::new() });
        } else {
            let of = found.last_mut().unwrap_or_else(|| panic!("write `// PATH` before {line:?}"));
            of.lines.push(line.to_owned());
        }
    }
    found
}

/// What is wrong with the quotes of a file or a folder.
fn complaints(root: &Path, Quotes { path, lines }: &Quotes) -> Vec<String> {
    let place = root.join(path);
    if !place.exists() {
        return vec![format!("there is no {path}")];
    }
    let is_folder = place.is_dir();
    let texts: Vec<String> = files_below(&place).iter().filter_map(|file| fs::read_to_string(file).ok()).collect();
    let is_there = |line: &String| {
        let mut all = texts.iter().flat_map(|text| text.lines());
        all.any(|one| if is_folder { one.contains(line) } else { one.trim() == line })
    };
    lines.iter().filter(|line| !is_there(line)).map(|line| format!("{path} has no line {line:?}")).collect()
}

#[test]
fn the_examples_quote_lines_that_are_there() {
    let page = page("CONTRIBUTING.md");
    let blocks = page.blocks().into_iter().filter(|(language, _)| *language == "rust");
    let quotes: Vec<Quotes> = blocks.flat_map(|(_, block)| quotes(&block)).collect();
    for example in ["RunFilesystemFull", "ThawCgroup"] {
        let of = quotes.iter().flat_map(|quotes| &quotes.lines).filter(|line| line.contains(example)).count();
        assert!(of >= 3, "the example of {example} quotes {of} lines");
    }
    let wrong: Vec<String> = quotes.iter().flat_map(|quotes| complaints(root(), quotes)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_quote_that_is_not_there_is_found() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("list.rs"), "kinds! {\n    /// The first.\n    First,\n}\n").unwrap();
    let about = |block: &str| -> Vec<String> {
        quotes(block).iter().flat_map(|quotes| complaints(folder.path(), quotes)).collect()
    };
    assert_eq!(about("// list.rs: the list\n    First,\n\nkinds! {"), [] as [String; 0]);
    assert_eq!(about("// list.rs\nSecond,"), ["list.rs has no line \"Second,\""]);
    assert_eq!(about("// list.rs\nFirst"), ["list.rs has no line \"First\""], "a part of a line is no line");
    assert_eq!(about("// other.rs\nFirst,"), ["there is no other.rs"]);
    assert_eq!(about("// .\nFirst\nSecond"), [". has no line \"Second\""]);
    assert!(is_path("crates/core/src/fault.rs") && is_path("tests/scenarios") && is_path("Makefile"));
    assert!(!is_path("make check") && !is_path("SPEC") && !is_path("Action::CleanupOrphans(_)"));
}

/// The modules of the core as ARCHITECTURE.md lists them, the lowest first.
fn listed_modules() -> Vec<Module> {
    let page = page("ARCHITECTURE.md");
    let block = page.blocks().into_iter().find(|(_, block)| block.starts_with("crates/core/src\n")).unwrap().1;
    let names = block.lines().filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next());
    names.map(|name| name.split("::").map(ToOwned::to_owned).collect()).collect()
}

#[test]
fn each_module_of_the_core_is_listed_and_imports_only_modules_above_it() {
    let all = listed_modules();
    let lib = fs::read_to_string(root().join("crates/core/src/lib.rs")).unwrap();
    let modules =
        lib.lines().filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';'));
    // Examples for tests may name every module.
    let mut modules: Vec<Module> =
        modules.filter(|name| *name != "examples").map(|name| vec![name.to_owned()]).collect();
    let mut listed: Vec<Module> = all.iter().filter(|listed| listed.len() == 1).cloned().collect();
    modules.sort();
    listed.sort();
    assert_eq!(listed, modules, "the list of ARCHITECTURE.md, and crates/core/src/lib.rs");

    let place = |module: &Module| {
        let within = all.iter().enumerate().filter(|(_, listed)| module.starts_with(listed));
        within.max_by_key(|(_, listed)| listed.len()).map(|(at, _)| at)
    };
    let mut wrong = Vec::new();
    for (from, to) in imports("crates/core/src") {
        if let (Some(at), Some(of)) = (place(&from), place(&to))
            && of > at
        {
            wrong.push(format!("{} imports {}", from.join("::"), to.join("::")));
        }
    }
    assert!(wrong.is_empty(), "modules further down in the list of ARCHITECTURE.md: {wrong:#?}");
}
