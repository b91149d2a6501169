//! Limits of every configuration field; all violations are collected.
//!
//! Rules are upstream's, those of `pkg/kubelet/apis/config/validation` as well as those that upstream checks only while
//! it starts its parts: here nothing is started before all of them hold.

mod allocatable;
mod allowlist;
mod machine;
mod resources;
mod server;
mod workload;

use std::fmt::Display;

pub use allocatable::UnfitCgroup;
pub use machine::Machine;

use crate::field::FieldError;
use crate::gates::{self, Feature, FeatureGates};
use crate::kubelet::KubeletConfiguration;

/// Collects violations of one configuration.
struct Limits<'a> {
    config: &'a KubeletConfiguration,
    gates: FeatureGates,
    errors: Vec<FieldError>,
}

impl Limits<'_> {
    fn refuse(&mut self, path: impl Into<String>, value: impl Display, allowed: impl Into<String>) {
        self.errors.push(FieldError::new(path, value, allowed));
    }

    fn check(&mut self, holds: bool, path: &str, value: impl Display, allowed: &str) {
        if !holds {
            self.refuse(path, value, allowed);
        }
    }

    /// Inclusive.
    fn range(&mut self, path: &str, value: i64, from: i64, to: i64) {
        if value < from || value > to {
            let allowed =
                if to == i64::MAX { format!("must be {from} or more") } else { format!("must be from {from} to {to}") };
            self.refuse(path, value, allowed);
        }
    }

    fn one_of(&mut self, path: &str, value: &str, allowed: &[&str]) {
        if !allowed.contains(&value) {
            let list: Vec<String> = allowed.iter().map(|choice| format!("{choice:?}")).collect();
            self.refuse(path, quoted(value), format!("must be one of {}", list.join(", ")));
        }
    }

    fn needs_gate(&mut self, used: bool, path: &str, value: impl Display, gate: Feature) {
        if used && !self.gates.enabled(gate) {
            self.refuse(path, value, format!("needs feature gate {gate}"));
        }
    }
}

fn quoted(text: &str) -> String {
    format!("{text:?}")
}

/// Every violation that does not depend on the machine.
pub fn validate(config: &KubeletConfiguration) -> Vec<FieldError> {
    let gates = FeatureGates::from_map(&config.feature_gates);
    let mut limits = Limits { config, gates, errors: Vec::new() };
    limits.feature_gates();
    limits.server();
    limits.heartbeats();
    limits.logging();
    limits.images();
    limits.logs();
    limits.cgroups();
    limits.cpu_and_memory();
    limits.reservations();
    limits.pods();
    limits.shutdown();
    if let Err(errors) = crate::eviction::parse_all(config) {
        limits.errors.extend(errors);
    }
    limits.errors
}

/// Every violation that depends on the machine.
pub fn validate_on(config: &KubeletConfiguration, machine: &Machine) -> Vec<FieldError> {
    let gates = FeatureGates::from_map(&config.feature_gates);
    let mut limits = Limits { config, gates, errors: Vec::new() };
    limits.machine(machine);
    limits.errors
}

/// Lines for combinations that are allowed yet odd.
pub fn remarks(config: &KubeletConfiguration) -> Vec<String> {
    let mut lines = Vec::new();
    let (own, reserved) = (&config.kubelet_cgroups, &config.kube_reserved_cgroup);
    if !own.is_empty() && !reserved.is_empty() && !own.starts_with(reserved.as_str()) {
        lines.push(format!(
            "kubeletCgroups {own:?} is not below kubeReservedCgroup {reserved:?}: what the node agent uses is not counted there"
        ));
    }
    lines.extend(server::left_out(config));
    if let Ok(warnings) = gates::check(&config.feature_gates) {
        lines.extend(warnings);
    }
    lines
}

impl Limits<'_> {
    fn feature_gates(&mut self) {
        if let Err(errors) = gates::check(&self.config.feature_gates) {
            for error in errors {
                let (name, value) = match &error {
                    gates::GateError::Unknown(name) => (name.as_str(), self.config.feature_gates.get(name).copied()),
                    gates::GateError::Locked { name, value } => (name.as_str(), Some(*value)),
                    gates::GateError::Dependency { name, .. } => (*name, Some(true)),
                };
                let path = format!("featureGates[{name}]");
                self.errors.push(FieldError::new(path, value.unwrap_or_default(), error.to_string()));
            }
        }
    }
}

#[cfg(test)]
mod tests;
