//! Feeds what reads strangers' bytes with anything, for as long as one likes, and keeps what reaches code that nothing else did. Run
//! it as `cargo xtask fuzz`.

mod search;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bulkhead_tests::fuzz::{TARGETS, Target};
use clap::{Arg, ArgAction};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fuzz: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn command_line() -> clap::Command {
    let names = TARGETS.iter().map(|target| target.name);
    clap::Command::new("cargo xtask fuzz")
        .about("Feeds what reads strangers' bytes with anything, guided by the code that it reaches (libFuzzer; needs g++)")
        .arg(
            Arg::new("seconds")
                .long("seconds")
                .value_name("N")
                .value_parser(clap::value_parser!(u64).range(1..))
                .default_value("30")
                .help("Processor time for each target"),
        )
        .arg(
            Arg::new("jobs")
                .long("jobs")
                .value_name("N")
                .value_parser(clap::value_parser!(u16).range(1..))
                .default_value("1")
                .help("Targets at a time"),
        )
        .arg(
            Arg::new("keep")
                .long("keep")
                .action(ArgAction::SetTrue)
                .help("Keep the fewest inputs that reach the same code in tests/fixtures/fuzz, where the tests run them"),
        )
        .arg(
            Arg::new("input")
                .long("input")
                .value_name("FILE")
                .value_parser(clap::value_parser!(PathBuf))
                .help("Only this input, for the one target that is named"),
        )
        .arg(
            Arg::new("targets")
                .action(ArgAction::Append)
                .value_parser(clap::builder::PossibleValuesParser::new(names))
                .help("Which; all where none is named"),
        )
}

fn run() -> Result<()> {
    let matches = command_line().get_matches();
    let asked: Vec<&String> = matches.get_many("targets").map(Iterator::collect).unwrap_or_default();
    let chosen: Vec<&'static Target> =
        TARGETS.iter().filter(|target| asked.is_empty() || asked.iter().any(|name| *name == target.name)).collect();
    if let Some(file) = matches.get_one::<PathBuf>("input") {
        let [target] = chosen.as_slice() else { bail!("--input needs the name of one target") };
        (target.run)(&std::fs::read(file).with_context(|| format!("reading {}", file.display()))?);
        println!("{}: nothing wrong with it", target.name);
        return Ok(());
    }
    let plan = search::Plan {
        program: search::build()?,
        time: Duration::from_secs(matches.get_one::<u64>("seconds").copied().unwrap_or(30)),
        keep: matches.get_flag("keep"),
    };
    search::all(&plan, &chosen, matches.get_one::<u16>("jobs").copied().map_or(1, usize::from))
}
