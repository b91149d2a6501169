//! Numbers over time as text: a line of bars, and a chart of some lines with a mark in it. Pure.

/// Eighths of a cell.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Where nothing is known.
const UNKNOWN: char = '·';
const MARK: char = '┄';

/// Height of a value between two bounds, in eighths of a cell, 1 to `cells` times 8.
fn eighths(value: i64, low: i64, high: i64, cells: usize) -> usize {
    let steps = cells * BARS.len();
    let (value, span) = (i128::from(value) - i128::from(low), i128::from(high) - i128::from(low));
    if span <= 0 {
        return steps;
    }
    let at = value.clamp(0, span) * i128::try_from(steps - 1).unwrap_or(1) / span;
    usize::try_from(at).unwrap_or(0) + 1
}

/// Smallest and largest of what is known.
fn bounds(points: &[Option<i64>], mark: Option<i64>) -> Option<(i64, i64)> {
    let known = || points.iter().flatten().copied().chain(mark);
    Some((known().min()?, known().max()?))
}

/// One character a point, between the least and the most of them.
pub(crate) fn bars(points: &[Option<i64>]) -> String {
    let Some((low, high)) = bounds(points, None) else { return String::new() };
    let bar = |point: &Option<i64>| point.map_or(UNKNOWN, |value| BARS[eighths(value, low, high, 1).clamp(1, 8) - 1]);
    points.iter().map(bar).collect()
}

/// Lines from the top down, each with a label before it: of the largest value, of the mark, of the least value.
pub(crate) fn chart(
    points: &[Option<i64>],
    mark: i64,
    height: usize,
    label: impl Fn(i64) -> String,
) -> Vec<(String, String)> {
    let Some((low, high)) = bounds(points, Some(mark)) else { return Vec::new() };
    let marked = (eighths(mark, low, high, height).max(1) - 1) / BARS.len();
    let cell = |point: &Option<i64>, row: usize| {
        let empty = if row == marked { MARK } else { ' ' };
        match point {
            None if row == 0 => UNKNOWN,
            None => empty,
            Some(value) => match eighths(*value, low, high, height).checked_sub(row * BARS.len()) {
                None | Some(0) => empty,
                Some(filled) => BARS[filled.min(BARS.len()) - 1],
            },
        }
    };
    let line = |row: usize| {
        let text = match row {
            _ if row == marked => label(mark),
            _ if row + 1 == height => label(high),
            0 => label(low),
            _ => String::new(),
        };
        (text, points.iter().map(|point| cell(point, row)).collect())
    };
    (0..height).rev().map(line).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bars_span_from_the_least_to_the_most() {
        assert_eq!(bars(&[Some(0), Some(50), None, Some(100)]), "▁▄·█");
        assert_eq!(bars(&[Some(7), Some(7)]), "██");
        assert_eq!(bars(&[None]), "");
        assert_eq!(bars(&[Some(i64::MIN), Some(i64::MAX)]), "▁█");
    }

    #[test]
    fn a_chart_has_its_mark() {
        let chart = chart(&[Some(100), Some(75), Some(25), None, Some(0)], 40, 4, |value| value.to_string());
        let expected = [("100", "█    "), ("", "██   "), ("40", "██┄┄┄"), ("0", "███·▁")];
        assert_eq!(chart, expected.map(|(label, line)| (label.to_owned(), line.to_owned())));
    }

    proptest! {
        #[test]
        fn always_as_wide_as_there_are_points(points in prop::collection::vec(any::<Option<i64>>(), 1..80), mark in any::<i64>(), height in 1..10_usize) {
            let chart = chart(&points, mark, height, |value| value.to_string());
            prop_assert_eq!(chart.len(), height);
            prop_assert!(chart.iter().all(|(_, line)| line.chars().count() == points.len()));
            let known = points.iter().any(Option::is_some);
            prop_assert_eq!(bars(&points).chars().count(), if known { points.len() } else { 0 });
        }
    }
}
