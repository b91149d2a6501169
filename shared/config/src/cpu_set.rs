//! Lists of CPUs as the kernel and upstream write them: `0,2-4`.

use std::collections::BTreeSet;
use std::fmt;

/// No machine has more; a bound for ranges that are typed wrongly.
const MAX_CPU: u32 = 65_535;

/// A set of CPU numbers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct CpuSet(BTreeSet<u32>);

/// Why a text is no list of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be a list of CPUs and ranges such as \"0,2-4\"")]
pub struct CpuSetError;

impl CpuSet {
    /// Parses `0,2-4`; the empty text is the empty set.
    pub fn parse(text: &str) -> Result<Self, CpuSetError> {
        let mut set = BTreeSet::new();
        if text.is_empty() {
            return Ok(CpuSet(set));
        }
        let number = |text: &str| text.parse::<u32>().ok().filter(|cpu| *cpu <= MAX_CPU).ok_or(CpuSetError);
        for part in text.split(',') {
            match part.split_once('-') {
                None => {
                    set.insert(number(part)?);
                }
                Some((first, last)) => {
                    let (first, last) = (number(first)?, number(last)?);
                    if first > last {
                        return Err(CpuSetError);
                    }
                    set.extend(first..=last);
                }
            }
        }
        Ok(CpuSet(set))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn is_subset(&self, other: &CpuSet) -> bool {
        self.0.is_subset(&other.0)
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// What is in either.
    #[must_use]
    pub fn union(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.union(&other.0).copied().collect())
    }

    /// What is in both.
    #[must_use]
    pub fn intersection(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.intersection(&other.0).copied().collect())
    }

    /// What is in this one and not in the other.
    #[must_use]
    pub fn difference(&self, other: &CpuSet) -> CpuSet {
        CpuSet(self.0.difference(&other.0).copied().collect())
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        CpuSet(cpus.into_iter().collect())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.0.iter().copied().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while cpus.next_if_eq(&(last + 1)).is_some() {
                last += 1;
            }
            f.write_str(separator)?;
            if last > first {
                write!(f, "{first}-{last}")?
            } else {
                write!(f, "{first}")?
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn table() {
        for (text, printed) in
            [("", ""), ("0", "0"), ("0,2-4", "0,2-4"), ("4,3,2,0", "0,2-4"), ("1-1", "1"), ("0-1,1-2", "0-2")]
        {
            assert_eq!(CpuSet::parse(text).unwrap().to_string(), printed);
        }
        for bad in ["a", "1-", "-1", "3-1", "1,,2", ",", "1;2", "99999999", "0-4294967295"] {
            assert_eq!(CpuSet::parse(bad), Err(CpuSetError), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn round_trips(cpus in proptest::collection::btree_set(0_u32..300, 0..40)) {
            let set = CpuSet(cpus);
            prop_assert_eq!(CpuSet::parse(&set.to_string()), Ok(set));
        }

        #[test]
        fn sets_are_split_and_joined(
            one in proptest::collection::btree_set(0_u32..40, 0..20),
            other in proptest::collection::btree_set(0_u32..40, 0..20),
        ) {
            let (one, other): (CpuSet, CpuSet) = (one.into_iter().collect(), other.into_iter().collect());
            let (both, rest) = (one.intersection(&other), one.difference(&other));
            prop_assert!(both.iter().all(|cpu| other.contains(cpu)) && !rest.iter().any(|cpu| other.contains(cpu)));
            prop_assert_eq!(both.union(&rest), one);
        }

        #[test]
        fn never_panics(text in "[0-9,-]{0,20}") {
            let _ = CpuSet::parse(&text);
        }
    }
}
