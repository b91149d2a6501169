//! `status.declaredFeatures`: what the scheduler and the API server may rely on. Pure.
//!
//! Upstream declares a feature when its gate is on (`component-helpers/nodedeclaredfeatures`). Here the feature must also
//! be there: a node that declares what it does not do is given pods and streams that it fails.

use bulkhead_config::FeatureGates;

struct Feature {
    name: &'static str,
    /// This version does what the name says.
    done: bool,
}

/// Sorted; the name is the gate's too.
const FEATURES: [Feature; 5] = [
    Feature { name: "ExtendWebSocketsToKubelet", done: true },
    Feature { name: "InPlacePodLevelResourcesVerticalScaling", done: true },
    Feature { name: "InPlacePodVerticalScalingInitContainers", done: true },
    Feature { name: "RestartAllContainersOnContainerExits", done: true },
    Feature { name: "UserNamespacesHostNetworkSupport", done: false },
];

/// Names, sorted; none is absent from the object.
pub fn declared(gates: &FeatureGates) -> Option<Vec<String>> {
    of(&FEATURES, |gate| gates.enabled(gate))
}

fn of(features: &[Feature], enabled: impl Fn(&str) -> bool) -> Option<Vec<String>> {
    if !enabled("NodeDeclaredFeatures") {
        return None;
    }
    let names: Vec<String> = features
        .iter()
        .filter(|feature| feature.done && enabled(feature.name))
        .map(|feature| feature.name.to_owned())
        .collect();
    (!names.is_empty()).then_some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_on_and_done() {
        let features = [Feature { name: "A", done: true }, Feature { name: "B", done: false }];
        assert_eq!(of(&features, |_| true).unwrap(), ["A"]);
        assert_eq!(of(&features, |gate| gate == "NodeDeclaredFeatures"), None);
        assert_eq!(of(&features, |gate| gate != "NodeDeclaredFeatures"), None);
        assert!(FEATURES.is_sorted_by_key(|feature| feature.name));
        let done = [
            "ExtendWebSocketsToKubelet",
            "InPlacePodLevelResourcesVerticalScaling",
            "InPlacePodVerticalScalingInitContainers",
            "RestartAllContainersOnContainerExits",
        ];
        assert_eq!(declared(&FeatureGates::default()).unwrap(), done);
    }
}
