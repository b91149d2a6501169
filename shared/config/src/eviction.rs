//! Eviction statements: `memory.available<100Mi`, `nodefs.inodesFree<5%`.
//!
//! Grammar and limits are upstream's (`pkg/kubelet/eviction/helpers.go`); the operator is always "less than".

use std::time::Duration;

use bulkhead_types::{GoDuration, Quantity};

use crate::field::FieldError;
use crate::kubelet::{KubeletConfiguration, TextMap};

/// What is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Signal {
    MemoryAvailable,
    NodeFsAvailable,
    NodeFsInodesFree,
    ImageFsAvailable,
    ImageFsInodesFree,
    ContainerFsAvailable,
    ContainerFsInodesFree,
    AllocatableMemoryAvailable,
    PidAvailable,
}

impl Signal {
    pub const ALL: [Signal; 9] = [
        Signal::MemoryAvailable,
        Signal::NodeFsAvailable,
        Signal::NodeFsInodesFree,
        Signal::ImageFsAvailable,
        Signal::ImageFsInodesFree,
        Signal::ContainerFsAvailable,
        Signal::ContainerFsInodesFree,
        Signal::AllocatableMemoryAvailable,
        Signal::PidAvailable,
    ];

    /// As written in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Signal::MemoryAvailable => "memory.available",
            Signal::NodeFsAvailable => "nodefs.available",
            Signal::NodeFsInodesFree => "nodefs.inodesFree",
            Signal::ImageFsAvailable => "imagefs.available",
            Signal::ImageFsInodesFree => "imagefs.inodesFree",
            Signal::ContainerFsAvailable => "containerfs.available",
            Signal::ContainerFsInodesFree => "containerfs.inodesFree",
            Signal::AllocatableMemoryAvailable => "allocatableMemory.available",
            Signal::PidAvailable => "pid.available",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Signal::ALL.into_iter().find(|signal| signal.as_str() == text)
    }
}

/// The value that a signal must not fall below.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Limit {
    Quantity(Quantity),
    /// Fraction of the capacity, 0 to 1. In single precision, as upstream has it.
    Fraction(f32),
}

impl Limit {
    /// In units of the signal, for this capacity.
    pub fn absolute(self, capacity: i64) -> i64 {
        match self {
            Limit::Quantity(quantity) => quantity.value(),
            // Upstream `pkg/kubelet/eviction/api` GetThresholdQuantity.
            Limit::Fraction(fraction) => (capacity as f64 * f64::from(fraction)) as i64,
        }
    }
}

/// One threshold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threshold {
    pub signal: Signal,
    pub limit: Limit,
    /// Zero for a hard threshold.
    pub grace_period: Duration,
    pub min_reclaim: Option<Limit>,
}

impl Threshold {
    pub fn is_hard(&self) -> bool {
        self.grace_period.is_zero()
    }
}

const SIGNALS: &str = "must be a signal among memory.available, nodefs.available, nodefs.inodesFree, imagefs.available, \
                       imagefs.inodesFree, containerfs.available, containerfs.inodesFree, pid.available";
const VALUES: &str = "must be a quantity above 0 such as 100Mi, or a percentage from 0% to 100%";

fn percentage(text: &str) -> Option<f32> {
    text.strip_suffix('%')?.parse::<f32>().ok().filter(|number| number.is_finite())
}

/// `None`: the literals `0%` and `100%` switch the threshold off.
fn parse_limit(text: &str) -> Result<Option<Limit>, &'static str> {
    if text == "0%" || text == "100%" {
        return Ok(None);
    }
    if text.ends_with('%') {
        let percent = percentage(text).filter(|p| (0.0..=100.0).contains(p)).ok_or(VALUES)?;
        return Ok(Some(Limit::Fraction(percent / 100.0)));
    }
    let quantity = Quantity::parse(text).map_err(|_| VALUES)?;
    if quantity.is_negative() || quantity.is_zero() {
        return Err(VALUES);
    }
    Ok(Some(Limit::Quantity(quantity)))
}

fn parse_reclaim(text: &str) -> Result<Limit, &'static str> {
    const ALLOWED: &str = "must be a quantity of at least 0 such as 500Mi, or a percentage above 0%";
    if text.ends_with('%') {
        let percent = percentage(text).filter(|p| *p > 0.0).ok_or(ALLOWED)?;
        return Ok(Limit::Fraction(percent / 100.0));
    }
    let quantity = Quantity::parse(text).map_err(|_| ALLOWED)?;
    if quantity.is_negative() { Err(ALLOWED) } else { Ok(Limit::Quantity(quantity)) }
}

/// All thresholds of a configuration, hard ones first, or every error.
pub fn parse_all(config: &KubeletConfiguration) -> Result<Vec<Threshold>, Vec<FieldError>> {
    let mut errors = Vec::new();
    let mut thresholds = Vec::new();
    let hard = statements("evictionHard", &config.eviction_hard, &mut errors);
    let soft = statements("evictionSoft", &config.eviction_soft, &mut errors);
    let grace = grace_periods(&config.eviction_soft_grace_period, &mut errors);
    let mut reclaims = Vec::new();
    for (name, text) in &config.eviction_minimum_reclaim {
        let path = format!("evictionMinimumReclaim[{name}]");
        match (Signal::parse(name), parse_reclaim(text)) {
            (None, _) => errors.push(FieldError::new(path, format!("{name:?}"), SIGNALS)),
            (_, Err(allowed)) => errors.push(FieldError::new(path, format!("{text:?}"), allowed)),
            (Some(signal), Ok(limit)) => reclaims.push((signal, limit)),
        }
    }
    let reclaim_of = |signal| reclaims.iter().find(|(s, _)| *s == signal).map(|(_, limit)| *limit);
    for (signal, limit) in hard {
        thresholds.push(Threshold { signal, limit, grace_period: Duration::ZERO, min_reclaim: reclaim_of(signal) });
    }
    for (signal, limit) in soft {
        match grace.iter().find(|(s, _)| *s == signal) {
            Some((_, period)) => {
                thresholds.push(Threshold { signal, limit, grace_period: *period, min_reclaim: reclaim_of(signal) });
            }
            None if config.eviction_soft_grace_period.contains_key(signal.as_str()) => {}
            None => errors.push(FieldError::new(
                format!("evictionSoftGracePeriod[{}]", signal.as_str()),
                "(not set)",
                "must be set: every signal of evictionSoft needs a grace period",
            )),
        }
    }
    if errors.is_empty() { Ok(thresholds) } else { Err(errors) }
}

fn statements(field: &str, map: &TextMap, errors: &mut Vec<FieldError>) -> Vec<(Signal, Limit)> {
    let mut found = Vec::new();
    for (name, text) in map {
        let path = format!("{field}[{name}]");
        match (Signal::parse(name), parse_limit(text)) {
            (None, _) => errors.push(FieldError::new(path, format!("{name:?}"), SIGNALS)),
            (_, Err(allowed)) => errors.push(FieldError::new(path, format!("{text:?}"), allowed)),
            (Some(signal), Ok(Some(limit))) => found.push((signal, limit)),
            (Some(_), Ok(None)) => {}
        }
    }
    found
}

fn grace_periods(map: &TextMap, errors: &mut Vec<FieldError>) -> Vec<(Signal, Duration)> {
    let mut found = Vec::new();
    for (name, text) in map {
        let path = format!("evictionSoftGracePeriod[{name}]");
        let Some(signal) = Signal::parse(name) else {
            errors.push(FieldError::new(path, format!("{name:?}"), SIGNALS));
            continue;
        };
        match GoDuration::parse(text) {
            Ok(period) if !period.is_negative() => found.push((signal, period.to_std())),
            _ => errors.push(FieldError::new(
                path,
                format!("{text:?}"),
                "must be a duration of at least 0s such as 1m30s",
            )),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn config(
        hard: &[(&str, &str)],
        soft: &[(&str, &str)],
        grace: &[(&str, &str)],
        reclaim: &[(&str, &str)],
    ) -> KubeletConfiguration {
        let map = |entries: &[(&str, &str)]| entries.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        KubeletConfiguration {
            eviction_hard: map(hard),
            eviction_soft: map(soft),
            eviction_soft_grace_period: map(grace),
            eviction_minimum_reclaim: map(reclaim),
            ..KubeletConfiguration::default()
        }
    }

    #[test]
    fn thresholds() {
        let parsed = parse_all(&config(
            &[("memory.available", "100Mi"), ("nodefs.available", "10%"), ("imagefs.available", "0%")],
            &[("memory.available", "300Mi")],
            &[("memory.available", "30s")],
            &[("memory.available", "0"), ("nodefs.available", "5%")],
        ))
        .unwrap();
        assert_eq!(parsed.len(), 3);
        assert_eq!(parsed[0].limit.absolute(0), 104_857_600);
        assert_eq!(parsed[1].limit.absolute(1000), 100);
        assert!(parsed[1].min_reclaim.is_some() && parsed[0].is_hard());
        assert_eq!(parsed[2].grace_period, Duration::from_secs(30));
    }

    #[test]
    fn refusals() {
        let refused = |config: KubeletConfiguration| {
            parse_all(&config).unwrap_err().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        };
        for (signal, value) in [
            ("nope.available", "1Gi"),
            ("memory.available", "0"),
            ("memory.available", "-1Gi"),
            ("memory.available", "lots"),
            ("memory.available", "-5%"),
            ("memory.available", "101%"),
            ("memory.available", "x%"),
            ("memory.available", ""),
        ] {
            let text = refused(config(&[(signal, value)], &[], &[], &[]));
            assert!(text.contains(&format!("evictionHard[{signal}]")), "{text}");
        }
        assert!(refused(config(&[], &[("memory.available", "1Gi")], &[], &[])).contains("needs a grace period"));
        assert!(refused(config(&[], &[], &[("memory.available", "-1s")], &[])).contains("at least 0s"));
        assert!(refused(config(&[], &[], &[("x", "1s")], &[])).contains("signal among"));
        assert!(refused(config(&[], &[], &[], &[("memory.available", "0%")])).contains("above 0%"));
        assert!(refused(config(&[], &[], &[], &[("memory.available", "-1")])).contains("at least 0"));
    }

    proptest! {
        #[test]
        fn never_panics(signal in "\\PC{0,20}", value in "\\PC{0,20}") {
            let _ = parse_all(&config(&[(&signal, &value)], &[(&signal, &value)], &[(&signal, &value)], &[(&signal, &value)]));
        }
    }
}
