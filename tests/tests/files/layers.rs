//! The layers of each daemon, and of the crates in its folder: a module at the top of the source uses only those that stand
//! above it in the table of `lib.rs`, so there is no circle among them, and a newcomer can read from the top. What is only
//! there for tests is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::build::workspace_root;

/// Folders below `bins` of the crates that have such a table.
const CRATES: &[&str] = &[
    "kubelet-syncd",
    "kubelet-syncd/model",
    "kubelet-syncd/edges",
    "kubelet-syncd/probes",
    "kubelet-syncd/pleg",
    "kubelet-syncd/images",
    "kubelet-syncd/runtime",
    "kubelet-syncd/volume-manager",
    "kubelet-syncd/container-manager",
    "kubelet-syncd/pod-resources",
    "kubelet-syncd/pods-api",
    "kubelet-volnetd",
    "kubelet-evictiond",
    "kubelet-statusd",
];

/// A Rust file: its path below `src`, and its text.
type Source = (PathBuf, String);

fn read(folder: &Path, below: &Path, found: &mut Vec<Source>) -> Result<()> {
    for entry in std::fs::read_dir(folder)?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            read(&path, below, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push((path.strip_prefix(below)?.to_owned(), std::fs::read_to_string(&path)?));
        }
    }
    Ok(())
}

/// The modules that a `lib.rs` declares for what is shipped.
fn declared(lib: &str) -> BTreeSet<String> {
    let mut for_tests = false;
    let mut modules = BTreeSet::new();
    for line in lib.lines() {
        if let Some((_, module)) = line.strip_suffix(';').and_then(|line| line.rsplit_once("mod "))
            && !std::mem::take(&mut for_tests)
        {
            modules.insert(module.to_owned());
        }
        for_tests |= line == "#[cfg(test)]" || line.starts_with("#[cfg(any(test, ");
    }
    modules
}

/// The modules of the table in a `lib.rs`, in its order.
fn table(lib: &str) -> Vec<String> {
    let cells = lib.lines().filter_map(|line| line.strip_prefix("//! | ")?.split(" | ").next());
    let names = cells.flat_map(|cell| cell.split(", ")).filter_map(|name| {
        let name = name.trim_start_matches('[').trim_end_matches(']');
        // A table of crates is the compiler's to hold.
        name.strip_prefix('`')?.strip_suffix('`').filter(|name| !name.starts_with("kubelet_"))
    });
    names.map(str::to_owned).collect()
}

/// Names that a `lib.rs` lends from its modules (`pub use module::Name;`), with the module.
fn lent(lib: &str) -> BTreeMap<String, String> {
    let mut lent = BTreeMap::new();
    for used in lib.lines().filter_map(|line| line.strip_prefix("pub use ")?.strip_suffix(';')) {
        let (module, names) = used.split_once("::").unwrap_or((used, ""));
        let names = names.rsplit("::").next().unwrap_or_default().trim_matches(['{', '}']);
        lent.extend(names.split(", ").map(|name| (name.to_owned(), module.to_owned())));
    }
    lent
}

/// Without comments and without the tests at its end.
fn shipped(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// The files that other files declare under `#[cfg(test)]`, as beginnings of paths.
fn for_tests(sources: &[Source]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for (path, text) in sources {
        let folder = path.parent().unwrap_or(Path::new(""));
        for (_, after) in text.match_indices("#[cfg(test)]\n").map(|(at, mark)| text.split_at(at + mark.len())) {
            let mut lines = after.lines();
            let first = lines.next().unwrap_or_default();
            if let Some(file) = first.strip_prefix("#[path = \"").and_then(|rest| rest.strip_suffix("\"]")) {
                found.push(folder.join(file));
            } else if let Some((_, module)) = first.strip_suffix(';').and_then(|line| line.rsplit_once("mod ")) {
                let own = match path.file_name().and_then(|name| name.to_str()) {
                    Some("mod.rs" | "lib.rs") | None => folder.to_owned(),
                    Some(_) => path.with_extension(""),
                };
                found.extend([own.join(format!("{module}.rs")), own.join(module)]);
            }
        }
    }
    found
}

/// The first name of each path in `{a, b::{c, d}}`.
fn first_names(group: &str) -> Vec<&str> {
    let (mut depth, mut from, mut names) = (0, 1, Vec::new());
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' | ',' => {
                if depth == 1 {
                    let name = word(group[from..at].trim());
                    // The last comma of a list on lines of its own is followed by none.
                    names.extend((!name.is_empty()).then_some(name));
                    from = at + 1;
                }
                depth -= usize::from(letter == '}');
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    names
}

/// The identifier that a text begins with.
fn word(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

/// Every name directly below the crate that a file uses. `depth`: how many `super` lead from it to the crate.
fn used(text: &str, depth: usize) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for root in ["crate::".to_owned(), "super::".repeat(depth)] {
        for (at, _) in text.match_indices(&root) {
            let before = text[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':' || c == '$') {
                continue;
            }
            let rest = &text[at + root.len()..];
            let names = if rest.starts_with('{') { first_names(rest) } else { vec![word(rest)] };
            found.extend(names.into_iter().map(str::to_owned));
        }
    }
    found
}

/// Each use of a module that does not stand above the one that uses it, with the file; and of the top of the crate.
fn wrong(sources: &[Source], order: &[String], lent: &BTreeMap<String, String>) -> Vec<String> {
    let place: BTreeMap<&str, usize> = order.iter().enumerate().map(|(at, module)| (module.as_str(), at)).collect();
    let for_tests = for_tests(sources);
    let mut wrong = Vec::new();
    for (path, text) in sources {
        let first = path.iter().next().and_then(|name| name.to_str()).unwrap_or_default();
        let module = first.trim_end_matches(".rs");
        let Some(own) = place.get(module) else { continue };
        if for_tests.iter().any(|tests| path.starts_with(tests)) {
            continue;
        }
        let is_root = path.file_name().is_some_and(|name| name == "mod.rs");
        let depth = path.iter().count() - usize::from(is_root);
        for other in used(&shipped(text), depth) {
            let other = lent.get(&other).unwrap_or(&other);
            match place.get(other.as_str()) {
                Some(other) if other <= own => {}
                Some(_) => wrong.push(format!("{}: `{module}` uses `{other}`, which stands below it", path.display())),
                None => {
                    wrong.push(format!("{}: `{module}` uses `{other}`, which is no module of lib.rs", path.display()))
                }
            }
        }
    }
    wrong
}

#[test]
fn modules_use_only_those_above_them_in_the_table() -> Result<()> {
    for name in CRATES {
        let folder = workspace_root().join("bins").join(name).join("src");
        let mut sources = Vec::new();
        read(&folder, &folder, &mut sources)?;
        let lib = std::fs::read_to_string(folder.join("lib.rs")).with_context(|| format!("lib.rs of {name}"))?;
        let order = table(&lib);
        let named: BTreeSet<String> = order.iter().cloned().collect();
        ensure!(named.len() == order.len(), "{name}: a module stands twice in the table of lib.rs: {order:?}");
        let modules = declared(&lib);
        ensure!(named == modules, "{name}: the table of lib.rs has {named:?}, the modules are {modules:?}");
        let wrong = wrong(&sources, &order, &lent(&lib));
        ensure!(wrong.is_empty(), "{name}:\n{}", wrong.join("\n"));
    }
    Ok(())
}

#[test]
fn each_way_to_name_another_module_is_seen() {
    let source = |path: &str, text: &str| (PathBuf::from(path), text.to_owned());
    let order: Vec<String> = ["low", "high"].map(str::to_owned).into();
    let lent = lent("pub use high::{Other, Thing};\n");
    let wrong = |sources: &[Source]| wrong(sources, &order, &lent);
    for text in [
        "use crate::high::Thing;",
        "use crate::{low::One, high};",
        "use crate::{\n    low::{One, Two},\n    high::Thing,\n};",
        "fn f() { crate::high::f(); }",
        "use super::super::high;",
        "use crate::Thing;",
    ] {
        let sources = [source("low/part.rs", text)];
        assert_eq!(wrong(&sources), ["low/part.rs: `low` uses `high`, which stands below it"], "{text}");
    }
    for text in ["use super::high;", "// crate::high", "#[cfg(test)]\nmod tests {\n    use crate::high;\n}"] {
        assert_eq!(wrong(&[source("low/part.rs", text)]), Vec::<String>::new(), "{text}");
    }
    let tests = [source("low/mod.rs", "#[cfg(test)]\nmod part;\n"), source("low/part.rs", "use crate::high;")];
    assert_eq!(wrong(&tests), Vec::<String>::new());
    assert_eq!(wrong(&[source("low.rs", "use super::high;")]).len(), 1);
}
