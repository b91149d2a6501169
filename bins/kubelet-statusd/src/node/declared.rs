//! `status.declaredFeatures`: what the scheduler and the API server may rely on. Pure.
//!
//! Upstream declares a feature when its gate is on (`component-helpers/nodedeclaredfeatures`). Here the feature must also
//! be there: a node that declares what it does not do is given pods and streams that it fails.

use bulkhead_config::{Feature, FeatureGates};

struct Declarable {
    /// Its name is the feature's.
    gate: Feature,
    /// This version does what the name says.
    done: bool,
}

/// Sorted by name.
const FEATURES: [Declarable; 5] = [
    Declarable { gate: Feature::ExtendWebSocketsToKubelet, done: true },
    Declarable { gate: Feature::InPlacePodLevelResourcesVerticalScaling, done: true },
    Declarable { gate: Feature::InPlacePodVerticalScalingInitContainers, done: true },
    Declarable { gate: Feature::RestartAllContainersOnContainerExits, done: true },
    Declarable { gate: Feature::UserNamespacesHostNetworkSupport, done: false },
];

/// Names, sorted; none is absent from the object.
pub fn declared(gates: &FeatureGates) -> Option<Vec<String>> {
    of(&FEATURES, |gate| gates.enabled(gate))
}

fn of(features: &[Declarable], enabled: impl Fn(Feature) -> bool) -> Option<Vec<String>> {
    if !enabled(Feature::NodeDeclaredFeatures) {
        return None;
    }
    let names: Vec<String> = features
        .iter()
        .filter(|feature| feature.done && enabled(feature.gate))
        .map(|feature| feature.gate.name().to_owned())
        .collect();
    (!names.is_empty()).then_some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_on_and_done() {
        let features =
            [Declarable { gate: Feature::EnvFiles, done: true }, Declarable { gate: Feature::PodsAPI, done: false }];
        assert_eq!(of(&features, |_| true).unwrap(), ["EnvFiles"]);
        assert_eq!(of(&features, |gate| gate == Feature::NodeDeclaredFeatures), None);
        assert_eq!(of(&features, |gate| gate != Feature::NodeDeclaredFeatures), None);
        assert!(FEATURES.is_sorted_by_key(|feature| feature.gate.name()));
        let done = [
            "ExtendWebSocketsToKubelet",
            "InPlacePodLevelResourcesVerticalScaling",
            "InPlacePodVerticalScalingInitContainers",
            "RestartAllContainersOnContainerExits",
        ];
        assert_eq!(declared(&FeatureGates::default()).unwrap(), done);
    }
}
