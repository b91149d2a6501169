//! Two versions of the programs, measured in turn in one run: A B A B. What the machine does meanwhile happens to both, so the
//! ratios of neighbours say what the measured of two runs cannot, and their spread says how much of it to believe.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::previous;
use serde_json::{Value, json};

/// A figure whose ratios all lie further than this from 1, on the same side, has changed.
const NOTHING: f64 = 0.05;

/// Of fewer rounds nothing is said: two may differ by chance.
const ENOUGH: usize = 3;

/// A figure of one version: section and row, and what it is in.
type Measurements = BTreeMap<(String, String), (f64, String)>;

/// One line: a figure's values in each round, before and now.
#[derive(Debug, PartialEq)]
struct Compared {
    section: String,
    what: String,
    unit: String,
    before: Vec<f64>,
    now: Vec<f64>,
}

/// Measures the programs in `before` and in `now`, in turn, as often as `rounds` says; `options` are those of one measurement.
///
/// # Errors
/// A measurement failed, or said nothing that both versions have.
pub fn run(before: &Path, now: &Path, rounds: usize, options: &[String], as_json: bool) -> Result<()> {
    // Both are written anew, side by side: how the kernel holds a program's pages depends on how they came there, and shows in
    // the memory of its processes (15 % of the same program, built and copied).
    let place = tempfile::tempdir().context("making a folder for the programs")?;
    let (before, now) = (copy(before, &place.path().join("before"))?, copy(now, &place.path().join("now"))?);
    let mut measured = Vec::new();
    for round in 0..rounds.max(1) {
        for (which, programs) in [("before", &before), ("now", &now)] {
            eprintln!("bench: round {} of {rounds}: {which}, {}", round + 1, programs.display());
            measured.push(measurements_of(&measure(programs, options)?));
        }
    }
    let compared = compare(&measured);
    ensure!(!compared.is_empty(), "the two versions have no figure in common");
    if as_json {
        println!("{:#}", compared.iter().map(Compared::json).collect::<Value>());
    } else {
        print!("{}", table(&compared));
    }
    Ok(())
}

fn copy(programs: &Path, into: &Path) -> Result<PathBuf> {
    std::fs::create_dir(into).with_context(|| into.display().to_string())?;
    for program in previous::programs() {
        let path = programs.join(program);
        std::fs::copy(&path, into.join(program)).with_context(|| format!("copying {}", path.display()))?;
    }
    Ok(into.to_owned())
}

/// Another process each time: the programs under test are chosen once in a process.
fn measure(programs: &Path, options: &[String]) -> Result<Value> {
    let mut command = Command::new(std::env::current_exe().context("which program this is")?);
    command.args(options).arg("--json").env("BULKHEAD_BIN_DIR", programs).stdout(Stdio::piped());
    let output = command.spawn().context("starting a measurement")?.wait_with_output()?;
    ensure!(output.status.success(), "measuring {} failed ({})", programs.display(), output.status);
    serde_json::from_slice(&output.stdout).context("reading what a measurement said")
}

fn measurements_of(sections: &Value) -> Measurements {
    let mut measured = Measurements::new();
    for (title, section) in sections.as_object().into_iter().flatten() {
        for row in section["rows"].as_array().into_iter().flatten() {
            let (Some(what), Some(value)) = (row["what"].as_str(), row["node"].as_f64()) else { continue };
            let unit = row["unit"].as_str().unwrap_or_default().to_owned();
            // Processes and requests are parts of several measured.
            let name = row["of"].as_str().map_or_else(|| what.to_owned(), |whole| format!("{whole}: {what}"));
            measured.insert((title.clone(), name), (value, unit));
        }
    }
    measured
}

/// `measured` is before, now, before, now; only what all have is compared.
fn compare(measured: &[Measurements]) -> Vec<Compared> {
    let Some(first) = measured.first() else { return Vec::new() };
    let common = first.iter().filter(|(name, _)| measured.iter().all(|one| one.contains_key(*name)));
    common
        .map(|(name, (_, unit))| {
            let of = |which: usize| measured.iter().skip(which).step_by(2).map(|one| one[name].0).collect();
            Compared { section: name.0.clone(), what: name.1.clone(), unit: unit.clone(), before: of(0), now: of(1) }
        })
        .collect()
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.len() % 2, sorted.get(middle)) {
        (0, Some(upper)) => (sorted[middle - 1] + upper) / 2.0,
        (_, Some(value)) => *value,
        (_, None) => 0.0,
    }
}

impl Compared {
    /// Of neighbours. Two zeros are the same; something against nothing has no ratio.
    fn ratios(&self) -> Vec<f64> {
        let pairs = self.before.iter().zip(&self.now);
        let mut ratios: Vec<f64> = pairs
            .filter_map(|(before, now)| match (*before == 0.0, *now == 0.0) {
                (true, true) => Some(1.0),
                (true, false) => None,
                _ => Some(now / before),
            })
            .collect();
        ratios.sort_by(f64::total_cmp);
        ratios
    }

    /// Less is better in every figure there is.
    fn verdict(&self) -> &'static str {
        let ratios = self.ratios();
        match (ratios.first(), ratios.last()) {
            _ if ratios.len() < ENOUGH => "",
            (Some(least), _) if *least > 1.0 + NOTHING => "MORE",
            (_, Some(most)) if *most < 1.0 - NOTHING => "less",
            _ => "",
        }
    }

    fn json(&self) -> Value {
        let ratios = self.ratios();
        json!({
            "section": self.section, "what": self.what, "unit": self.unit, "before": self.before, "now": self.now,
            "ratio": (!ratios.is_empty()).then(|| median(&ratios)), "least": ratios.first(), "most": ratios.last(),
            "verdict": self.verdict(),
        })
    }
}

fn table(compared: &[Compared]) -> String {
    let width = compared.iter().map(|one| one.what.len()).max().unwrap_or(0);
    let number = |value: f64| if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.3}") };
    let mut text = String::new();
    let mut section = "";
    for one in compared {
        if one.section != section {
            section = &one.section;
            let _ = writeln!(
                text,
                "\n{section:width$}  {:>9}  {:>9}  {:<11}  {:>6}  {:>13}",
                "before", "now", "", "ratio", "least-most"
            );
        }
        let ratios = one.ratios();
        let (ratio, spread) = match (ratios.first(), ratios.last()) {
            (Some(least), Some(most)) => (format!("{:.2}", median(&ratios)), format!("{least:.2}-{most:.2}")),
            _ => ("-".to_owned(), "-".to_owned()),
        };
        let _ = writeln!(
            text,
            "{:width$}  {:>9}  {:>9}  {:<11}  {ratio:>6}  {spread:>13}  {}",
            one.what,
            number(median(&one.before)),
            number(median(&one.now)),
            one.unit,
            one.verdict()
        );
    }
    let rounds = compared.first().map_or(0, |one| one.before.len());
    let _ = writeln!(
        text,
        "\n{rounds} rounds, before and now in turn. before, now: medians; ratio: the median of the rounds' own, with the least and \
         the most of them. MORE and less: every round's, of {ENOUGH} or more, is beyond {:.0} %.",
        NOTHING * 100.0
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(start: f64, idle: f64) -> Measurements {
        let row = |what: &str, node: f64, of: Option<&str>| json!({"what": what, "node": node, "unit": "s", "of": of});
        let parts = [row("kubelet", 1.0, Some("start")), row("kubelet", 2.0, Some("idle"))];
        let [one, other] = parts;
        measurements_of(
            &json!({"standalone": {"rows": [row("start", start, None), one, row("idle", idle, None), other]}}),
        )
    }

    #[test]
    fn rounds_are_compared_with_their_neighbours() {
        // The machine is twice as slow in the second round, for both.
        let mut rounds = vec![measured(1.0, 2.0), measured(1.2, 2.0), measured(2.0, 4.0), measured(2.6, 3.9)];
        assert_eq!(compare(&rounds)[2].verdict(), "", "two rounds are too few");
        rounds.extend([measured(1.0, 2.0), measured(1.25, 2.0)]);
        let compared = compare(&rounds);
        let names: Vec<&str> = compared.iter().map(|one| one.what.as_str()).collect();
        assert_eq!(names, ["idle", "idle: kubelet", "start", "start: kubelet"]);
        let (idle, start) = (&compared[0], &compared[2]);
        assert_eq!(
            (start.before.as_slice(), start.now.as_slice()),
            ([1.0, 2.0, 1.0].as_slice(), [1.2, 2.6, 1.25].as_slice())
        );
        assert_eq!(start.ratios(), [1.2, 1.25, 1.3]);
        assert_eq!((start.verdict(), idle.verdict()), ("MORE", ""));
        let text = table(&compared);
        assert!(text.contains("1.25      1.20-1.30  MORE\n") && text.contains("3 rounds"), "{text}");
    }

    #[test]
    fn what_only_one_version_has_is_left_out_and_zeros_have_ratios() {
        let mut more = measured(1.0, 0.0);
        more.insert(("cluster".to_owned(), "new".to_owned()), (1.0, String::new()));
        let compared = compare(&[measured(1.0, 0.0), more]);
        assert_eq!(compared.len(), 4);
        assert_eq!(compared[0].ratios(), [1.0]);
        let text = String::new;
        let appeared = Compared { section: text(), what: text(), unit: text(), before: vec![0.0], now: vec![1.0] };
        assert_eq!((appeared.ratios(), appeared.verdict()), (Vec::new(), ""));
    }

    #[test]
    fn a_lower_value_is_marked_too() {
        let now = [0.5, 0.9, 0.8].map(|start| measured(start, 2.0));
        let compared = compare(&now.into_iter().flat_map(|now| [measured(1.0, 2.0), now]).collect::<Vec<_>>());
        assert_eq!(compared[2].verdict(), "less");
    }
}
