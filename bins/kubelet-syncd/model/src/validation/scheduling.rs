//! Tolerations, affinities, spread constraints and selectors. A static pod is placed already; upstream checks them all the same.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    Affinity, NodeSelectorRequirement, NodeSelectorTerm, PodAffinityTerm, Toleration, TopologySpreadConstraint,
    WeightedPodAffinityTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::field::{Errors, Path, items, text};
use super::{metadata, names};

pub fn tolerations(tolerations: &[Toleration], path: &Path, errors: &mut Errors) {
    for (index, toleration) in tolerations.iter().enumerate() {
        let path = path.index(index);
        let operator_path = path.child("operator");
        let (key, operator, value) = (text(&toleration.key), text(&toleration.operator), text(&toleration.value));
        let effect = text(&toleration.effect);
        if !key.is_empty() {
            errors.invalid_each(&path.child("key"), key, names::qualified_name(key));
        } else if operator != "Exists" {
            errors.invalid(
                &operator_path,
                operator,
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            );
        }
        if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
            errors.invalid(&path.child("effect"), effect, "effect must be 'NoExecute' when `tolerationSeconds` is set");
        }
        match operator {
            "" | "Equal" => {
                let wrong = names::label_value(value);
                if !wrong.is_empty() {
                    errors.invalid(&operator_path, value, &wrong.join(";"));
                }
            }
            "Exists" if !value.is_empty() => {
                errors.invalid(&operator_path, value, "value must be empty when `operator` is 'Exists'");
            }
            "Exists" => {}
            // Lt and Gt need the gate TaintTolerationComparisonOperators, off in 1.36.
            "Lt" | "Gt" => errors.not_supported(&operator_path, operator, &["Equal", "Exists", "Lt", "Gt"]),
            other => errors.not_supported(&operator_path, other, &["Equal", "Exists"]),
        }
        if !effect.is_empty() {
            errors.one_of(&path.child("effect"), effect, &["NoSchedule", "PreferNoSchedule", "NoExecute"]);
        }
    }
}

pub fn affinity(affinity: &Affinity, path: &Path, errors: &mut Errors) {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    if let Some(node) = &affinity.node_affinity {
        let path = path.child("nodeAffinity");
        if let Some(selector) = &node.required_during_scheduling_ignored_during_execution {
            let path = path.child(required).child("nodeSelectorTerms");
            if selector.node_selector_terms.is_empty() {
                errors.required(&path, "must have at least one node selector term");
            }
            for (index, term) in selector.node_selector_terms.iter().enumerate() {
                node_selector_term(term, true, &path.index(index), errors);
            }
        }
        for (index, term) in items(&node.preferred_during_scheduling_ignored_during_execution).iter().enumerate() {
            let path = path.child(preferred).index(index);
            weight(term.weight, &path, errors);
            node_selector_term(&term.preference, false, &path.child("preference"), errors);
        }
    }
    if let Some(pods) = &affinity.pod_affinity {
        let path = path.child("podAffinity");
        pod_terms(items(&pods.required_during_scheduling_ignored_during_execution), &path.child(required), errors);
        let weighted = items(&pods.preferred_during_scheduling_ignored_during_execution);
        weighted_terms(weighted, &path.child(preferred), errors);
    }
    if let Some(pods) = &affinity.pod_anti_affinity {
        let path = path.child("podAntiAffinity");
        pod_terms(items(&pods.required_during_scheduling_ignored_during_execution), &path.child(required), errors);
        let weighted = items(&pods.preferred_during_scheduling_ignored_during_execution);
        weighted_terms(weighted, &path.child(preferred), errors);
    }
}

fn weight(weight: i32, path: &Path, errors: &mut Errors) {
    if !(1..=100).contains(&weight) {
        errors.invalid(&path.child("weight"), weight, "must be in the range 1-100");
    }
}

fn node_selector_term(term: &NodeSelectorTerm, check_values: bool, path: &Path, errors: &mut Errors) {
    for (index, requirement) in items(&term.match_expressions).iter().enumerate() {
        node_requirement(requirement, check_values, &path.child("matchExpressions").index(index), errors);
    }
    for (index, requirement) in items(&term.match_fields).iter().enumerate() {
        let path = path.child("matchFields").index(index);
        let values = items(&requirement.values);
        match requirement.operator.as_str() {
            "In" | "NotIn" if values.len() != 1 => errors.required(
                &path.child("values"),
                "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
            ),
            "In" | "NotIn" => {}
            other => errors.invalid(&path.child("operator"), other, "not a valid selector operator"),
        }
        if requirement.key == "metadata.name" {
            for (index, value) in values.iter().enumerate() {
                errors.invalid_each(&path.child("values").index(index), value, names::dns_subdomain(value));
            }
        } else {
            errors.invalid(&path.child("key"), &requirement.key[..], "not a valid field selector key");
        }
    }
}

fn node_requirement(requirement: &NodeSelectorRequirement, check_values: bool, path: &Path, errors: &mut Errors) {
    let values = items(&requirement.values);
    let values_path = path.child("values");
    match requirement.operator.as_str() {
        "In" | "NotIn" if values.is_empty() => {
            errors.required(&values_path, "must be specified when `operator` is 'In' or 'NotIn'");
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            errors.forbidden(&values_path, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
        }
        "Gt" | "Lt" if values.len() != 1 => {
            errors.required(&values_path, "must be specified single value when `operator` is 'Lt' or 'Gt'");
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        other => errors.invalid(&path.child("operator"), other, "not a valid selector operator"),
    }
    errors.invalid_each(&path.child("key"), &requirement.key[..], names::qualified_name(&requirement.key));
    if check_values {
        for (index, value) in values.iter().enumerate() {
            errors.invalid_each(&values_path.index(index), value, names::label_value(value));
        }
    }
}

fn pod_terms(terms: &[PodAffinityTerm], path: &Path, errors: &mut Errors) {
    for (index, term) in terms.iter().enumerate() {
        pod_term(term, &path.index(index), errors);
    }
}

fn weighted_terms(terms: &[WeightedPodAffinityTerm], path: &Path, errors: &mut Errors) {
    for (index, term) in terms.iter().enumerate() {
        let path = path.index(index);
        weight(term.weight, &path, errors);
        pod_term(&term.pod_affinity_term, &path.child("podAffinityTerm"), errors);
    }
}

fn pod_term(term: &PodAffinityTerm, path: &Path, errors: &mut Errors) {
    label_selector(term.label_selector.as_ref(), &path.child("labelSelector"), errors);
    label_selector(term.namespace_selector.as_ref(), &path.child("namespaceSelector"), errors);
    for namespace in items(&term.namespaces) {
        errors.invalid_each(&path.child("namespace"), namespace, names::dns_label(namespace));
    }
    label_keys(
        items(&term.match_label_keys),
        items(&term.mismatch_label_keys),
        term.label_selector.as_ref(),
        path,
        errors,
    );
    if term.topology_key.is_empty() {
        errors.required(&path.child("topologyKey"), "can not be empty");
    }
    errors.invalid_each(&path.child("topologyKey"), &term.topology_key[..], names::qualified_name(&term.topology_key));
}

pub fn label_selector(selector: Option<&LabelSelector>, path: &Path, errors: &mut Errors) {
    let Some(selector) = selector else { return };
    metadata::labels(selector.match_labels.as_ref(), &path.child("matchLabels"), errors);
    for (index, requirement) in items(&selector.match_expressions).iter().enumerate() {
        let path = path.child("matchExpressions").index(index);
        let values = items(&requirement.values);
        match requirement.operator.as_str() {
            "In" | "NotIn" if values.is_empty() => {
                errors.required(&path.child("values"), "must be specified when `operator` is 'In' or 'NotIn'");
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => errors
                .forbidden(&path.child("values"), "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.invalid(&path.child("operator"), other, "not a valid selector operator"),
        }
        errors.invalid_each(&path.child("key"), &requirement.key[..], names::qualified_name(&requirement.key));
        for (index, value) in values.iter().enumerate() {
            errors.invalid_each(&path.child("values").index(index), value, names::label_value(value));
        }
    }
}

fn label_keys(
    matching: &[String],
    mismatching: &[String],
    selector: Option<&LabelSelector>,
    path: &Path,
    errors: &mut Errors,
) {
    for (field, keys) in [("matchLabelKeys", matching), ("mismatchLabelKeys", mismatching)] {
        let path = path.child(field);
        if !keys.is_empty() && selector.is_none() {
            errors.forbidden(&path, "must not be specified when labelSelector is not set");
            continue;
        }
        for (index, key) in keys.iter().enumerate() {
            errors.invalid_each(&path.index(index), key, names::qualified_name(key));
        }
    }
    if let Some(selector) = selector {
        let mut selected: BTreeSet<&str> =
            selector.match_labels.iter().flatten().map(|(key, _)| key.as_str()).collect();
        for requirement in items(&selector.match_expressions) {
            let key = requirement.key.as_str();
            if let Some(index) = matching.iter().rposition(|k| k == key)
                && selected.contains(key)
            {
                errors.invalid(&path.index(index), key, "exists in both matchLabelKeys and labelSelector");
            }
            selected.insert(key);
        }
    }
    for (index, key) in matching.iter().enumerate().filter(|(_, key)| mismatching.contains(key)) {
        errors.invalid(
            &path.child("matchLabelKeys").index(index),
            key,
            "exists in both matchLabelKeys and mismatchLabelKeys",
        );
    }
}

pub fn spread_constraints(constraints: &[TopologySpreadConstraint], path: &Path, errors: &mut Errors) {
    for (index, constraint) in constraints.iter().enumerate() {
        let path = path.index(index);
        if constraint.max_skew <= 0 {
            errors.invalid(&path.child("maxSkew"), constraint.max_skew, "must be greater than 0");
        }
        if constraint.topology_key.is_empty() {
            errors.required(&path.child("topologyKey"), "can not be empty");
        }
        let action = constraint.when_unsatisfiable.as_str();
        errors.one_of(&path.child("whenUnsatisfiable"), action, &["DoNotSchedule", "ScheduleAnyway"]);
        let repeats = |other: &TopologySpreadConstraint| {
            other.topology_key == constraint.topology_key && other.when_unsatisfiable == action
        };
        if constraints[index + 1..].iter().any(repeats) {
            let shown = format!("{{{}, {action}}}", constraint.topology_key);
            errors.duplicate(&path.child("{topologyKey, whenUnsatisfiable}"), shown);
        }
        if let Some(domains) = constraint.min_domains {
            let path = path.child("minDomains");
            if domains <= 0 {
                errors.invalid(&path, domains, "must be greater than 0");
            }
            if action != "DoNotSchedule" {
                let why = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
                errors.invalid(&path, domains, &why);
            }
        }
        for (field, policy) in [
            ("nodeAffinityPolicy", &constraint.node_affinity_policy),
            ("nodeTaintsPolicy", &constraint.node_taints_policy),
        ] {
            if let Some(policy) = policy {
                errors.one_of(&path.child(field), policy, &["Honor", "Ignore"]);
            }
        }
        label_keys(items(&constraint.match_label_keys), &[], constraint.label_selector.as_ref(), &path, errors);
        label_selector(constraint.label_selector.as_ref(), &path.child("labelSelector"), errors);
    }
}
