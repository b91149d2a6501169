//! Feeds what reads strangers' bytes with anything, for as long as one likes. Run it as `cargo xtask fuzz`.

mod engine;
mod targets;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bulkhead_tests::Dice;
use clap::{Arg, ArgAction};

use targets::TARGETS;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fuzz: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    let matches = clap::Command::new("cargo xtask fuzz")
        .about("Feeds what reads strangers' bytes with anything; $BULKHEAD_SEED repeats a run")
        .arg(
            Arg::new("seconds")
                .long("seconds")
                .value_name("N")
                .value_parser(clap::value_parser!(u64))
                .default_value("30")
                .help("For each target"),
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
                .value_parser(clap::builder::PossibleValuesParser::new(&names))
                .help("Which; all where none is named"),
        )
        .get_matches();
    let seconds = Duration::from_secs(matches.get_one::<u64>("seconds").copied().unwrap_or(30));
    let asked: Vec<&String> = matches.get_many("targets").map(Iterator::collect).unwrap_or_default();
    let chosen: Vec<_> =
        TARGETS.iter().filter(|target| asked.is_empty() || asked.iter().any(|name| *name == target.name)).collect();
    if let Some(file) = matches.get_one::<PathBuf>("input") {
        let [target] = chosen.as_slice() else { bail!("--input needs exactly one target, of: {}", names.join(", ")) };
        let input = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        return match engine::try_one(target, &input) {
            None => {
                println!("{}: nothing wrong with it", target.name);
                Ok(())
            }
            Some(found) => bail!("{}: {}", target.name, found.problem),
        };
    }
    // A panic is a finding and is told as one.
    std::panic::set_hook(Box::new(|_| {}));
    let mut dice = Dice::from_environment();
    println!("BULKHEAD_SEED={}", dice.seed());
    println!("{:<18} {:>12} {:>12}", "target", "inputs", "a second");
    let mut failed = false;
    for target in chosen {
        let begin = Instant::now();
        let (tried, found) = engine::search(target, &mut dice, |_| begin.elapsed() >= seconds);
        let rate = tried as f64 / begin.elapsed().as_secs_f64().max(1e-9);
        println!("{:<18} {tried:>12} {rate:>12.0}", target.name);
        if let Some(found) = found {
            failed = true;
            let file = std::env::temp_dir().join(format!("bulkhead-fuzz-{}", target.name));
            std::fs::write(&file, &found.input).with_context(|| format!("writing {}", file.display()))?;
            println!("  {}\n  input (in {}): {}", found.problem, file.display(), found.input.escape_ascii());
        }
    }
    if failed { bail!("something was found; `cargo xtask fuzz --input FILE TARGET` repeats it") } else { Ok(()) }
}
