//! What the node costs: each figure beside the same work done straight over CRI in the same run on the same machine,
//! because only the ratio of the two means anything elsewhere. Run it as `cargo xtask bench`.

mod against;
mod busy;
mod cluster;
mod collection;
mod eviction;
mod filters;
mod measure;
mod probes;
mod report;
mod resources;
mod scale;
mod server;
mod stages;
mod volumes;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use bulkhead_testkit::build;
use clap::{Arg, ArgAction};

use measure::Plan;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let number = |name: &'static str, default: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name("N")
            .value_parser(clap::value_parser!(u32))
            .default_value(default)
            .help(help)
    };
    let matches = clap::Command::new("cargo xtask bench")
        .about("Measures the node beside the bare runtime")
        .arg(
            Arg::new("part")
                .long("part")
                .value_parser(["all", "standalone", "cluster", "probes", "server", "filters", "eviction", "collection", "volumes", "resources", "stages", "scale", "busy"])
                .default_value("all")
                .help("Static pods alone, a member of a cluster, probes, the HTTPS server, system calls, evictions, statistics, volumes, resource managers, the stages of starts and deletions, what grows with the number of pods, or much that is asked at once alone, or all of them"),
        )
        .arg(number("pairs", "30", "Pairs of single starts and deletions, floor and node in turn"))
        .arg(number("pods", "60", "Static pods started at once"))
        .arg(number("cluster-pods", "100", "Pods created at once on the API server"))
        .arg(number("cluster-pairs", "30", "Pods started and deleted one by one there, of each agent in turn"))
        .arg(number("bursts", "3", "How often so many pods are started and deleted at once there, of each agent in turn"))
        .arg(
            Arg::new("upstream")
                .long("upstream")
                .action(ArgAction::SetTrue)
                .help("Measures upstream's kubelet there as well (in the folder that KUBEBUILDER_ASSETS names)"),
        )
        .arg(number("idle", "60", "Seconds of idling with those pods"))
        .arg(number("exits", "15", "Killed containers, for the time until the node knows"))
        .arg(number("cluster-exits", "100", "Killed containers, for the time until the API server knows"))
        .arg(number("probes", "500", "Probes, each once a second"))
        .arg(number("server-pods", "100", "Pods while the HTTPS server is asked"))
        .arg(number("log-mib", "128", "Size of the log that is read, MiB"))
        .arg(number("execs", "30", "Pairs of commands in a container"))
        .arg(number("batches", "400", "Batches of each system call, free and confined in turn"))
        .arg(number("evictions", "100", "Pods that take memory until they are evicted"))
        .arg(number("evictions-each", "10", "The same for each rate and each time that they take to end"))
        .arg(number("disks", "10", "Times that a disk becomes short"))
        .arg(number("volume-pods", "100", "Pods with five local volumes and one of a CSI driver each; 0: fsGroup alone"))
        .arg(
            Arg::new("local-volumes")
                .long("local-volumes")
                .action(ArgAction::SetTrue)
                .help("Only what those pods cost while they idle without the CSI volume; with --against, versions without claims"),
        )
        .arg(number("files", "100000", "Files of a volume that is given to a group; 0: none"))
        .arg(number("resource-pods", "50", "Pods with a device of a plugin and a claim of a driver each"))
        .arg(number("stage-pods", "100", "Pods started and deleted at once whose time is taken apart"))
        .arg(number("stage-alone", "12", "Pods started and deleted one by one whose time is taken apart"))
        .arg(
            Arg::new("scale-pods")
                .long("scale-pods")
                .value_name("N,...")
                .value_delimiter(',')
                .value_parser(clap::value_parser!(u16).range(1..=1000))
                .default_value("100,250,500,1000")
                .help("Numbers of pods on one node, rising"),
        )
        .arg(number("busy-pods", "100", "Pods with a probe a second each while much is asked at once"))
        .arg(number("busy-execs", "10", "How many of these probes are commands; the others are HTTP, TCP and gRPC in turn"))
        .arg(number("followers", "1000", "Followers of the logs of those pods"))
        .arg(number("scrapers", "10", "Scrapes at once there"))
        .arg(
            Arg::new("picture")
                .long("picture")
                .value_name("FILE")
                .value_parser(clap::value_parser!(std::path::PathBuf))
                .help("Draws where the time of those pods goes (SVG)"),
        )
        .arg(number("in-flight", "0", "Starts that the floor has in flight; 0 takes the best of 2, 4 and 8, and 8 for the null agent"))
        .arg(
            Arg::new("quick")
                .long("quick")
                .action(ArgAction::SetTrue)
                .help("A smoke run: few of everything, no budget"),
        )
        .arg(
            Arg::new("before")
                .long("before")
                .value_name("DIR")
                .value_parser(clap::value_parser!(std::path::PathBuf))
                .help("Programs of another version, measured in turn with those under test: ratios of the two"),
        )
        .arg(number("rounds", "3", "How often each of two versions is measured; with --quick, 2"))
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON instead of the table"))
        .get_matches();
    let count = |name: &str| matches.get_one::<u32>(name).copied().context("a number is missing");
    let quick = matches.get_flag("quick");
    let few = |name: &str, few: usize| if quick { Ok(few) } else { count(name).map(|count| count as usize) };
    if let Some(before) = matches.get_one::<std::path::PathBuf>("before") {
        let (rounds, options) = (few("rounds", 2)?, options_of_one(std::env::args()));
        return against::run(before, &build::bin_dir()?, rounds, &options, matches.get_flag("json"));
    }
    let idle = Duration::from_secs(few("idle", 5)? as u64);
    let in_flight = match count("in-flight")? {
        0 if quick => vec![4],
        0 => vec![2, 4, 8],
        fixed => vec![fixed as usize],
    };
    let part = matches.get_one::<String>("part").map_or("all", String::as_str);
    let (mut sections, mut broke) = (Vec::new(), None);
    let has = |name: &str| part == "all" || part == name;
    if has("standalone") {
        let plan = Plan {
            judged: !quick,
            pairs: few("pairs", 3)?,
            pods: few("pods", 8)?,
            exits: few("exits", 3)?,
            idle,
            in_flight: in_flight.clone(),
        };
        sections.push(report::standalone(&plan, &measure::run(&plan)?));
    }
    if has("cluster") {
        let (pods, exits) = (few("cluster-pods", 8)?, few("cluster-exits", 3)?);
        let null_in_flight = match count("in-flight")? {
            0 => cluster::NULL_IN_FLIGHT,
            fixed => fixed as usize,
        };
        let plan = cluster::Plan {
            judged: !quick,
            pairs: few("cluster-pairs", 2)?,
            pods,
            bursts: few("bursts", 1)?.max(1),
            exits,
            idle,
            null_in_flight,
            in_flight,
            upstream: matches.get_flag("upstream"),
        };
        sections.push(report::cluster(&plan, &cluster::run(&plan)?));
    }
    if has("probes") {
        let plan = probes::Plan { judged: !quick, probes: few("probes", 50)?, watched: idle };
        sections.push(report::probes(&plan, &probes::run(&plan)?));
    }
    if has("server") {
        let plan = server::Plan {
            pods: few("server-pods", 5)?,
            log_mib: few("log-mib", 8)?,
            execs: few("execs", 3)?,
            rounds: if quick { 1 } else { 3 },
        };
        sections.push(report::server(&plan, &server::run(&plan)?));
    }
    if has("filters") {
        let plan = filters::Plan { rounds: few("batches", 20)? };
        sections.push(report::filters(&plan, &filters::run(&plan)?));
    }
    if has("eviction") {
        let plan = eviction::Plan {
            judged: !quick,
            runs: few("evictions", 3)?,
            cell: few("evictions-each", 0)?,
            disks: few("disks", 1)?,
        };
        sections.push(report::eviction(&plan, &eviction::run(&plan)?));
    }
    if has("collection") {
        let pods = if quick { vec![20] } else { vec![100, 500] };
        sections.push(report::collection(&collection::run(&collection::Plan { pods })?));
    }
    if has("volumes") {
        let (pods, files) = (few("volume-pods", 5)?, few("files", 5000)?);
        let (alone, local_only) = (if quick { 3 } else { 10 }, matches.get_flag("local-volumes"));
        let plan = volumes::Plan { judged: !quick, pods, alone, files, idle, local_only };
        sections.push(report::volumes(&plan, &volumes::run(&plan)?));
    }
    if has("resources") {
        let (pods, rounds) = (few("resource-pods", 5)?, if quick { 1 } else { 3 });
        let plan = resources::Plan { judged: !quick, pods, rounds, idle };
        sections.push(report::resources(&plan, &resources::run(&plan)?));
    }
    if has("stages") {
        let plan = stages::Plan {
            alone: few("stage-alone", 2)?.max(1),
            pods: few("stage-pods", 8)?.max(1),
            picture: matches.get_one::<std::path::PathBuf>("picture").cloned(),
        };
        sections.push(report::stages(&plan, &stages::run(&plan)?));
    }
    if has("scale") {
        let asked = matches.get_many::<u16>("scale-pods").into_iter().flatten().map(|pods| usize::from(*pods));
        let pods: Vec<usize> = if quick { vec![3, 8] } else { asked.collect() };
        anyhow::ensure!(pods.is_sorted_by(|a, b| a < b), "--scale-pods: the numbers have to rise");
        let plan = scale::Plan { judged: !quick, pods, idle };
        let measured = scale::run(&plan)?;
        sections.push(report::scale(&plan, &measured));
        broke = measured.broke;
    }
    if has("busy") {
        let plan = busy::Plan {
            pods: few("busy-pods", 8)?.max(1),
            execs: few("busy-execs", 2)?,
            followers: few("followers", 16)?,
            scrapers: few("scrapers", 2)?.max(1),
            watched: idle,
        };
        sections.push(report::busy(&plan, &busy::run(&plan)?));
    }
    if matches.get_flag("json") {
        println!("{:#}", report::json(&sections));
    } else {
        sections.iter().for_each(|section| print!("{}", section.table()));
    }
    match broke {
        Some(what) => anyhow::bail!(what),
        None => Ok(()),
    }
}

/// What is left for the measurement of one version.
fn options_of_one(arguments: impl Iterator<Item = String>) -> Vec<String> {
    let mut options = Vec::new();
    let mut arguments = arguments.skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--before" | "--rounds" => drop(arguments.next()),
            "--json" => {}
            other if other.starts_with("--before=") || other.starts_with("--rounds=") => {}
            _ => options.push(argument),
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use super::options_of_one;

    #[test]
    fn one_measurement_gets_the_other_options() {
        let given =
            ["bench", "--before", "/p", "--quick", "--rounds=4", "--part", "cluster", "--json", "--rounds", "2"];
        let options = options_of_one(given.into_iter().map(str::to_owned));
        assert_eq!(options, ["--quick", "--part", "cluster"]);
    }
}
