//! Runs a node on virtual time, driven by seeds, and looks for a run in which a check fails. Run it as `cargo xtask simulate`.

use std::io::{IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bulkhead_simulation::mutants;
use bulkhead_simulation::outcome::{self, Outcome};
use bulkhead_simulation::schedule::{Family, Schedule};
use bulkhead_simulation::search::{self, Found, ONE, Plan};
use clap::builder::PossibleValuesParser;
use clap::{Arg, ArgAction, value_parser};

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("simulate: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn command_line() -> clap::Command {
    let number = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).value_parser(value_parser!(u64)).help(help)
    };
    clap::Command::new("cargo xtask simulate")
        .about("Runs the real kubelet-syncd, kubelet-statusd and kubelet-evictiond between models of their peers on virtual time, driven by seeds (docs/simulation.md)")
        .arg(number("seeds", "N", "So many seeds, from --from on").default_value("100"))
        .arg(number("from", "S", "The first seed").default_value("1"))
        .arg(number("seed", "S", "This seed alone, with its whole story"))
        .arg(number("minutes", "M", "Seeds for so long, instead of a number of them"))
        .arg(number("jobs", "N", "Runs at a time").default_value("2"))
        .arg(number("failures", "N", "Ends after so many runs that failed").default_value("1"))
        .arg(
            Arg::new("only")
                .long("only")
                .value_name("FAMILY")
                .value_parser(Family::ALL.map(Family::name))
                .help("This family of faults and workload alone; without it they take turns"),
        )
        .arg(
            Arg::new("schedule")
                .long("schedule")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("This schedule (JSON, as a failure leaves it), with its whole story"),
        )
        .arg(
            Arg::new("keep")
                .long("keep")
                .value_name("FOLDER")
                .value_parser(value_parser!(PathBuf))
                .help("Writes the shrunk schedule of each failure there, and makes the folder where there is none"),
        )
        .arg(Arg::new("no-shrink").long("no-shrink").action(ArgAction::SetTrue).help("Shows failures as they are"))
        .arg(Arg::new("log").long("log").action(ArgAction::SetTrue).help("With --seed or --schedule: kubelet-syncd's log, too"))
        .arg(
            Arg::new("mutants")
                .long("mutants")
                .action(ArgAction::SetTrue)
                .help("Builds a copy with mistakes in it, and says how soon each is found, in seconds of a processor; with --keep, in which schedule"),
        )
        .arg(
            Arg::new("mutant")
                .long("mutant")
                .value_name("NAME")
                .action(ArgAction::Append)
                .requires("mutants")
                .value_parser(PossibleValuesParser::new(mutants::all().map(|mutant| mutant.name)))
                .help("With --mutants: this one alone"),
        )
        .subcommand(
            clap::Command::new(ONE)
                .hide(true)
                .about("One schedule from standard input")
                .arg(Arg::new("folder").required(true).value_parser(value_parser!(PathBuf))),
        )
}

/// Whether all checks held.
fn run() -> Result<bool> {
    let matches = command_line().get_matches();
    if let Some((ONE, one)) = matches.subcommand() {
        let folder = one.get_one::<PathBuf>("folder").context("no folder")?;
        let mut text = Vec::new();
        std::io::stdin().read_to_end(&mut text).context("reading the schedule")?;
        let outcome = outcome::of(&serde_json::from_slice(&text).context("reading the schedule")?, folder)?;
        println!("{}", serde_json::to_string(&outcome)?);
        return Ok(true);
    }
    if matches.get_flag("mutants") {
        return find_mutants(&matches);
    }
    let number = |name: &str| matches.get_one::<u64>(name).copied();
    let only = matches.get_one::<String>("only").and_then(|name| Family::named(name));
    if let Some(path) = matches.get_one::<PathBuf>("schedule") {
        let text = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        return alone(&serde_json::from_slice(&text)?, matches.get_flag("log"));
    }
    if let Some(seed) = number("seed") {
        return alone(&Schedule::of(seed, only), matches.get_flag("log"));
    }
    let program = std::env::current_exe().context("finding this program")?;
    let minutes = number("minutes").map(|minutes| Duration::from_secs(minutes * 60));
    let began = Instant::now();
    let plan = Plan {
        only,
        first: number("from").unwrap_or(1),
        count: if minutes.is_some() { None } else { number("seeds") },
        until: minutes.map(|minutes| began + minutes),
        most: None,
        jobs: usize::try_from(number("jobs").unwrap_or(2)).unwrap_or(2),
        failures: usize::try_from(number("failures").unwrap_or(1)).unwrap_or(1),
    };
    let quiet = !std::io::stderr().is_terminal();
    let told = AtomicUsize::new(0);
    let found = search::search(&program, plan, None, |found| {
        // A run of hours says at once what it has found; the stories follow at its end.
        if told.swap(found.failed.len(), Ordering::Relaxed) < found.failed.len()
            && let Some(failed) = found.failed.last()
        {
            eprintln!("\rseed {} fails: {}", failed.seed, failed.check().unwrap_or_default());
        }
        if !quiet || found.runs % 100 == 0 {
            eprint!("\r{}{}", speed(found, began), if quiet { "\n" } else { "" });
        }
    })?;
    println!("{}", speed(&found, began));
    println!("{}", found.coverage.table());
    for failed in &found.failed {
        show(&program, failed, &matches)?;
    }
    Ok(found.failed.is_empty())
}

/// A mutant whose runs have taken so much of processors, which is a minute of two, is not found. Time alone says nothing where others
/// use the machine.
const MUTANT_TIME: Duration = Duration::from_secs(120);

/// Whether each mutant was found.
fn find_mutants(matches: &clap::ArgMatches) -> Result<bool> {
    let asked: Vec<&String> = matches.get_many("mutant").map(Iterator::collect).unwrap_or_default();
    let asked = |name: &str| asked.is_empty() || asked.iter().any(|one| *one == name);
    let program = with_mutants()?;
    let kept = kept_schedules()?;
    let mut all = true;
    for mutant in mutants::all().filter(|mutant| asked(mutant.name)) {
        let began = search::taken();
        let seconds = || search::taken().saturating_sub(began).as_secs_f64();
        // A mistake that has been found once may take thousands of seeds to be found again. What was kept for it comes first.
        let same = kept.iter().filter(|(_, schedule)| mutant.only.is_none_or(|family| family == schedule.family));
        let (own, others): (Vec<_>, Vec<_>) = same.partition(|(name, _)| mutant.is_found_in(name));
        let mut found_in = None;
        for (name, schedule) in own.into_iter().chain(others) {
            let outcome = search::run(&program, schedule, Some(mutant.name))?;
            if let Some(check) = outcome.check() {
                found_in = Some((name, schedule, check.to_owned()));
                break;
            }
        }
        if let Some((name, schedule, check)) = found_in {
            println!("{:<17} {check:<20} kept {name} {:>6.1} s  {}", mutant.name, seconds(), mutant.mistake);
            all &= holds_without(&program, schedule)?;
            continue;
        }
        let most = Some(began + MUTANT_TIME);
        let plan = Plan { only: mutant.only, first: 1, count: None, until: None, most, jobs: 2, failures: 1 };
        let found = search::search(&program, plan, Some(mutant.name), |_| {})?;
        let seconds = seconds();
        match found.failed.first() {
            Some(failed) => {
                let check = failed.check().unwrap_or_default();
                println!(
                    "{:<17} {check:<20} seed {:<6} {seconds:>6.1} s  {}",
                    mutant.name, failed.seed, mutant.mistake
                );
                all &= holds_without(&program, &Schedule::of(failed.seed, mutant.only))?;
                if matches.contains_id("keep") {
                    let schedule = Schedule::of(failed.seed, mutant.only);
                    let (schedule, _) = search::shrink(&program, &schedule, check, Some(mutant.name))?;
                    keep(matches, mutant.name, check, &schedule)?;
                }
            }
            None => println!(
                "{:<17} NOT FOUND in {} runs     {seconds:>6.1} s  {}",
                mutant.name, found.runs, mutant.mistake
            ),
        }
        all &= !found.failed.is_empty();
    }
    Ok(all)
}

/// It is the mutant that was found, and not something that is wrong without it.
fn holds_without(program: &Path, schedule: &Schedule) -> Result<bool> {
    let outcome = search::run(program, schedule, None)?;
    if let Some(broken) = outcome.broken.first() {
        println!("{:<17} WITHOUT A MUTANT, TOO: {broken}", "");
    }
    Ok(outcome.broken.is_empty())
}

/// What once broke a check, by its name.
fn kept_schedules() -> Result<Vec<(String, Schedule)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/simulation");
    let mut kept = Vec::new();
    for entry in std::fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let text = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let schedule = serde_json::from_slice(&text).with_context(|| format!("decoding {}", path.display()))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        kept.push((name.split('.').next().unwrap_or_default().to_owned(), schedule));
    }
    kept.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(kept)
}

/// This program with all mutants in it, built as this one was.
fn with_mutants() -> Result<PathBuf> {
    let workspace =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().context("finding the workspace")?;
    let this = std::env::current_exe().context("finding this program")?;
    let built = this.parent().context("this program lies in no folder")?;
    let target = built.parent().context("finding the folder of what is built")?;
    let folder = built.file_name().and_then(|name| name.to_str()).context("the name of a profile")?;
    let profile = if folder == "debug" { "dev" } else { folder };
    let copy = target.join("mutants/source");
    mutants::write(&workspace, &copy)?;
    eprintln!("building with {} mutants", mutants::all().count());
    let status = std::process::Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--locked", "--quiet", "--package", "bulkhead-simulation", "--profile", profile])
        .arg("--target-dir")
        .arg(target)
        .env(mutants::COPIED_FROM, &workspace)
        .current_dir(&copy)
        .status()
        .context("starting cargo")?;
    anyhow::ensure!(status.success(), "the copy with mutants cannot be built");
    let program = target.join("mutants/simulate");
    std::fs::copy(built.join("simulate"), &program).context("keeping the program with mutants")?;
    // To cargo the copy's packages are the workspace's own, built: without their source the next build of the workspace is one.
    std::fs::remove_dir_all(&copy).context("removing the copy")?;
    Ok(program)
}

fn speed(found: &Found, began: Instant) -> String {
    let seconds = began.elapsed().as_secs_f64().max(0.001);
    let virtual_hours = found.lasted.as_secs_f64() / 3600.0;
    format!(
        "{} schedules ({:.1} a second), {} lives of pods ({:.1} a second), {virtual_hours:.1} h of virtual time, \
         {:.1} min of processors, {} failed",
        found.runs,
        found.runs as f64 / seconds,
        found.lives,
        found.lives as f64 / seconds,
        search::taken().as_secs_f64() / 60.0,
        found.failed.len()
    )
}

/// One schedule in this process, with its story.
fn alone(schedule: &Schedule, log: bool) -> Result<bool> {
    if log {
        bulkhead_daemon::logging::start(bulkhead_daemon::logging::LogFormat::Text, 4, None);
    }
    let folder = outcome::folder()?;
    let outcome = outcome::of(schedule, folder.path())?;
    tell(&outcome);
    Ok(outcome.check().is_none())
}

fn tell(outcome: &Outcome) {
    for line in outcome.story.iter().chain(&outcome.picture) {
        println!("{line}");
    }
    match outcome.broken.first() {
        Some(broken) => println!("seed {}: {broken}", outcome.seed),
        None => println!("seed {}: all checks held", outcome.seed),
    }
}

fn show(program: &Path, failed: &Outcome, matches: &clap::ArgMatches) -> Result<()> {
    let Some(check) = failed.check() else { return Ok(()) };
    println!("\nseed {} fails: {}", failed.seed, failed.broken.first().map_or("", String::as_str));
    let only = matches.get_one::<String>("only").and_then(|name| Family::named(name));
    let schedule = Schedule::of(failed.seed, only);
    if matches.get_flag("no-shrink") {
        tell(failed);
        return keep(matches, &format!("seed-{}", failed.seed), check, &schedule);
    }
    let (schedule, outcome) = search::shrink(program, &schedule, check, None)?;
    println!("The shortest story in which that happens ({} steps):", schedule.steps.len());
    tell(&outcome);
    keep(matches, &format!("seed-{}", failed.seed), check, &schedule)
}

/// Writes the schedule where --keep says, named by what it is and by the check that it breaks; without, prints it.
fn keep(matches: &clap::ArgMatches, what: &str, check: &str, schedule: &Schedule) -> Result<()> {
    let Some(folder) = matches.get_one::<PathBuf>("keep") else {
        println!("its schedule, for --schedule: {}", serde_json::to_string(schedule)?);
        return Ok(());
    };
    std::fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    let path = folder.join(format!("{what}.{check}.json"));
    let text = serde_json::to_string_pretty(schedule)?;
    std::fs::write(&path, text + "\n").with_context(|| format!("writing {}", path.display()))?;
    println!("kept as {}", path.display());
    Ok(())
}
