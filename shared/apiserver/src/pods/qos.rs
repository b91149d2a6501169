//! A pod's quality-of-service class (`pkg/apis/core/v1/helper/qos`).

use std::collections::BTreeMap;

use bulkhead_types::Quantity;
use serde_json::Value;

/// `Guaranteed`, `Burstable` or `BestEffort`.
pub fn class(pod: &Value) -> &'static str {
    let (mut requests, mut limits) = (BTreeMap::new(), BTreeMap::new());
    let mut guaranteed = true;
    let whole_pod = pod["spec"].get("resources").filter(|resources| resources.is_object());
    if let Some(resources) = whole_pod {
        add(&mut requests, &resources["requests"]);
        if resources["limits"].as_object().is_some_and(|limits| !limits.is_empty()) {
            guaranteed &= add(&mut limits, &resources["limits"]) == 2;
        }
    } else {
        // Ephemeral containers have no resources.
        for container in super::containers(pod, false) {
            add(&mut requests, &container["resources"]["requests"]);
            guaranteed &= add(&mut limits, &container["resources"]["limits"]) == 2;
        }
    }
    if requests.is_empty() && limits.is_empty() {
        "BestEffort"
    } else if guaranteed && requests == limits {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// Adds the positive amounts of cpu and memory; how many there were.
fn add(sums: &mut BTreeMap<String, Quantity>, list: &Value) -> usize {
    let mut found = 0;
    for name in ["cpu", "memory"] {
        let amount = match &list[name] {
            Value::String(text) => Quantity::parse(text).ok(),
            Value::Number(number) => Quantity::parse(&number.to_string()).ok(),
            _ => None,
        };
        if let Some(amount) = amount.filter(|amount| !amount.is_zero() && !amount.is_negative()) {
            found += 1;
            let sum = sums.get(name).map_or(amount, |sum| *sum + amount);
            sums.insert(name.to_owned(), sum);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn classes() {
        let pod = |containers: Value| json!({"spec": {"containers": containers}});
        let full = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1000m", "memory": "1Gi"}});
        assert_eq!(class(&pod(json!([{"resources": {}}]))), "BestEffort");
        assert_eq!(class(&pod(json!([{"resources": full}]))), "Guaranteed");
        assert_eq!(class(&pod(json!([{"resources": full}, {"resources": {}}]))), "Burstable");
        assert_eq!(class(&pod(json!([{"resources": {"requests": {"cpu": "10m"}}}]))), "Burstable");
        assert_eq!(class(&pod(json!([{"resources": {"requests": {"example.com/x": "1"}}}]))), "BestEffort");
        assert_eq!(class(&json!({"spec": {"resources": full, "containers": [{}]}})), "Guaranteed");
    }
}
