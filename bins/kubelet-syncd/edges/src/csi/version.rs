//! Versions that plugins say they support, read as upstream reads them (`k8s.io/apimachinery/pkg/util/version`).

use std::fmt;

/// Dotted numbers, at least two of them; what follows a third one's digits (`-rc.1`, `+build`) is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    major: u32,
    minor: u32,
    patch: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// Why no version counts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    #[error("could not parse \"{0}\" as version")]
    Parse(String),
    #[error(
        "could not find a highest supported version from versions ({versions}) reported by this driver: {problems}"
    )]
    None { versions: String, problems: String },
    #[error("highest supported version reported by driver is {0}, must be v1.x")]
    NotOne(Version),
}

impl Version {
    /// Reads one; a leading `v` is left out, and two numbers do ("1.0").
    ///
    /// # Errors
    /// It is none: nothing but numbers without leading zeros may stand between its dots.
    pub fn parse(text: &str) -> Result<Self, VersionError> {
        let bad = || VersionError::Parse(text.to_owned());
        let trimmed = text.trim();
        let trimmed = trimmed.strip_prefix('v').unwrap_or(trimmed);
        let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let numbers = trimmed.get(..end).unwrap_or_default();
        let mut read = [0; 3];
        let mut count = 0;
        for part in numbers.trim_end_matches('.').split('.') {
            if part.is_empty() || (part.len() > 1 && part.starts_with('0')) {
                return Err(bad());
            }
            let number = part.parse().map_err(|_| bad())?;
            if let Some(place) = read.get_mut(count) {
                *place = number;
            }
            count += 1;
        }
        if count < 2 {
            return Err(bad());
        }
        let [major, minor, patch] = read;
        Ok(Version { major, minor, patch })
    }

    /// The highest of a driver's versions. Those above 1.x are left out, because they may mean anything; 0.x is not served.
    ///
    /// # Errors
    /// See [`VersionError`].
    pub fn highest_supported(versions: &[String]) -> Result<Self, VersionError> {
        let mut problems = Vec::new();
        let mut highest: Option<Version> = None;
        for text in versions {
            match Version::parse(text) {
                Ok(version) if version.major > 1 => {}
                Ok(version) => highest = highest.max(Some(version)),
                Err(error) => problems.push(error.to_string()),
            }
        }
        match highest {
            Some(version) if version.major == 1 => Ok(version),
            Some(version) => Err(VersionError::NotOne(version)),
            None => Err(VersionError::None {
                versions: versions.join(", "),
                problems: format!("[{}]", problems.join(", ")),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn highest(versions: &[&str]) -> Result<String, VersionError> {
        let versions: Vec<String> = versions.iter().map(|v| (*v).to_owned()).collect();
        Version::highest_supported(&versions).map(|v| v.to_string())
    }

    #[test]
    fn the_highest_that_counts() {
        for (versions, want) in [
            (&["1.0.0"][..], "1.0.0"),
            (&["v1.2", "1.10.1", "1.9.9"], "1.10.1"),
            (&["0.3.0", "1.0", "2.0.0"], "1.0.0"),
            (&["nonsense", "1.1.0-rc.1"], "1.1.0"),
        ] {
            assert_eq!(highest(versions).as_deref(), Ok(want), "{versions:?}");
        }
        for bad in [&["2.0.0"][..], &["0.3.0"], &["0.3.0", "2.0"], &["1"], &["", "01.0"], &["1..0"], &[]] {
            assert!(highest(bad).is_err(), "{bad:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,40}") {
            if let Ok(version) = Version::parse(&text) {
                assert_eq!(Version::parse(&version.to_string()), Ok(version));
            }
        }

        #[test]
        fn the_order_in_which_they_are_named_does_not_matter(mut numbers in proptest::collection::vec((0u32..3, 0u32..30), 1..6)) {
            let texts = |numbers: &[(u32, u32)]| numbers.iter().map(|(a, b)| format!("{a}.{b}")).collect::<Vec<_>>();
            let forward = Version::highest_supported(&texts(&numbers)).ok();
            numbers.reverse();
            assert_eq!(forward, Version::highest_supported(&texts(&numbers)).ok());
        }
    }
}
