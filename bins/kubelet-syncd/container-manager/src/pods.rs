//! Pods of tests.

use kubelet_model::v1::Pod;
use serde_json::{Map, Value, json};

use crate::request::Kind;

/// `AMOUNT` (request and limit), `REQUEST/LIMIT`, or nothing.
fn resources(list: &[(&str, &str)]) -> Value {
    let (mut requests, mut limits) = (Map::new(), Map::new());
    for (name, amount) in list.iter().filter(|(_, amount)| !amount.is_empty()) {
        let (request, limit) = amount.split_once('/').unwrap_or((amount, amount));
        requests.insert((*name).to_owned(), json!(request));
        limits.insert((*name).to_owned(), json!(limit));
    }
    json!({"requests": requests, "limits": limits})
}

/// Name, kind, CPU, memory, huge pages of 1 GiB.
pub type Container<'a> = (&'a str, Kind, &'a str, &'a str, &'a str);

fn spec(containers: &[Container<'_>], own: Option<(&str, &str)>) -> Value {
    let (mut init, mut apps) = (Vec::new(), Vec::new());
    for (name, kind, cpu, memory, huge) in containers {
        let resources = resources(&[("cpu", cpu), ("memory", memory), ("hugepages-1Gi", huge)]);
        let container = json!({"name": name, "image": "i", "resources": resources});
        match kind {
            Kind::App => apps.push(container),
            Kind::Init => init.push(container),
            Kind::Sidecar => {
                let mut container = container;
                container["restartPolicy"] = json!("Always");
                init.push(container);
            }
        }
    }
    let own = own.map(|(cpu, memory)| resources(&[("cpu", cpu), ("memory", memory)]));
    json!({"containers": apps, "initContainers": init, "resources": own})
}

pub fn pod(uid: &str, containers: &[Container<'_>]) -> Pod {
    let spec = spec(containers, None);
    serde_json::from_value(json!({"metadata": {"name": uid, "namespace": "ns", "uid": uid}, "spec": spec})).unwrap()
}

/// With resources of its own: CPU and memory.
pub fn pod_with(uid: &str, own: (&str, &str), containers: &[Container<'_>]) -> Pod {
    let spec = spec(containers, Some(own));
    serde_json::from_value(json!({"metadata": {"name": uid, "namespace": "ns", "uid": uid}, "spec": spec})).unwrap()
}
