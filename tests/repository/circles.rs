//! Files that import one another in a circle can only be understood together. There are none.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use syn::visit::{self, Visit};
use syn::{Attribute, File, Item, UseTree};

use crate::architecture::{is_test, rust_files};
use crate::page::root;

/// A module, as its path below the root of its crate.
pub type Module = Vec<String>;

/// The paths that a file names.
struct Paths<'m> {
    module: &'m [String],
    named: Vec<Module>,
}

impl Paths<'_> {
    /// A path below the root of the crate, if it is one of this crate.
    fn name(&mut self, segments: &[String]) {
        let (mut at, mut rest) = (self.module.to_vec(), segments);
        match rest.first().map(String::as_str) {
            Some("crate") => at.clear(),
            Some("self" | "super") => {}
            _ => return,
        }
        while let Some((first, after)) = rest.split_first() {
            match first.as_str() {
                "super" => drop(at.pop()),
                "self" | "crate" => {}
                other => at.push(other.to_owned()),
            }
            rest = after;
        }
        self.named.push(at);
    }

    fn tree(&mut self, above: &[String], tree: &UseTree) {
        let below = |name: &dyn ToString| [above, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.tree(&below(&path.ident), &path.tree),
            UseTree::Name(name) => self.name(&below(&name.ident)),
            UseTree::Rename(name) => self.name(&below(&name.ident)),
            UseTree::Glob(_) => self.name(above),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(above, tree)),
        }
    }
}

impl<'a> Visit<'a> for Paths<'_> {
    fn visit_item(&mut self, item: &'a Item) {
        let attributes: &[Attribute] = match item {
            Item::Mod(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            _ => &[],
        };
        let is_test = |attribute: &Attribute| {
            attribute.path().is_ident("cfg") && attribute.parse_args::<syn::Ident>().is_ok_and(|what| what == "test")
        };
        if !attributes.iter().any(is_test) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        self.tree(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.name(&segments);
        visit::visit_path(self, path);
    }
}

fn module(folder: &Path, file: &Path) -> Module {
    let within = file.strip_prefix(folder).unwrap().with_extension("");
    let parts = within.iter().map(|part| part.to_string_lossy().into_owned());
    parts.filter(|part| !matches!(part.as_str(), "lib" | "main" | "mod")).collect()
}

/// Which modules of a crate each of its modules names, in order. A child may use what its parents hand to all of their children.
pub fn imports(folder: &str) -> Vec<(Module, Module)> {
    let place = root().join(folder);
    let files: BTreeMap<Module, File> = rust_files(folder)
        .into_iter()
        .filter(|path| !is_test(path))
        .map(|path| (module(&place, &path), syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap()))
        .collect();
    let mut found = BTreeSet::new();
    for (module, file) in &files {
        let mut paths = Paths { module, named: Vec::new() };
        paths.visit_file(file);
        for named in paths.named {
            // What is named within a module is that module's.
            let to = (0..=named.len()).rev().map(|length| named[..length].to_vec()).find(|to| files.contains_key(to));
            if let Some(to) = to.filter(|to| !module.starts_with(to)) {
                found.insert((module.clone(), to));
            }
        }
    }
    found.into_iter().collect()
}

/// The circles of a crate, each as its files in order.
fn circles(folder: &str) -> BTreeSet<Vec<String>> {
    let imports = imports(folder);
    let modules: BTreeSet<&Module> = imports.iter().flat_map(|(from, to)| [from, to]).collect();
    let modules: Vec<&Module> = modules.into_iter().collect();
    let place = |module: &Module| modules.binary_search(&module).unwrap();
    let mut graph = DiGraphMap::<usize, ()>::new();
    for (from, to) in &imports {
        graph.add_edge(place(from), place(to), ());
    }
    let name = |place: &usize| format!("{folder}/{}.rs", modules[*place].join("/"));
    let circle = |files: Vec<usize>| files.iter().map(name).collect::<BTreeSet<_>>().into_iter().collect();
    tarjan_scc(&graph).into_iter().filter(|files| files.len() > 1).map(circle).collect()
}

#[test]
fn no_files_import_one_another_in_a_circle() {
    let entries = fs::read_dir(root().join("crates")).unwrap();
    let mut folders: Vec<String> =
        entries.map(|entry| format!("crates/{}/src", entry.unwrap().file_name().display())).collect();
    folders.sort();
    folders.extend(["src", "testbed/src"].map(ToOwned::to_owned));
    let all: Vec<Vec<String>> = folders.iter().flat_map(|folder| circles(folder)).collect();
    assert!(all.is_empty(), "these files import one another in a circle: {all:#?}");
}
