//! Pressure stall information: the lines of `cpu.pressure` and its kin. Pure.

/// What one file of pressure says.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Psi {
    pub some: Line,
    /// Zero where the kernel does not give it (the machine's CPU on older kernels).
    pub full: Line,
}

/// One of its lines: microseconds in all, and percent of the last 10, 60 and 300 seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Line {
    pub total: u64,
    pub avg10: f64,
    pub avg60: f64,
    pub avg300: f64,
}

/// The three files of one cgroup; absent where the kernel has none.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pressure {
    pub cpu: Option<Psi>,
    pub memory: Option<Psi>,
    pub io: Option<Psi>,
}

/// Reads one file. `None` when it has no "some" line.
pub fn parse(text: &[u8]) -> Option<Psi> {
    let text = std::str::from_utf8(text).ok()?;
    let line = |name: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        let mut line = Line::default();
        for field in rest.split_ascii_whitespace() {
            let (key, value) = field.split_once('=')?;
            match key {
                "total" => line.total = value.parse().ok()?,
                "avg10" => line.avg10 = percent(value)?,
                "avg60" => line.avg60 = percent(value)?,
                "avg300" => line.avg300 = percent(value)?,
                _ => {}
            }
        }
        Some(line)
    };
    Some(Psi { some: line("some")?, full: line("full").unwrap_or_default() })
}

fn percent(text: &str) -> Option<f64> {
    text.parse().ok().filter(|value: &f64| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_lines_or_one() {
        let both = b"some avg10=19.33 avg60=11.31 avg300=13.37 total=9026379732\n\
                     full avg10=0.50 avg60=0.00 avg300=0.00 total=7\n";
        let psi = parse(both).unwrap();
        assert_eq!(psi.some, Line { total: 9_026_379_732, avg10: 19.33, avg60: 11.31, avg300: 13.37 });
        assert_eq!((psi.full.total, psi.full.avg10), (7, 0.5));
        let old = parse(b"some avg10=0.00 avg60=0.00 avg300=0.00 total=5\n").unwrap();
        assert_eq!((old.some.total, old.full), (5, Line::default()));
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"some avg10=NaN total=1\n"), None);
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&text);
        }
    }
}
