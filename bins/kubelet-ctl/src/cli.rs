//! The command line.

use std::io::Write;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use clap_complete::Shell;

/// The whole command with its sub-commands.
pub fn command() -> Command {
    Command::new("kubelet-ctl")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Looks into a node: its pods and why each is where it is, volumes, health, privileges, statistics")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .args(everywhere())
        .after_help(
            "Exit codes: 0 done, 1 not found or not healthy, 2 wrong command line, 3 a process does not answer,\n\
             4 a process has other privileges than the map says (`privileges`; 3 where something cannot be seen).\n\n\
             Examples:\n  \
             kubelet-ctl pods                          all pods of the node at /run/kubelet\n  \
             kubelet-ctl pods --watch                  the same, then every change\n  \
             kubelet-ctl pod web-node-a                one pod: state, containers, volumes, events\n  \
             kubelet-ctl health || echo unwell         for scripts\n  \
             kubelet-ctl privileges                    what each process may do, and whether it is as declared\n  \
             kubelet-ctl pods -o json | jq '.[].why'   for programs\n  \
             kubelet-ctl pods --root-dir /tmp/node-b   another node on this machine",
        )
        .subcommand(
            pods_command("pods", "Lists pods, and why each is where it is").visible_alias("ps").arg(
                Arg::new("watch").short('w').long("watch").action(ArgAction::SetTrue).help("Go on with every change"),
            ),
        )
        .subcommand(
            pods_command("pod", "Shows one pod: where it is and why, containers, volumes, conditions, recent events")
                .arg(
                    Arg::new("name").value_name("NAME").required(true).help(
                        "Name, the beginning of a name that no other pod shares, or uid (NAMESPACE/NAME works too)",
                    ),
                ),
        )
        .subcommand(pods_command("volumes", "Lists the pods' volumes: what is wanted, what is mounted"))
        .subcommand(pods_command("cgroups", "Lists the pods' control groups"))
        .subcommand(Command::new("health").about("Shows whether each process answers and what its checks say"))
        .subcommand(
            Command::new("privileges")
                .about("Shows what each process may do, a line each, and whether that is as declared")
                .arg(
                    Arg::new("detail")
                        .long("detail")
                        .action(ArgAction::SetTrue)
                        .help("Each fact beside its declaration: user, capabilities, filters, fences, sockets"),
                )
                .after_help(
                    "Marks of --detail: = as in the map, !! different, ?? cannot be seen (not root), -- withheld by this machine.\n\
                     Exit codes: 0 all as in the map, 4 something differs (a process that is down does), 3 something\n\
                     cannot be seen and nothing else differs.",
                ),
        )
        .subcommand(pods_command("stats", "Shows what node and pods use, the largest first").visible_alias("top"))
        .subcommand(
            Command::new("pressure").about("Shows what is left of each resource beside its thresholds, and whom that evicted"),
        )
        .subcommand(
            Command::new("images").about("Lists images, who uses them, what garbage collection would do with each and why, and what is queued and pulled since when"),
        )
        .subcommand(audit())
        .subcommand(Command::new("plugins").about("Lists plugins (CSI drivers, devices), and what came of their registration"))
        .subcommand(
            Command::new("resources")
                .about("Shows NUMA nodes, CPUs, memory and devices, and which container has what of it for itself")
                .after_help(
                    "The map: each core in brackets with its CPUs, [0:r 4:.] [1:A 5:A], a bar of each node's memory, and its devices.\n\
                     . shared or free, r reserved, a letter the container of that line of the table.",
                ),
        )
        .subcommand(pods_command("events", "Lists the pods' recent events, newest last"))
        .subcommand(
            Command::new("completion")
                .alias("completions")
                .about("Prints a completion script")
                .after_help("Example:\n  kubelet-ctl completion bash > /etc/bash_completion.d/kubelet-ctl")
                .arg(
                    Arg::new("shell")
                        .value_name("SHELL")
                        .required(true)
                        .value_parser(["bash", "zsh", "fish"])
                        .help("The shell"),
                ),
        )
}

/// Accepted before and after the sub-command, as kubectl takes its own.
fn everywhere() -> [Arg; 4] {
    [
        Arg::new("output")
            .short('o')
            .long("output")
            .global(true)
            .value_name("FORMAT")
            .value_parser(["table", "json", "yaml"])
            .default_value("table")
            .help("How to print"),
        Arg::new("run-dir")
            .long("run-dir")
            .global(true)
            .value_name("DIR")
            .conflicts_with("root-dir")
            .value_parser(value_parser!(String))
            .help("Folder of the node's sockets [default: /run/kubelet]"),
        Arg::new("root-dir")
            .long("root-dir")
            .global(true)
            .value_name("DIR")
            .value_parser(value_parser!(String))
            .help("The node's --root-dir, from which the folder of its sockets follows"),
        Arg::new("vsock")
            .long("vsock")
            .global(true)
            .value_name("CID:PORT")
            .conflicts_with_all(["run-dir", "root-dir"])
            .value_parser(value_parser!(String))
            .help("A virtual machine's node, at the first of its vsock ports (kubelet --vsock-port)"),
    ]
}

fn audit() -> Command {
    Command::new("audit")
        .about("Lists what kubelet-volnetd was asked for and did, newest last")
        .arg(Arg::new("pod").long("pod").value_name("POD").help("Only acts for this pod: name, namespace/name or uid"))
        .arg(
            Arg::new("verb")
                .long("verb")
                .value_name("VERB")
                .help("Only this verb, or this service's: TearDownPod, Volumes, Broker/PluginSocket"),
        )
        .arg(Arg::new("failed").long("failed").action(ArgAction::SetTrue).help("Only what was refused or has failed"))
        .arg(
            Arg::new("newest")
                .long("newest")
                .value_name("N")
                .value_parser(value_parser!(u32))
                .default_value("100")
                .help("At most so many; 0 for all that are kept"),
        )
        .arg(Arg::new("follow").short('f').long("follow").action(ArgAction::SetTrue).help("Go on with those that come"))
}

fn pods_command(name: &'static str, about: &'static str) -> Command {
    Command::new(name).about(about).arg(
        Arg::new("namespace").short('n').long("namespace").value_name("NAMESPACE").help("Only pods of this namespace"),
    )
}

/// Prints the script of the shell that was asked for.
pub(crate) fn completion(matches: &ArgMatches, out: &mut dyn Write) -> std::io::Result<()> {
    let shell = match matches.get_one::<String>("shell").map(String::as_str) {
        Some("zsh") => Shell::Zsh,
        Some("fish") => Shell::Fish,
        _ => Shell::Bash,
    };
    // Into memory first: the generator panics on a closed pipe.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "kubelet-ctl", &mut script);
    out.write_all(&script)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        command().debug_assert();
        for line in ["kubelet-ctl", "kubelet-ctl nothing", "kubelet-ctl pod", "kubelet-ctl pods -o xml"] {
            assert!(command().try_get_matches_from(line.split(' ')).is_err(), "{line}");
        }
        for words in ["kubelet-ctl -o json --root-dir a pods", "kubelet-ctl pods -o json --root-dir a"] {
            let matches = command().try_get_matches_from(words.split(' ')).unwrap();
            let (_, pods) = matches.subcommand().unwrap();
            assert_eq!(pods.get_one::<String>("output").map(String::as_str), Some("json"), "{words}");
            assert_eq!(pods.get_one::<String>("root-dir").map(String::as_str), Some("a"), "{words}");
        }
        assert!(command().try_get_matches_from("kubelet-ctl pods --run-dir a --root-dir b".split(' ')).is_err());
        assert!(command().try_get_matches_from("kubelet-ctl top -n kube-system -o yaml".split(' ')).is_ok());
    }

    #[test]
    fn three_shells_complete() {
        for shell in ["bash", "zsh", "fish"] {
            let matches = command().try_get_matches_from(["kubelet-ctl", "completion", shell]).unwrap();
            let mut script = Vec::new();
            completion(matches.subcommand().unwrap().1, &mut script).unwrap();
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("privileges") && script.contains("kubelet-ctl"), "{shell}");
        }
    }
}
