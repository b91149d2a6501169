//! Where the time of pods goes, as a picture (SVG): a start and a deletion step by step, and of many at once each pod's time as a
//! line. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;

use super::timeline::{Owner, Slice};
use super::{Measurements, Timelines};

const WIDTH: f64 = 960.0;
/// For names of steps, and the room to the right.
const LEFT: f64 = 250.0;
const RIGHT: f64 = 70.0;
const STEP: f64 = 16.0;
const HEADING: f64 = 28.0;
const GAP: f64 = 22.0;
const MANY_HEIGHT: f64 = 260.0;
/// Of the lines of many pods.
const COLUMNS: usize = 940;
/// What takes less of the time is not worth a line of its own.
const LEAST_SHARE: f64 = 0.004;

/// Told apart by people who do not see red or green, too.
const fn colour(owner: Owner) -> &'static str {
    match owner {
        Owner::ApiServer => "#4477aa",
        Owner::Watch => "#88ccee",
        Owner::Queue => "#dddddd",
        Owner::Runtime => "#ee8866",
        Owner::Volnetd => "#44aa99",
        Owner::Node => "#aa4499",
        Owner::Waits => "#999933",
    }
}

/// The whole picture.
pub fn svg(measured: &Measurements) -> String {
    let mut body = String::new();
    let mut y = legend(&mut body);
    for (title, timelines) in [("start one pod", &measured.start_one), ("delete one pod", &measured.delete_one)] {
        if let Some(slices) = of_the_middle(timelines) {
            y = steps(&mut body, y, title, slices);
        }
    }
    for (title, timelines) in [("start", &measured.start_many), ("delete", &measured.delete_many)] {
        if !timelines.is_empty() {
            y = many(&mut body, y, &format!("{title} {} pods at once, a line each", timelines.len()), timelines);
        }
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {y:.0}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{WIDTH}\" height=\"{y:.0}\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

fn legend(body: &mut String) -> f64 {
    let room = WIDTH / Owner::ALL.len() as f64;
    for (index, owner) in Owner::ALL.into_iter().enumerate() {
        let x = 10.0 + index as f64 * room;
        let _ = writeln!(
            body,
            "<rect x=\"{x:.1}\" y=\"8\" width=\"11\" height=\"11\" fill=\"{}\"/><text x=\"{:.1}\" y=\"18\">{}</text>",
            colour(owner),
            x + 16.0,
            owner.name()
        );
    }
    38.0
}

const fn begin(slices: &[Slice]) -> u64 {
    match slices.first() {
        Some(first) => first.begin,
        None => 0,
    }
}

const fn end(slices: &[Slice]) -> u64 {
    match slices.last() {
        Some(last) => last.end,
        None => 0,
    }
}

fn took(slices: &[Slice]) -> u64 {
    end(slices).saturating_sub(begin(slices))
}

/// The one that took neither long nor short.
fn of_the_middle(timelines: &Timelines) -> Option<&Vec<Slice>> {
    let mut sorted: Vec<&Vec<Slice>> = timelines.iter().collect();
    sorted.sort_by_key(|slices| took(slices));
    sorted.get(sorted.len() / 2).copied()
}

fn heading(body: &mut String, y: f64, title: &str, nanos: u64) {
    let _ = writeln!(body, "<text x=\"10\" y=\"{y:.1}\" font-weight=\"bold\">{title}: {}</text>", time(nanos));
}

/// `213 ms`, `14.6 s`
fn time(nanos: u64) -> String {
    let ms = nanos as f64 / 1e6;
    if ms >= 1000.0 { format!("{:.1} s", ms / 1000.0) } else { format!("{ms:.1} ms") }
}

/// One pod: a line for each step.
fn steps(body: &mut String, y: f64, title: &str, slices: &[Slice]) -> f64 {
    let (from, whole) = (begin(slices), took(slices).max(1));
    let scale = (WIDTH - LEFT - RIGHT) / whole as f64;
    heading(body, y + 12.0, title, whole);
    let mut y = y + HEADING;
    for slice in slices.iter().filter(|slice| slice.took() as f64 >= whole as f64 * LEAST_SHARE) {
        let x = (slice.begin - from) as f64 * scale + LEFT;
        let width = (slice.took() as f64 * scale).max(1.0);
        let _ = writeln!(
            body,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}: {}</text>\
             <rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"#555555\">{}</text>",
            LEFT - 8.0,
            y + 9.0,
            slice.owner.name(),
            slice.what,
            y,
            STEP - 4.0,
            colour(slice.owner),
            x + width + 4.0,
            y + 9.0,
            time(slice.took())
        );
        y += STEP;
    }
    y + GAP
}

/// Many pods on one scale, those that were done first on top.
fn many(body: &mut String, y: f64, title: &str, timelines: &Timelines) -> f64 {
    let from = timelines.iter().map(|slices| begin(slices)).min().unwrap_or(0);
    let whole = timelines.iter().map(|slices| end(slices)).max().unwrap_or(0).saturating_sub(from).max(1);
    heading(body, y + 12.0, title, whole);
    let y = y + HEADING - 6.0;
    let line = MANY_HEIGHT / timelines.len() as f64;
    let mut sorted: Vec<&Vec<Slice>> = timelines.iter().collect();
    sorted.sort_by_key(|slices| end(slices));
    // One path a colour: a rectangle for each step of each pod would be half a megabyte.
    let mut paths: BTreeMap<usize, String> = BTreeMap::new();
    for (index, slices) in sorted.into_iter().enumerate() {
        for (owner, columns) in runs(slices, from, whole) {
            let path = paths.entry(owner).or_default();
            let (x, y, width) = (columns.start + 10, y + index as f64 * line, columns.len());
            let _ = write!(path, "M{x} {y:.1}h{width}v{:.1}h-{width}z", line * 0.85);
        }
    }
    for (owner, path) in paths {
        let _ = writeln!(body, "<path d=\"{path}\" fill=\"{}\"/>", colour(Owner::ALL[owner]));
    }
    y + MANY_HEIGHT + GAP
}

/// What a pod's line shows in each of its [`COLUMNS`] columns: whose the largest part of that time is, by its place in
/// [`Owner::ALL`]; neighbours of one owner together.
fn runs(slices: &[Slice], from: u64, whole: u64) -> Vec<(usize, Range<usize>)> {
    let width = (whole as f64 / COLUMNS as f64).max(1.0);
    let mut shares = vec![[0.0; Owner::ALL.len()]; COLUMNS];
    for slice in slices {
        let (begin, end) = ((slice.begin - from) as f64 / width, (slice.end - from) as f64 / width);
        let owner = Owner::ALL.iter().position(|owner| *owner == slice.owner).unwrap_or(0);
        for (column, share) in shares.iter_mut().enumerate().take(end.ceil() as usize).skip(begin as usize) {
            share[owner] += end.min(column as f64 + 1.0) - begin.max(column as f64);
        }
    }
    let mut runs: Vec<(usize, Range<usize>)> = Vec::new();
    for (column, share) in shares.iter().enumerate() {
        let most = share.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        let Some((owner, _)) = most.filter(|(_, share)| **share > 0.0) else { continue };
        match runs.last_mut() {
            Some((last, columns)) if *last == owner && columns.end == column => columns.end = column + 1,
            _ => runs.push((owner, column..column + 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_and_each_pod_has_its_place() {
        let slice = |owner, begin, end| Slice { owner, what: "x".to_owned(), begin, end };
        let pod = vec![slice(Owner::ApiServer, 1_000, 2_000_000), slice(Owner::Runtime, 2_000_000, 3_001_000)];
        let measured = Measurements {
            start_one: vec![pod.clone()],
            start_many: vec![pod.clone(), pod],
            ..Measurements::default()
        };
        let text = svg(&measured);
        assert!(text.contains("start one pod: 3.0 ms") && text.contains("start 2 pods at once"), "{text}");
        assert!(!text.contains("delete"), "{text}");
        // Legend, background, two steps.
        assert_eq!(text.matches("<rect").count(), Owner::ALL.len() + 1 + 2);
        // Two pods of two colours.
        assert_eq!((text.matches("<path").count(), text.matches('M').count()), (2, 4));
        assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
    }

    #[test]
    fn a_column_shows_what_takes_most_of_it() {
        let slice = |owner, begin, end| Slice { owner, what: String::new(), begin, end };
        let place = |owner| Owner::ALL.iter().position(|other| *other == owner).unwrap();
        // Ten nanoseconds a column.
        let whole = COLUMNS as u64 * 10;
        let slices = [
            slice(Owner::Queue, 100, 126),
            slice(Owner::Node, 126, 129),
            slice(Owner::Runtime, 129, 150),
            slice(Owner::Queue, 160, 161),
        ];
        let (queue, runtime) = (place(Owner::Queue), place(Owner::Runtime));
        assert_eq!(runs(&slices, 100, whole), [(queue, 0..3), (runtime, 3..5), (queue, 6..7)]);
        assert_eq!(runs(&[slice(Owner::Queue, 0, whole)], 0, whole), [(queue, 0..COLUMNS)]);
    }

    #[test]
    fn times_are_short() {
        assert_eq!([time(213_400_000), time(14_560_000_000)], ["213.4 ms", "14.6 s"]);
    }
}
