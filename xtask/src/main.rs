//! One word for each task, the same by hand and in CI: `cargo xtask <command>`.

mod checks;
#[cfg(feature = "cluster")]
mod cluster_demo;
mod commits;
#[cfg(feature = "cluster")]
mod conformance;
mod demo;
mod interrupt;
mod lints;
mod outcome;
mod package;
mod phases;
mod retries;
mod runner;
mod runtimes;
mod seeds;
mod versions;

use std::process::{Command, ExitCode};

use anyhow::{Result, bail};
use clap::{Arg, ArgAction, ArgMatches};

/// What upstream's kubelet passes, below the workspace.
const CONFORMANCE_LIST: &str = "tests/conformance/kubernetes-1.36.txt";
/// The same of dynamic resource allocation, which needs another runtime.
const DRA_LIST: &str = "tests/conformance/dra-1.36.txt";

fn main() -> ExitCode {
    let matches = command_line().get_matches();
    let done = match matches.subcommand() {
        Some(("demo", options)) => {
            let (profile, once) = (text(options, "profile"), options.get_flag("once"));
            if options.get_flag("cluster") {
                in_a_cluster(&profile, once)
            } else {
                demo::run(&profile, once, demo::show)
            }
        }
        Some(("test", options)) => {
            checks::test(options.get_flag("no-checks"), options.get_flag("new-seeds"), &rest(options))
        }
        Some(("ci", _)) => checks::test(false, true, &[]),
        Some(("check", _)) => checks::check(),
        Some(("fmt", _)) => checks::cargo(&["fmt", "--all"]),
        Some(("bench", options)) => {
            let mut rest = rest(options);
            let given = options.get_one::<String>("against").cloned();
            // Behind an option of the benchmark's they are taken for some of those.
            take_option(&mut rest, "--against").and_then(|later| {
                let profile = take_option(&mut rest, "--profile")?.unwrap_or_else(|| text(options, "profile"));
                bench(&profile, given.or(later).as_deref(), &rest)
            })
        }
        Some(("conformance", options)) => conformance(options),
        Some(("fuzz", options)) => fuzz(&rest(options)),
        Some(("simulate", options)) => {
            let mut rest = rest(options);
            take_option(&mut rest, "--profile").and_then(|later| {
                let profile = later.unwrap_or_else(|| text(options, "profile"));
                simulate(&profile, &rest)
            })
        }
        Some(("record-api", options)) => {
            versions::record_api(options.get_one::<String>("revision").map(String::as_str))
        }
        Some(("previous", options)) => versions::previous(options.get_one::<String>("revision").map(String::as_str)),
        Some(("package", options)) => package::run(options),
        _ => Ok(()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nxtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn command_line() -> clap::Command {
    let profile = |default: &'static str| {
        Arg::new("profile")
            .long("profile")
            .value_parser(["dev", "quick", "release"])
            .default_value(default)
            .help("cargo profile of the node's programs")
    };
    let rest =
        |help: &'static str| Arg::new("rest").num_args(0..).trailing_var_arg(true).allow_hyphen_values(true).help(help);
    clap::Command::new("cargo xtask")
        .about("The project's commands")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            clap::Command::new("demo")
                .about("Brings up a node - containerd, the four daemons, a static pod - and shows it running (needs root)")
                .arg(profile("dev"))
                .arg(
                    Arg::new("once")
                        .long("once")
                        .action(ArgAction::SetTrue)
                        .help("End after the tour instead of waiting for Ctrl-C"),
                )
                .arg(
                    Arg::new("cluster")
                        .long("cluster")
                        .action(ArgAction::SetTrue)
                        .help("Beside an API server: the node joins, a pod is created with kubectl and runs"),
                ),
        )
        .subcommand(
            clap::Command::new("test")
                .about("Format and dependencies, then all tests, those with a real containerd included, with lints beside them (needs root)")
                .arg(
                    Arg::new("no-checks")
                        .long("no-checks")
                        .action(ArgAction::SetTrue)
                        .help("Tests only, without format, lints and dependencies"),
                )
                .arg(
                    Arg::new("new-seeds")
                        .long("new-seeds")
                        .action(ArgAction::SetTrue)
                        .help("Before the tests also seeds of the simulation, for about two minutes, which are others for each tree"),
                )
                .arg(rest("Passed on to the test runner, for example a test's name")),
        )
        .subcommand(clap::Command::new("ci").about("What .ci/run runs: `test --new-seeds`"))
        .subcommand(clap::Command::new("check").about("Format, lints, dependencies"))
        .subcommand(clap::Command::new("fmt").about("Formats the whole workspace"))
        .subcommand(
            clap::Command::new("bench")
                .about("Measures the node beside the bare runtime in the same run, and prints a table of ratios (needs root)")
                .arg(profile("release"))
                .arg(
                    Arg::new("against")
                        .long("against")
                        .value_name("REVISION")
                        .help(
                            "Measures that revision too, in turn with this tree, and prints ratios with their spread; `upstream`: \
                             upstream's kubelet beside the node in a cluster, from the folder that KUBEBUILDER_ASSETS names",
                        ),
                )
                .arg(rest(
                    "Passed on: --quick, --part cluster, --part busy (probes, followers and scrapes at once), --pairs N, --pods N, \
                     --idle SECONDS, --json; --help names all",
                )),
        )
        .subcommand(conformance_command(profile("dev")))
        .subcommand(
            clap::Command::new("package")
                .about("Builds the Debian package and prints what is in it and where it is")
                .arg(profile("release"))
                .arg(Arg::new("programs").long("programs").value_name("DIR").help("Programs that are built already"))
                .arg(Arg::new("version").long("package-version").value_name("VERSION").help("Version of the package"))
                .arg(Arg::new("output").long("output").value_name("DIR").help("Folder for the package"))
                .arg(
                    Arg::new("fast").long("fast").action(ArgAction::SetTrue).help("A larger package, sooner: for tests"),
                ),
        )
        .subcommand(
            clap::Command::new("record-api")
                .about("Writes the record of a version's internal API to proto/recorded; when the version is tagged")
                .arg(Arg::new("revision").long("revision").help("Commit or tag; HEAD unless given")),
        )
        .subcommand(
            clap::Command::new("previous")
                .about("Builds the programs of the version before, as `test` does, and prints where they are")
                .arg(Arg::new("revision").help("Commit or tag; that of the newest record unless given")),
        )
        .subcommand(
            clap::Command::new("fuzz")
                .about("Feeds what reads strangers' bytes - log lines, queries, frames, answers - with anything (needs g++)")
                .arg(rest("Passed on: --seconds N for each target, --jobs N, --keep, --input FILE, names of targets; --help names them")),
        )
        .subcommand(
            clap::Command::new("simulate")
                .about("Runs the real kubelet-syncd and kubelet-statusd on virtual time between models of their peers, driven by seeds (docs/simulation.md)")
                .arg(
                    profile("dev")
                        .value_parser(["dev", "simulate"])
                        .help("cargo profile of what is run: `dev` as the tests build it, `simulate` for long runs"),
                )
                .arg(rest("Passed on: --seeds N, --seed S, --minutes M, --only pods, --schedule FILE, --keep FOLDER, --mutants; --help names all")),
        )
}

fn conformance_command(profile: Arg) -> clap::Command {
    let value = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    clap::Command::new("conformance")
        .about("Runs upstream's end-to-end specs against the node, and says which fail that upstream's kubelet passes (needs root)")
        .after_help(format!(
            "Needs upstream's programs in a folder that KUBEBUILDER_ASSETS names: etcd, kube-apiserver, kube-controller-manager,\n\
             kube-scheduler, kube-proxy, e2e.test, ginkgo. They bring up a cluster of one node, in a network namespace with a containerd\n\
             of its own; all of it is gone again afterwards. Exit code 0: whatever the list has of what ran passes here.\n\n\
             The specs want images by upstream's names. They are pulled where their registry can be reached, else given by --images.\n\n\
             Examples:\n  \
             cargo xtask conformance\n  \
             cargo xtask conformance --focus 'Probing container' --images ./images\n  \
             cargo xtask conformance --focus 'csi-hostpath|CSI Mock' --root-dir /var/lib/kubelet\n  \
             BULKHEAD_RUNTIME=2.1 cargo xtask conformance --focus '\\[DRA\\]' --root-dir /var/lib/kubelet --list {DRA_LIST}\n  \
             cargo xtask conformance --kubelet /usr/bin/kubelet --record        # writes {CONFORMANCE_LIST}"
        ))
        .arg(value("focus", "REGEX", "Specs that run, if not those that the list was recorded with"))
        .arg(value("skip", "REGEX", "Of these, specs that do not run, if not those that the list was recorded without"))
        .arg(value("kubelet", "PATH", "Another kubelet than this project's, for example upstream's"))
        .arg(profile.conflicts_with("kubelet"))
        .arg(
            // With one, ginkgo writes in another way.
            value("procs", "N", "Specs at a time, 2 to 64")
                .value_parser(clap::value_parser!(u16).range(2..=64))
                .default_value("8"),
        )
        .arg(
            value("images", "PATH", "OCI archive, or folder of such (*.tar), to import first; may be repeated")
                .action(ArgAction::Append),
        )
        .arg(value(
            "images-command",
            "COMMAND",
            "Shell command that imports images into the containerd at $CONTAINERD_ADDRESS, namespace $CONTAINERD_NAMESPACE",
        ))
        .arg(
            Arg::new("device-plugin")
                .long("device-plugin")
                .action(ArgAction::SetTrue)
                .help("Gives specs that deploy a device plugin this project's own in the place of upstream's image"),
        )
        .arg(
            Arg::new("record")
                .long("record")
                .action(ArgAction::SetTrue)
                .requires("kubelet")
                .help("Writes the list from what passes, instead of comparing with it; for runs with upstream's kubelet"),
        )
        .arg(
            value("root-dir", "PATH", "Mounts the node's root directory there: drivers that run as pods want /var/lib/kubelet")
                .value_parser(absolute),
        )
        .arg(value("list", "FILE", "The list, if not the repository's own"))
        .arg(value("output", "DIR", "Folder for logs and reports, if not target/conformance"))
}

fn absolute(path: &str) -> Result<String, String> {
    if path.starts_with('/') { Ok(path.to_owned()) } else { Err("has to be an absolute path".to_owned()) }
}

fn text(options: &ArgMatches, name: &str) -> String {
    options.get_one::<String>(name).cloned().unwrap_or_default()
}

fn rest(options: &ArgMatches) -> Vec<String> {
    options.get_many::<String>("rest").map(|values| values.cloned().collect()).unwrap_or_default()
}

/// Takes an option with its value out of others.
fn take_option(options: &mut Vec<String>, name: &str) -> Result<Option<String>> {
    let with_value = format!("{name}=");
    let Some(at) = options.iter().position(|one| one == name || one.starts_with(&with_value)) else { return Ok(None) };
    let option = options.remove(at);
    if let Some(value) = option.strip_prefix(&with_value) {
        return Ok(Some(value.to_owned()));
    }
    if at == options.len() {
        bail!("{name} needs a value");
    }
    Ok(Some(options.remove(at)))
}

#[cfg(feature = "cluster")]
fn in_a_cluster(profile: &str, once: bool) -> Result<()> {
    demo::run(profile, once, cluster_demo::show)
}

#[cfg(not(feature = "cluster"))]
fn in_a_cluster(_profile: &str, _once: bool) -> Result<()> {
    eprintln!("building the demo's API server");
    again_with_cluster()
}

#[cfg(feature = "cluster")]
fn conformance(options: &ArgMatches) -> Result<()> {
    conformance::run(&conformance::Options::of(options)?)
}

#[cfg(not(feature = "cluster"))]
fn conformance(_options: &ArgMatches) -> Result<()> {
    eprintln!("building what starts a control plane");
    again_with_cluster()
}

/// Does what was asked for again with what clusters need built in.
#[cfg(not(feature = "cluster"))]
fn again_with_cluster() -> Result<()> {
    use std::os::unix::process::CommandExt as _;
    let manifest = bulkhead_testkit::build::workspace_root().join("Cargo.toml");
    let mut command = Command::new(checks::cargo_program());
    command
        .args(["run", "--locked", "--quiet", "--package", "xtask", "--features", "cluster", "--manifest-path"])
        .arg(manifest)
        .arg("--")
        .args(std::env::args_os().skip(1));
    // In place of this process: signals then reach the one that has something to take down.
    Err(command.exec().into())
}

/// With optimisation, as most of it is the trying.
fn fuzz(options: &[String]) -> Result<()> {
    let mut arguments = vec!["run", "--locked", "--quiet", "--package", "bulkhead-tests", "--bin", "fuzz", "--"];
    arguments.extend(options.iter().map(String::as_str));
    checks::cargo(&arguments)
}

fn simulate(profile: &str, options: &[String]) -> Result<()> {
    let mut arguments = vec!["run", "--locked", "--quiet", "--profile", profile];
    arguments.extend(["--package", "bulkhead-simulation", "--bin", "simulate", "--"]);
    arguments.extend(options.iter().map(String::as_str));
    checks::cargo(&arguments)
}

/// In place of a revision: upstream's kubelet.
const UPSTREAM: &str = "upstream";

/// The cargo profile of what measures.
const MEASURING: &str = "quick";

/// The benchmark speaks gRPC and so lives with the tests, which are built with it anyway.
fn bench(profile: &str, against: Option<&str>, options: &[String]) -> Result<()> {
    use bulkhead_testkit::{build, machine};
    if !machine::is_root() {
        bail!("the benchmark needs root: it makes network namespaces, cgroups and mounts");
    }
    machine::ensure_installed(&|line| eprintln!("{line}"))?;
    eprintln!("building the node ({profile} profile)");
    // What measures, what runs in its pods, drivers and plugins: optimised, because their time is part of a figure. All of the
    // workspace at once: package by package cargo would build its libraries three times, with other features each.
    let mut all = vec!["build", "--bins", "--profile", MEASURING];
    all.extend(checks::BUILD);
    checks::cargo(&all)?;
    let measuring = build::target_dir().join(MEASURING);
    // A release is measured as it ships: from a build of its programs alone.
    let programs = if profile == MEASURING { measuring.clone() } else { build::programs(profile)? };
    let upstream = against == Some(UPSTREAM);
    let revision = against.filter(|_| !upstream);
    let before = revision.map(|revision| versions::programs_to_measure(revision, profile)).transpose()?;
    let mut command = Command::new(measuring.join("bench"));
    command
        .current_dir(build::workspace_root())
        .args(before.iter().flat_map(|folder| ["--before".as_ref(), folder.as_os_str()]))
        .args(upstream.then_some("--upstream"))
        .args(options)
        .env("BULKHEAD_BIN_DIR", programs);
    if !command.status()?.success() {
        bail!("the benchmark failed");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::take_option;

    #[test]
    fn an_option_is_taken_from_among_others() {
        let options = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        for text in ["--quick --against v1 --json", "--quick --against=v1 --json"] {
            let mut all = options(text);
            assert_eq!(take_option(&mut all, "--against").unwrap().as_deref(), Some("v1"));
            assert_eq!(all, ["--quick", "--json"]);
        }
        assert_eq!(take_option(&mut options("--quick"), "--against").unwrap(), None);
        assert!(take_option(&mut options("--quick --against"), "--against").is_err());
    }

    /// Commands as the pages give them, each to its comment or the end of its line.
    fn commands_of(page: &str) -> Vec<Vec<String>> {
        let lines = page.lines().filter_map(|line| line.split_once("cargo xtask "));
        let command = |text: &str| {
            let end = text.find(['`', '#', '|']).unwrap_or(text.len());
            // Alternatives and placeholders say what could stand there.
            let text = text.get(..end).unwrap_or_default().trim().trim_end_matches(['.', '\'', ')']);
            text.split_whitespace().map(|word| word.trim_matches(['[', ']']).to_owned()).collect()
        };
        lines.map(|(_, text)| command(text)).collect()
    }

    #[test]
    fn commands_in_the_pages_are_commands() {
        let top = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let folders = ["", "docs", "docs/decisions", "tests", "tests/fixtures/simulation", "tests/conformance"];
        let files = folders.iter().filter_map(|folder| std::fs::read_dir(top.join(folder)).ok()).flatten().flatten();
        let pages = files.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|ext| ext == "md"));
        let mut seen = 0;
        for page in pages {
            for words in commands_of(&std::fs::read_to_string(&page).unwrap()) {
                let line = std::iter::once("cargo xtask".to_owned()).chain(words.iter().cloned());
                let parsed = super::command_line().try_get_matches_from(line);
                assert!(parsed.is_ok(), "{}: cargo xtask {}: {}", page.display(), words.join(" "), parsed.unwrap_err());
                seen += 1;
            }
        }
        assert!(seen > 20, "{seen} commands were found");
    }
}
