//! A node on virtual time: the same seed is the same story, fixed seeds hold all checks, and so does every schedule that once failed.
//! Some minutes together, two processes at a time; other seeds are for `cargo xtask simulate`.
#![allow(clippy::unwrap_used, reason = "helpers of tests are no tests to the lint")]

use std::path::{Path, PathBuf};

use bulkhead_simulation::checks::NAMES;
use bulkhead_simulation::mutants::{self, FOUND_IN};
use bulkhead_simulation::schedule::{Family, Schedule};
use bulkhead_simulation::search::{self, Plan};
use parking_lot::Mutex;

/// The seeds of the suite: as many as take less than a minute beside other tests.
const SEEDS: [(Family, u64); 7] = [
    (Family::Pods, 3),
    (Family::Probes, 2),
    (Family::Api, 1),
    (Family::Many, 1),
    (Family::Volumes, 1),
    (Family::Eviction, 1),
    (Family::Claims, 1),
];

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_simulate"))
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn a_seed_is_a_story_to_the_byte() {
    // The family that takes least: whose processes run is the same code for all.
    let schedule = Schedule::of(5, Some(Family::Pods));
    let stories = [0, 1].map(|_| search::run(program(), &schedule, None).unwrap());
    assert!(stories[0].story.len() > 20, "{:#?}", stories[0].story);
    assert_eq!(stories[0].story, stories[1].story);
    assert_eq!((stories[0].turns, &stories[0].coverage), (stories[1].turns, &stories[1].coverage));
}

#[test]
fn all_checks_hold_in_the_seeds_of_the_suite() {
    for (family, seeds) in SEEDS {
        let plan =
            Plan { only: Some(family), first: 1, count: Some(seeds), until: None, most: None, jobs: 2, failures: 1 };
        let found = search::search(program(), plan, None, |_| {}).unwrap();
        assert_eq!(found.runs, seeds);
        if let Some(failed) = found.failed.first() {
            let (seed, family) = (failed.seed, family.name());
            let story = failed.story.join("\n");
            panic!("{:?}; cargo xtask simulate --only {family} --seed {seed}\n{story}", failed.broken);
        }
    }
}

/// Each file is the schedule that once broke a check, named by it: `<what it was>.<check>.json`. Two run at a time.
#[test]
fn all_checks_hold_in_what_once_failed() {
    let folder = std::fs::read_dir(workspace().join("tests/fixtures/simulation")).unwrap();
    let paths = Mutex::new(folder.map(|entry| entry.unwrap().path()));
    let next = || paths.lock().find(|path| path.extension().is_some_and(|extension| extension == "json"));
    let run_all = || {
        while let Some(path) = next() {
            let schedule: Schedule = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            let outcome = search::run(program(), &schedule, None).unwrap();
            let (path, broken) = (path.display(), outcome.broken);
            assert!(broken.is_empty(), "{path}: {broken:?}\n{}", outcome.story.join("\n"));
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(run_all);
        run_all();
    });
}

#[test]
fn every_mutant_fits_the_source() {
    for mutant in mutants::all() {
        let text = std::fs::read_to_string(workspace().join(mutant.file())).unwrap();
        mutant.edit(&text).unwrap();
    }
}

/// A schedule that is tried first for a mutant is there, and of the mutant's family.
#[test]
fn what_finds_a_mutant_is_kept() {
    let folder = std::fs::read_dir(workspace().join("tests/fixtures/simulation")).unwrap();
    let paths: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
    for (kept, mutants) in FOUND_IN {
        let is_it = |path: &&PathBuf| path.file_name().unwrap().to_string_lossy().starts_with(&format!("{kept}."));
        let path = paths.iter().find(is_it).unwrap_or_else(|| panic!("{kept} is not there"));
        let schedule: Schedule = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        for name in mutants {
            let mutant = mutants::all().find(|mutant| mutant.name == *name).unwrap_or_else(|| panic!("no {name}"));
            assert_eq!(mutant.only, Some(schedule.family), "{name} in {kept}");
        }
    }
}

#[test]
fn every_check_has_its_row_in_the_documentation() {
    let text = std::fs::read_to_string(workspace().join("docs/simulation.md")).unwrap();
    for name in NAMES {
        assert!(text.contains(&format!("| `{name}` |")), "docs/simulation.md has no row for {name}");
    }
}
