//! What the node costs: each figure beside the same work done straight over CRI in the same run on the same machine,
//! because only the ratio of the two means anything elsewhere. Run it as `cargo xtask bench`.

mod measure;
mod report;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
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
        .arg(number("pairs", "30", "Pairs of single starts and deletions, floor and node in turn"))
        .arg(number("pods", "60", "Pods started at once"))
        .arg(number("idle", "60", "Seconds of idling with those pods"))
        .arg(number("exits", "15", "Killed containers, for the time until the node knows"))
        .arg(number("in-flight", "0", "Starts that the floor has in flight; 0 takes the best of 2, 4 and 8"))
        .arg(
            Arg::new("quick")
                .long("quick")
                .action(ArgAction::SetTrue)
                .help("A smoke run: few of everything, no budget"),
        )
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print JSON instead of the table"))
        .get_matches();
    let count = |name: &str| matches.get_one::<u32>(name).copied().context("a number is missing");
    let quick = matches.get_flag("quick");
    let plan = Plan {
        judged: !quick,
        pairs: if quick { 3 } else { count("pairs")? as usize },
        pods: if quick { 8 } else { count("pods")? as usize },
        exits: if quick { 3 } else { count("exits")? as usize },
        idle: Duration::from_secs(if quick { 5 } else { u64::from(count("idle")?) }),
        in_flight: match count("in-flight")? {
            0 if quick => vec![4],
            0 => vec![2, 4, 8],
            fixed => vec![fixed as usize],
        },
    };
    let figures = measure::run(&plan)?;
    if matches.get_flag("json") {
        println!("{:#}", report::json(&plan, &figures));
    } else {
        print!("{}", report::table(&plan, &figures));
    }
    Ok(())
}
