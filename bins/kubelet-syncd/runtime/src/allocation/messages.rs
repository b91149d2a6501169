//! Texts of the events about resizes: a sentence and the containers' resources as JSON (upstream
//! `pkg/kubelet/events/resize.go`).

use k8s_openapi::api::core::v1::ResourceRequirements;
use kubelet_model::v1::{Container, Pod};
use serde_json::{Map, Value, json};

use kubelet_model::pod::labels::go_json_string;
use kubelet_model::pod::spec::{containers, init_containers};

/// Which sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResizeEvent<'a> {
    Started,
    Completed,
    Error(&'a str),
    /// It waits: what admission gave as its reason, and its words.
    Deferred(&'a str, &'a str),
    Infeasible(&'a str),
}

impl<'a> ResizeEvent<'a> {
    /// Reason of the event.
    pub const fn reason(self) -> &'static str {
        match self {
            ResizeEvent::Started => "ResizeStarted",
            ResizeEvent::Completed => "ResizeCompleted",
            ResizeEvent::Error(_) => "ResizeError",
            ResizeEvent::Deferred(..) => "ResizeDeferred",
            ResizeEvent::Infeasible(_) => "ResizeInfeasible",
        }
    }

    /// Last word of the sentence, and the error.
    fn sentence(self) -> (&'a str, &'a str) {
        match self {
            ResizeEvent::Started => ("started", ""),
            ResizeEvent::Completed => ("completed", ""),
            ResizeEvent::Error(why) => ("error", why),
            ResizeEvent::Deferred(reason, why) => (reason, why),
            ResizeEvent::Infeasible(why) => ("Infeasible", why),
        }
    }
}

/// The whole message. `pod`: the resources that are told are those of its spec.
pub fn message(pod: &Pod, generation: i64, told: ResizeEvent<'_>) -> String {
    let (sentence, error) = told.sentence();
    let mut parts = Vec::new();
    for (name, list) in [("initContainers", init_containers(pod)), ("containers", containers(pod))] {
        if !list.is_empty() {
            let all: Vec<String> = list.iter().map(container).collect();
            parts.push(format!("\"{name}\":[{}]", all.join(",")));
        }
    }
    parts.push(format!("\"generation\":{generation}"));
    if !error.is_empty() {
        parts.push(format!("\"error\":{}", go_json_string(error)));
    }
    format!("Pod resize {sentence}: {{{}}}", parts.join(","))
}

fn container(container: &Container) -> String {
    let resources = resources(&container.resources.clone().unwrap_or_default());
    format!("{{\"name\":{},\"resources\":{resources}}}", go_json_string(&container.name))
}

/// In the order of the Go struct, which is not that of the alphabet.
fn resources(resources: &ResourceRequirements) -> String {
    let list = |list: &Option<std::collections::BTreeMap<_, _>>| {
        let all: Option<Map<String, Value>> = list.as_ref().map(|list| {
            let one = |(name, q): (&String, &k8s_openapi::apimachinery::pkg::api::resource::Quantity)| {
                (name.clone(), json!(q.0))
            };
            list.iter().map(one).collect()
        });
        all.filter(|all| !all.is_empty()).map(Value::Object)
    };
    let claims = resources.claims.as_ref().filter(|c| !c.is_empty()).map(|c| json!(c));
    let fields = [("limits", list(&resources.limits)), ("requests", list(&resources.requests)), ("claims", claims)];
    let parts: Vec<String> =
        fields.into_iter().filter_map(|(name, value)| Some(format!("\"{name}\":{}", value?))).collect();
    format!("{{{}}}", parts.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_words() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {}, "spec": {
            "initContainers": [{"name": "i", "restartPolicy": "Always"}],
            "containers": [{"name": "c", "resources": {"requests": {"memory": "1Gi", "cpu": "1"}, "limits": {"cpu": "2"}}}],
        }}))
        .unwrap();
        assert_eq!(
            message(&pod, 2, ResizeEvent::Started),
            "Pod resize started: {\"initContainers\":[{\"name\":\"i\",\"resources\":{}}],\"containers\":[{\"name\":\"c\",\
             \"resources\":{\"limits\":{\"cpu\":\"2\"},\"requests\":{\"cpu\":\"1\",\"memory\":\"1Gi\"}}}],\"generation\":2}"
        );
        let simple: Pod =
            serde_json::from_value(json!({"metadata": {}, "spec": {"containers": [{"name": "c"}]}})).unwrap();
        assert_eq!(
            message(&simple, 3, ResizeEvent::Deferred("OutOfcpu", "a < \"b\"")),
            "Pod resize OutOfcpu: {\"containers\":[{\"name\":\"c\",\"resources\":{}}],\"generation\":3,\
             \"error\":\"a \\u003c \\\"b\\\"\"}"
        );
    }
}
