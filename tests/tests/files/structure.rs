//! The shape of the workspace: who may depend on whom, where unsafe code lives, which process calls which, and whether the
//! documents name what there is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use bulkhead_testkit::build::workspace_root;
use serde_json::Value;

/// Each package and what of this workspace it may use in what is shipped. Direction: bins -> shared, never back.
const MAY_USE: &[(&str, &[&str])] = &[
    ("bulkhead-types", &[]),
    ("bulkhead-sys", &["bulkhead-types"]),
    ("bulkhead-config", &["bulkhead-types"]),
    ("bulkhead-cri", &["bulkhead-types", "bulkhead-trace"]),
    ("bulkhead-csi", &[]),
    ("bulkhead-device-plugin", &[]),
    ("bulkhead-dra", &[]),
    ("bulkhead-trace", &[]),
    ("bulkhead-worker", &["bulkhead-sys"]),
    ("bulkhead-helper", &["bulkhead-types", "bulkhead-sys", "bulkhead-ipc", "bulkhead-daemon"]),
    ("bulkhead-ipc", &["bulkhead-types", "bulkhead-sys", "bulkhead-trace"]),
    ("bulkhead-privileges", &["bulkhead-types", "bulkhead-sys", "bulkhead-config"]),
    (
        "bulkhead-daemon",
        &["bulkhead-types", "bulkhead-sys", "bulkhead-config", "bulkhead-ipc", "bulkhead-trace", "bulkhead-privileges"],
    ),
    ("bulkhead-apiclient", &["bulkhead-types", "bulkhead-sys", "bulkhead-config", "bulkhead-ipc"]),
    // It refuses what the managers of CPUs and memory cannot start with, by the function that kubelet-syncd starts them by.
    (
        "kubelet",
        &[
            "bulkhead-types",
            "bulkhead-sys",
            "bulkhead-config",
            "bulkhead-ipc",
            "bulkhead-daemon",
            "kubelet-container-manager",
        ],
    ),
    ("kubelet-journal", &["bulkhead-types", "bulkhead-sys", "bulkhead-ipc", "bulkhead-daemon", "bulkhead-helper"]),
    ("kubelet-iptables", &["bulkhead-types", "bulkhead-sys", "bulkhead-ipc", "bulkhead-daemon", "bulkhead-helper"]),
    ("kubelet-disks", &["bulkhead-types", "bulkhead-sys", "bulkhead-ipc", "bulkhead-daemon", "bulkhead-helper"]),
    (
        "kubelet-flexvolume",
        &["bulkhead-types", "bulkhead-sys", "bulkhead-config", "bulkhead-ipc", "bulkhead-daemon", "bulkhead-helper"],
    ),
    // It compares the privilege map with what /proc shows, so it reads both; it changes nothing of its own.
    ("kubelet-ctl", &["bulkhead-types", "bulkhead-config", "bulkhead-ipc", "bulkhead-privileges", "bulkhead-sys"]),
    (
        "kubelet-volnetd",
        &["bulkhead-types", "bulkhead-sys", "bulkhead-config", "bulkhead-ipc", "bulkhead-daemon", "bulkhead-worker"],
    ),
    (
        "kubelet-evictiond",
        &[
            "bulkhead-types",
            "bulkhead-sys",
            "bulkhead-config",
            "bulkhead-ipc",
            "bulkhead-daemon",
            "bulkhead-trace",
            "bulkhead-worker",
        ],
    ),
    (
        "kubelet-walker",
        &["bulkhead-types", "bulkhead-sys", "bulkhead-config", "bulkhead-ipc", "bulkhead-daemon", "bulkhead-worker"],
    ),
    // What is about one pod at a time, for kubelet-syncd alone.
    ("kubelet-model", &["bulkhead-types", "bulkhead-cri"]),
    (
        "kubelet-edges",
        &[
            "bulkhead-types",
            "bulkhead-sys",
            "bulkhead-ipc",
            "bulkhead-cri",
            "bulkhead-csi",
            "bulkhead-device-plugin",
            "bulkhead-dra",
        ],
    ),
    ("kubelet-pleg", &["bulkhead-types", "bulkhead-daemon", "bulkhead-cri", "kubelet-model"]),
    (
        "kubelet-images",
        &[
            "bulkhead-types",
            "bulkhead-sys",
            "bulkhead-config",
            "bulkhead-ipc",
            "bulkhead-cri",
            "bulkhead-apiclient",
            "kubelet-model",
        ],
    ),
    (
        "kubelet-probes",
        &[
            "bulkhead-types",
            "bulkhead-sys",
            "bulkhead-config",
            "bulkhead-ipc",
            "bulkhead-daemon",
            "bulkhead-cri",
            "bulkhead-apiclient",
            "kubelet-model",
            "kubelet-edges",
        ],
    ),
    (
        "kubelet-runtime",
        &[
            "bulkhead-types",
            "bulkhead-sys",
            "bulkhead-config",
            "bulkhead-ipc",
            "bulkhead-daemon",
            "bulkhead-cri",
            "bulkhead-trace",
            "kubelet-model",
            "kubelet-edges",
            "kubelet-probes",
        ],
    ),
    ("kubelet-volume-manager", &["bulkhead-types", "bulkhead-ipc", "bulkhead-csi", "kubelet-model", "kubelet-edges"]),
    ("kubelet-container-manager", &["bulkhead-types", "bulkhead-config", "bulkhead-device-plugin", "kubelet-model"]),
    ("kubelet-pod-resources", &[]),
    ("kubelet-pods-api", &["kubelet-pod-resources"]),
    (
        "kubelet-syncd",
        &[
            "bulkhead-types",
            "bulkhead-sys",
            "bulkhead-config",
            "bulkhead-ipc",
            "bulkhead-daemon",
            "bulkhead-cri",
            "bulkhead-csi",
            "bulkhead-device-plugin",
            "bulkhead-dra",
            "bulkhead-apiclient",
            "bulkhead-trace",
            "kubelet-model",
            "kubelet-edges",
            "kubelet-pleg",
            "kubelet-images",
            "kubelet-pod-resources",
            "kubelet-pods-api",
            "kubelet-probes",
            "kubelet-runtime",
            "kubelet-volume-manager",
            "kubelet-container-manager",
        ],
    ),
    (
        "kubelet-statusd",
        &[
            "bulkhead-types",
            "bulkhead-sys",
            "bulkhead-config",
            "bulkhead-ipc",
            "bulkhead-daemon",
            "bulkhead-apiclient",
            "bulkhead-trace",
        ],
    ),
];

/// Crates that only one of our packages may name.
const ONLY_IN: &[(&str, &[&str])] = &[
    ("libc", &["bulkhead-sys"]),
    ("landlock", &["bulkhead-sys"]),
    ("seccompiler", &["bulkhead-sys"]),
    ("caps", &["bulkhead-sys"]),
    // The largest library of the tree: memory and build time of the two daemons that talk to the API server, not of four.
    (
        "k8s-openapi",
        &[
            "kubelet-model",
            "kubelet-images",
            "kubelet-probes",
            "kubelet-runtime",
            "kubelet-volume-manager",
            "kubelet-container-manager",
            "kubelet-syncd",
            "kubelet-statusd",
            "bulkhead-apiclient",
        ],
    ),
    ("kube", &["kubelet-syncd", "kubelet-statusd", "bulkhead-apiclient"]),
];

/// Packages that are no part of what is shipped.
const DEVELOPMENT: &[&str] = &[
    "bulkhead-apiserver",
    "bulkhead-simulation",
    "bulkhead-simulation-kernel",
    "bulkhead-testkit",
    "bulkhead-tests",
    "xtask",
];

fn packages() -> Result<Vec<Value>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(workspace_root())
        .output()
        .context("starting cargo metadata")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    Ok(metadata["packages"].as_array().context("no packages")?.clone())
}

fn name(package: &Value) -> &str {
    package["name"].as_str().unwrap_or_default()
}

/// Names of the normal and build dependencies (`dev` left out).
fn dependencies(package: &Value) -> BTreeSet<String> {
    let all = package["dependencies"].as_array().cloned().unwrap_or_default();
    all.iter().filter(|one| one["kind"] != "dev").map(|one| name(one).to_owned()).collect()
}

#[test]
fn dependencies_point_from_programs_to_what_they_share() -> Result<()> {
    let packages = packages()?;
    let ours: BTreeSet<&str> = packages.iter().map(name).collect();
    let table: BTreeMap<&str, BTreeSet<&str>> =
        MAY_USE.iter().map(|(package, may)| (*package, may.iter().copied().collect())).collect();
    for package in &packages {
        let name = name(package);
        if DEVELOPMENT.contains(&name) {
            continue;
        }
        let may = table.get(name).with_context(|| format!("{name} is not in the table of this test"))?;
        for dependency in dependencies(package).iter().filter(|one| ours.contains(one.as_str())) {
            ensure!(may.contains(dependency.as_str()), "{name} must not depend on {dependency}");
        }
    }
    Ok(())
}

#[test]
fn system_crates_have_one_home() -> Result<()> {
    for package in packages()? {
        let name = name(&package);
        if DEVELOPMENT.contains(&name) {
            continue;
        }
        for dependency in dependencies(&package) {
            if let Some((_, homes)) = ONLY_IN.iter().find(|(one, _)| *one == dependency) {
                ensure!(homes.contains(&name), "{name} must not use {dependency}: that is for {homes:?}");
            }
        }
    }
    Ok(())
}

/// What a process without privileges may use of the system crate: the means to confine itself further, memory to pass on,
/// a clock, the size of a page, and the system bus, on which anybody may ask whether the machine goes down.
const SYS_FOR_THE_UNPRIVILEGED: &[&str] =
    &["seccomp", "fence", "Capability", "listen_fds", "memfd", "clock", "page", "dbus"];

#[test]
fn processes_without_privileges_use_the_system_crate_to_confine_themselves_only() -> Result<()> {
    for (path, text) in sources()? {
        if !["kubelet-syncd", "kubelet-statusd"].iter().any(|daemon| is_source_of(&path, daemon)) {
            continue;
        }
        for used in text.split("bulkhead_sys::").skip(1) {
            let module: String = used.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            ensure!(
                SYS_FOR_THE_UNPRIVILEGED.contains(&module.as_str()),
                "{} uses bulkhead_sys::{module}",
                path.display()
            );
        }
    }
    Ok(())
}

/// Of the daemon's own crate, or of a crate in a folder of it; not of its tests from outside.
fn is_source_of(path: &Path, daemon: &str) -> bool {
    path.starts_with(format!("bins/{daemon}")) && path.iter().any(|part| part == "src")
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            rust_files(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(())
}

fn sources() -> Result<Vec<(PathBuf, String)>> {
    let root = workspace_root();
    let mut files = Vec::new();
    for folder in ["bins", "shared", "tests", "xtask"] {
        rust_files(&root.join(folder), &mut files)?;
    }
    files
        .into_iter()
        .map(|path| {
            let text = std::fs::read_to_string(&path)?;
            Ok((path.strip_prefix(&root).unwrap_or(&path).to_owned(), text))
        })
        .collect()
}

#[test]
fn unsafe_code_lives_in_shared_sys_alone() -> Result<()> {
    // What is shipped; the simulation's own kernel stands below the standard library, and nothing that is shipped may use it.
    let homes = ["shared/sys", "tests/simulation/kernel"];
    // Put together here, so that this file does not find itself.
    let allowance = ["allow(unsafe", "_code)"].concat();
    for (path, text) in sources()? {
        if !homes.iter().any(|home| path.starts_with(home)) {
            ensure!(!text.contains(&allowance), "{} allows itself unsafe code", path.display());
        }
    }
    for package in packages()? {
        let manifest = std::fs::read_to_string(package["manifest_path"].as_str().unwrap_or_default())?;
        ensure!(
            manifest.contains("[lints]\nworkspace = true"),
            "{} does not take the workspace's lints",
            name(&package)
        );
    }
    Ok(())
}

/// `skip` of the test kit does, and counts: a test that passes without a word has not tried anything.
#[test]
fn no_test_leaves_itself_out_by_a_line_alone() -> Result<()> {
    for (path, text) in sources()?.into_iter().filter(|(path, _)| path.iter().any(|part| part == "tests")) {
        for word in ["left out", "skipped"] {
            let line = format!("eprintln!(\"{word}");
            ensure!(!text.contains(&line), "{} leaves something out and does not say so by skip", path.display());
        }
    }
    Ok(())
}

#[test]
fn every_module_says_what_it_is_for() -> Result<()> {
    for (path, text) in sources()? {
        // A module of unit tests is about the one it lies beside.
        if path.file_stem().is_some_and(|stem| stem.to_string_lossy().ends_with("tests")) {
            continue;
        }
        ensure!(text.starts_with("//!"), "{} does not begin with a //! line", path.display());
    }
    Ok(())
}

/// Characters of a line of comment. rustfmt leaves comments as they are.
const COMMENT_WIDTH: usize = 140;

#[test]
fn comments_are_not_wider_than_a_window() -> Result<()> {
    let is_comment = |line: &str| line.trim_start().starts_with("//");
    // A row of a table and an address cannot be broken.
    let may_be_wide = |line: &str| line.contains("//! |") || line.contains("://");
    let mut wide = Vec::new();
    for (path, text) in sources()? {
        let lines = text.lines().enumerate().filter(|(_, line)| is_comment(line) && !may_be_wide(line));
        let too_wide = lines.filter(|(_, line)| line.chars().count() > COMMENT_WIDTH);
        wide.extend(too_wide.map(|(number, _)| format!("{}:{}", path.display(), number + 1)));
    }
    ensure!(wide.is_empty(), "comments of more than {COMMENT_WIDTH} characters: {wide:#?}");
    Ok(())
}

const DAEMONS: [(&str, &str); 4] = [
    ("kubelet-volnetd", "Volnetd"),
    ("kubelet-syncd", "Syncd"),
    ("kubelet-evictiond", "Evictiond"),
    ("kubelet-statusd", "Statusd"),
];

/// Which daemons a source file opens a link to.
fn links(text: &str) -> impl Iterator<Item = &'static str> {
    let calls: Vec<&str> = text.split(".link(").skip(1).chain(text.split("Link::open(").skip(1)).collect();
    DAEMONS.into_iter().filter_map(move |(callee, variant)| {
        let process = format!("Process::{variant}");
        let named = |call: &&str| call.split(')').next().is_some_and(|arguments| arguments.contains(&process));
        calls.iter().any(named).then_some(callee)
    })
}

#[test]
fn the_process_graph_is_the_reviewed_one() -> Result<()> {
    let mut edges = BTreeSet::new();
    for (path, text) in sources()? {
        let caller = DAEMONS.iter().find(|(name, _)| is_source_of(&path, name));
        if let Some((caller, _)) = caller {
            edges.extend(links(&text).filter(|callee| callee != caller).map(|callee| format!("{caller} -> {callee}")));
        }
        // The skeleton gives each daemon a client of the descriptor broker, which is volnetd.
        if path == Path::new("shared/daemon/src/skeleton.rs") && text.contains("BrokerClient") {
            let callers = DAEMONS.iter().map(|(name, _)| name).filter(|name| **name != "kubelet-volnetd");
            edges.extend(callers.map(|caller| format!("{caller} -> kubelet-volnetd")));
        }
    }
    let expected = std::fs::read_to_string(workspace_root().join("tests/fixtures/process-graph.txt"))?;
    let expected: BTreeSet<String> = expected.lines().map(str::to_owned).collect();
    ensure!(edges == expected, "the calls in the code are {edges:#?}, the reviewed ones {expected:#?}");
    Ok(())
}

#[test]
fn every_claim_of_the_threat_model_names_a_test_that_is_there() -> Result<()> {
    let text = std::fs::read_to_string(workspace_root().join("SECURITY.md"))?;
    let rows = text.lines().skip_while(|line| *line != "| claim | test |").skip(2);
    for row in rows.take_while(|line| line.starts_with('|')) {
        ensure!(row.contains(".rs::"), "a claim without a test: {row}");
    }
    ensure!(tests_named_in("SECURITY.md", &text)? > 30, "few tests are named");
    Ok(())
}

#[test]
fn every_published_vulnerability_has_a_test_or_is_said_not_to_be_contained() -> Result<()> {
    let text = std::fs::read_to_string(workspace_root().join("docs/kubelet-cves.md"))?;
    let rows: Vec<&str> = text.lines().filter(|line| line.starts_with("| CVE-")).collect();
    ensure!(rows.len() > 10, "few rows: {rows:#?}");
    for row in rows {
        let here = row.split(" | ").nth(2).unwrap_or_default();
        let held = here.starts_with("eliminated") || here.starts_with("contained");
        ensure!(held || here.starts_with("not contained: "), "a row says one of three: {row}");
        ensure!(held == row.contains(".rs::"), "a test for what is held, and for nothing else: {row}");
    }
    ensure!(tests_named_in("docs/kubelet-cves.md", &text)? > 10, "few tests are named");
    Ok(())
}

/// Checks that each `path.rs::test` of a document is a test, and counts them.
fn tests_named_in(document: &str, text: &str) -> Result<usize> {
    let named: Vec<(&str, &str)> = text
        .split('`')
        .filter_map(|word| word.split_once(".rs::"))
        .filter(|(path, _)| path.contains('/') && !path.contains(char::is_whitespace))
        .collect();
    for (path, test) in &named {
        let file = workspace_root().join(format!("{path}.rs"));
        let source = std::fs::read_to_string(&file).with_context(|| format!("{path}.rs, named by {document}"))?;
        let mut is_test = false;
        let found = source.lines().map(str::trim_start).any(|line| {
            // The attribute stands right above, among others of its kind.
            is_test = if line.starts_with("#[") { is_test || line.contains("test") } else { is_test };
            let is_it = line.contains(&format!("fn {test}("));
            let hit = is_test && is_it;
            is_test &= line.starts_with("#[") || line.starts_with("//");
            hit
        });
        ensure!(found, "{document} names the test {test} of {path}.rs, which is not there");
    }
    Ok(named.len())
}

/// All files of a kind below a folder of the repository, without what is built.
pub fn documents(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            documents(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    Ok(())
}

#[test]
fn files_and_names_in_documents_exist() -> Result<()> {
    let root = workspace_root();
    let (mut all, sources) = (Vec::new(), sources()?);
    documents(&root, &mut all)?;
    let is_source = |word: &str| sources.iter().any(|(path, _)| path.ends_with(word));
    let mut missing = Vec::new();
    for document in &all {
        let text = std::fs::read_to_string(document)?;
        let shown = document.strip_prefix(&root).unwrap_or(document).display();
        let links = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        for link in links.filter(|link| !link.is_empty() && !link.contains("://")) {
            let target = document.parent().unwrap_or(&root).join(link);
            if !target.exists() {
                missing.push(format!("{shown}: the link {link}"));
            }
        }
        // A name with a star or braces stands for several; one that begins with an underscore for the end of a name.
        for word in text.split('`').skip(1).step_by(2).filter(|word| word.ends_with(".rs")) {
            let plain = word.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-./".contains(&b));
            if plain && !word.starts_with('_') && !is_source(word) {
                missing.push(format!("{shown}: the file {word}"));
            }
        }
    }
    ensure!(missing.is_empty(), "{missing:#?}");
    let told = std::fs::read_to_string(root.join("tests/README.md"))?;
    for (binary, modules) in test_binaries()? {
        ensure!(told.contains(&format!("`{binary}/`")), "tests/README.md does not name the folder {binary}");
        // The parts of one test are told of with it.
        for module in modules.iter().filter(|_| !PARTS_OF_ONE.contains(&binary.as_str())) {
            ensure!(told.contains(&format!("`{module}.rs`")), "tests/README.md does not name {module}.rs");
        }
    }
    Ok(())
}

/// `docs/glossary.md`: each term is a word of the file that its row names.
/// Each crate of the workspace stands in the code map, where a reader looks for what it is for; those in kubelet-syncd's folders have
/// a table of their own behind it.
#[test]
fn the_code_map_names_each_crate() -> Result<()> {
    let root = workspace_root();
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md"))?;
    let (_, text) = text.split_once("\n## Code map\n").context("there is no code map")?;
    let mut missing = Vec::new();
    for package in packages()? {
        let manifest = Path::new(package["manifest_path"].as_str().context("a package has a manifest")?);
        let folder =
            manifest.parent().context("a manifest lies in a folder")?.strip_prefix(&root)?.display().to_string();
        let shown = if folder.starts_with("bins/kubelet-syncd/") { name(&package) } else { folder.as_str() };
        if !text.contains(&format!("`{shown}`")) {
            missing.push(shown.to_owned());
        }
    }
    ensure!(missing.is_empty(), "not in the code map of ARCHITECTURE.md: {missing:?}");
    Ok(())
}

#[test]
fn the_glossary_is_true() -> Result<()> {
    let root = workspace_root();
    let text = std::fs::read_to_string(root.join("docs/glossary.md"))?;
    let rows = text.lines().filter(|line| line.starts_with("| `")).collect::<Vec<_>>();
    ensure!(rows.len() > 10, "there is no table");
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [term, _, place] = cells.as_slice() else { bail!("{row}: not three cells") };
        let (term, place) = (term.trim_matches('`'), place.trim_end_matches(" |").trim_matches('`'));
        let source = std::fs::read_to_string(root.join(place)).with_context(|| format!("{term}: {place}"))?;
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        ensure!(source.split(|c| !is_word(c)).any(|word| word == term), "{place} has no {term}");
    }
    Ok(())
}

/// Folders of `tests/tests` whose files are parts of one test.
const PARTS_OF_ONE: &[&str] = &["apiserver_contract", "kubeadm", "vm"];

/// The test binaries, each a folder of `tests/tests`, with the modules that their `main.rs` declares.
fn test_binaries() -> Result<BTreeMap<String, BTreeSet<String>>> {
    let package = packages()?.into_iter().find(|package| name(package) == "bulkhead-tests");
    let targets = package.context("there is no package bulkhead-tests")?["targets"].take();
    let folder = workspace_root().join("tests/tests");
    let mut binaries = BTreeMap::new();
    for target in targets.as_array().into_iter().flatten().filter(|target| target["kind"][0] == "test") {
        let binary = target["name"].as_str().unwrap_or_default();
        let text = std::fs::read_to_string(folder.join(binary).join("main.rs"))?;
        let modules = text.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
        binaries.insert(binary.to_owned(), modules.map(str::to_owned).collect());
    }
    Ok(binaries)
}

/// The manifest names the binaries, as each holds another copy of the same libraries: so cargo does not look for itself.
#[test]
fn every_file_of_tests_is_in_one_test_binary() -> Result<()> {
    let binaries = test_binaries()?;
    for entry in std::fs::read_dir(workspace_root().join("tests/tests"))?.flatten() {
        let binary = entry.file_name().to_string_lossy().into_owned();
        let modules = binaries.get(&binary).with_context(|| {
            format!("tests/tests/{binary} is no folder of a test binary that tests/Cargo.toml names")
        })?;
        for file in std::fs::read_dir(entry.path())?.flatten() {
            let file = file.file_name().to_string_lossy().into_owned();
            let Some(module) = file.strip_suffix(".rs").filter(|module| *module != "main") else { continue };
            ensure!(modules.contains(module), "tests/tests/{binary}/{file} is no module of {binary}/main.rs");
        }
    }
    Ok(())
}
