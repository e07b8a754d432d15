//! A document in Markdown, taken apart.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

pub const DEVELOPERS: [&str; 2] = ["ARCHITECTURE.md", "CONTRIBUTING.md"];

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A document: where it lies, and its text.
pub(crate) struct Page {
    pub path: PathBuf,
    pub text: String,
}

impl Page {
    pub fn read(path: &Path) -> Self {
        Self { path: path.strip_prefix(root()).unwrap().to_owned(), text: fs::read_to_string(path).unwrap() }
    }

    pub fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Code blocks with their language: between fences, or indented by four.
    pub fn blocks(&self) -> Vec<(&str, String)> {
        let mut found = Vec::new();
        let mut fence: Option<(&str, String)> = None;
        let mut indented = String::new();
        for line in self.text.lines() {
            if let Some(language) = line.trim_start().strip_prefix("```") {
                fence = match fence.take() {
                    Some(block) => {
                        found.push(block);
                        None
                    }
                    None => Some((language, String::new())),
                };
            } else if let Some((_, block)) = &mut fence {
                block.push_str(line);
                block.push('\n');
            } else if line.starts_with("    ") {
                indented.push_str(line.trim_start());
                indented.push('\n');
            }
        }
        assert!(fence.is_none(), "{}: a code block does not end", self.name());
        found.push(("sh", indented));
        found
    }

    /// The text without its code blocks, and so without what only looks like a heading or a link.
    pub fn prose(&self) -> String {
        let mut is_code = false;
        let mut kept = String::new();
        for line in self.text.lines() {
            if line.trim_start().starts_with("```") {
                is_code = !is_code;
            } else if !is_code {
                kept.push_str(line);
                kept.push('\n');
            }
        }
        kept
    }

    /// What stands between backticks in its prose.
    pub fn spans(&self) -> Vec<String> {
        self.prose().split('`').skip(1).step_by(2).map(ToOwned::to_owned).collect()
    }

    /// Each command of its code blocks and its prose: without a prompt, comments, and where its output goes.
    pub fn commands(&self) -> Vec<String> {
        let shown = self.blocks().into_iter().filter(|(language, _)| ["sh", "console"].contains(language));
        let mut lines: Vec<String> =
            shown.flat_map(|(_, block)| block.lines().map(ToOwned::to_owned).collect::<Vec<_>>()).collect();
        lines.extend(self.spans());
        let mut commands = Vec::new();
        for line in lines {
            let line = line.split(" #").next().unwrap_or_default();
            for part in line.split("&&").flat_map(|part| part.split([';', '|', '>'])) {
                let part = part.trim().trim_start_matches("$ ");
                commands.push(part.split_once(" -- /").map_or(part, |(_, inner)| inner).trim().to_owned());
            }
        }
        commands
    }

    /// Anchors of its headings, as GitHub makes them.
    pub fn anchors(&self) -> BTreeSet<String> {
        let heads = self.prose();
        let heads =
            heads.lines().filter_map(|line| line.strip_prefix('#')).map(|line| line.trim_start_matches('#').trim());
        let anchor = |head: &str| -> String {
            let kept = head.to_lowercase().replace(' ', "-");
            kept.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
        };
        heads.map(anchor).collect()
    }
}

/// All files below a folder that Git could hold, in order, without links; a file is itself.
pub fn files_below(path: &Path) -> Vec<PathBuf> {
    if !path.is_dir() {
        return vec![path.to_owned()];
    }
    let mut entries: Vec<PathBuf> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.retain(|entry| !entry.ends_with("target") && !entry.ends_with(".git") && !entry.is_symlink());
    entries.sort();
    entries.iter().flat_map(|entry| files_below(entry)).collect()
}

/// The documents below a folder, in order.
pub fn in_folder(folder: &str) -> impl Iterator<Item = Page> {
    let files = files_below(&root().join(folder)).into_iter();
    files.filter(|path| path.extension().is_some_and(|end| end == "md")).map(|path| Page::read(&path))
}

pub fn pages() -> Vec<Page> {
    let mut found: Vec<Page> =
        ["README.md", "SECURITY.md", "CHANGELOG.md"].iter().chain(&DEVELOPERS).map(|name| page(name)).collect();
    found.extend(in_folder("docs"));
    assert!(found.len() > 60, "{}", found.len());
    found
}

pub fn page(name: &str) -> Page {
    Page::read(&root().join(name))
}
