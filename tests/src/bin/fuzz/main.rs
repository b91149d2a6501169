//! Feeds what reads strangers' bytes with anything, for as long as one likes, and keeps what reaches code that nothing else did. Run
//! it as `cargo xtask fuzz`.

mod search;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bulkhead_tests::fuzz::searched::{self, Record};
use bulkhead_tests::fuzz::{TARGETS, Target};
use clap::{Arg, ArgAction};
use parking_lot::Mutex;

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
                .help("Keep the fewest inputs that reach the same code in tests/fixtures/fuzz, where the tests run them, and the time"),
        )
        .arg(
            Arg::new("up-to")
                .long("up-to")
                .value_name("N")
                .value_parser(clap::value_parser!(u64).range(1..))
                .help("Only targets with less than N seconds in all the runs that were kept, the least searched first"),
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
    let record = Record::read(&searched::file())?;
    let time = Duration::from_secs(matches.get_one::<u64>("seconds").copied().unwrap_or(30));
    let up_to = matches.get_one::<u64>("up-to").copied().map(Duration::from_secs);
    let searches = searches(&chosen, &record, time, up_to);
    let plan = search::Plan { program: search::build()?, keep: matches.get_flag("keep"), record: Mutex::new(record) };
    search::all(&plan, &searches, matches.get_one::<u16>("jobs").copied().map_or(1, usize::from))
}

/// How long each target is searched now: `time`, but no longer than up to the sum that is asked for.
fn searches(
    targets: &[&'static Target],
    record: &Record,
    time: Duration,
    up_to: Option<Duration>,
) -> Vec<(&'static Target, Duration)> {
    let had = |target: &Target| record.of(target.name).time;
    let left = |target: &Target| up_to.map_or(time, |sum| time.min(sum.saturating_sub(had(target))));
    let mut searches: Vec<_> = targets.iter().map(|target| (*target, left(target))).collect();
    searches.retain(|(_, time)| !time.is_zero());
    if up_to.is_some() {
        searches.sort_by_key(|(target, _)| had(target));
    }
    searches
}

#[cfg(test)]
mod tests {
    use bulkhead_tests::fuzz::searched::Searched;

    use super::*;

    #[test]
    fn the_least_searched_come_first_and_none_gets_more_than_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let mut record = Record::default();
        let named = |name| Target::named(name).unwrap();
        for (name, seconds) in [("paths", 3000), ("quantity", 3600), ("spdy", 100)] {
            let searched = Searched { time: Duration::from_secs(seconds), inputs: 1 };
            record.add(name, searched, &folder.path().join("searched.txt")).unwrap();
        }
        let targets = [named("paths"), named("quantity"), named("spdy"), named("upgrade")];
        let now = |time, up_to: Option<u64>| -> Vec<(&str, u64)> {
            let searches = searches(&targets, &record, Duration::from_secs(time), up_to.map(Duration::from_secs));
            searches.iter().map(|(target, time)| (target.name, time.as_secs())).collect()
        };
        assert_eq!(now(30, None), [("paths", 30), ("quantity", 30), ("spdy", 30), ("upgrade", 30)]);
        assert_eq!(now(900, Some(3600)), [("upgrade", 900), ("spdy", 900), ("paths", 600)]);
        assert_eq!(now(9000, Some(3600)), [("upgrade", 3600), ("spdy", 3500), ("paths", 600)]);
        assert_eq!(now(900, Some(90)), [("upgrade", 90)]);
    }
}
