//! Variables: first exactly those of the allocation record, then those that the container's spec may have. Runtimes' hooks give devices by
//! a variable's name, so one that nobody asked for may be a grant.

use std::collections::{BTreeSet, HashMap};

use bulkhead_cri::v1;
use k8s_openapi::api::core::v1::EnvVar;
use kubelet_model::v1::Container;

use super::{Checked, RequestContext, Starting, must};

const FIELD: &str = "envs";

/// Values are not told: they may be secrets.
pub(super) fn container(known: &RequestContext<'_>, starting: &Starting<'_>, asked: &v1::ContainerConfig) -> Checked {
    let given = &starting.options.envs;
    let (first, rest) = asked.envs.split_at(given.len().min(asked.envs.len()));
    let same = |(asked, given): (&v1::KeyValue, &(String, Vec<u8>))| asked.key == given.0 && asked.value == given.1;
    let all = first.len() == given.len() && first.iter().zip(given).all(same);
    let names = |pairs: &[v1::KeyValue]| pairs.iter().map(|pair| pair.key.clone()).collect::<Vec<_>>();
    let wanted: Vec<&str> = given.iter().map(|(name, _)| name.as_str()).collect();
    must(all, FIELD, names(first), format!("first {wanted:?} with the values that were allocated"))?;
    let spec = Spec::of(starting.container);
    let foreign = rest.iter().find(|pair| !spec.has(pair) && !is_of_service(known, &pair.key)).map(|pair| &pair.key);
    must(foreign.is_none(), FIELD, foreign, "those of the container's env and envFrom, and of services")
}

/// What a container's spec says of variables, for requests that have very many of them.
struct Spec<'a> {
    /// By name.
    own: HashMap<&'a str, Vec<&'a EnvVar>>,
    /// Of `envFrom`; none begins with another one.
    prefixes: BTreeSet<&'a str>,
}

impl<'a> Spec<'a> {
    fn of(container: &'a Container) -> Self {
        let mut own: HashMap<&str, Vec<&EnvVar>> = HashMap::new();
        for variable in container.env.iter().flatten() {
            own.entry(&variable.name).or_default().push(variable);
        }
        let all: BTreeSet<&str> =
            container.env_from.iter().flatten().map(|source| source.prefix.as_deref().unwrap_or_default()).collect();
        let mut prefixes = BTreeSet::new();
        let mut last = None;
        for prefix in all {
            if last.is_none_or(|last| !prefix.starts_with(last)) {
                prefixes.insert(prefix);
                last = Some(prefix);
            }
        }
        Spec { own, prefixes }
    }

    /// What stands there in plain words has to be the same. What an object holds that `envFrom` names is not known here, but for the
    /// names' beginning.
    fn has(&self, asked: &v1::KeyValue) -> bool {
        let is_own = self.own.get(asked.key.as_str()).into_iter().flatten().any(|variable| {
            let literal = variable.value.as_deref().unwrap_or_default();
            let computed = literal.contains('$') || (literal.is_empty() && variable.value_from.is_some());
            computed || literal.as_bytes() == asked.value
        });
        // Of those that sort before the name, the one that it begins with is the last: what lies between begins with it as well.
        let nearest = self.prefixes.range(..=asked.key.as_str()).next_back();
        is_own || nearest.is_some_and(|prefix| asked.key.starts_with(prefix))
    }
}

/// `NAME_SERVICE_HOST`, `NAME_PORT_80_TCP_ADDR` and so on, of services in capitals; without links of the API server's alone.
fn is_of_service(known: &RequestContext<'_>, name: &str) -> bool {
    let links = known.pod.spec.as_ref().and_then(|spec| spec.enable_service_links) == Some(true);
    let in_capitals = name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_');
    let is_of_one = name.ends_with("_SERVICE_HOST") || name.ends_with("_PORT") || name.contains("_PORT_");
    in_capitals && is_of_one && (links || name.starts_with("KUBERNETES_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_sources() {
        let from = |prefixes: &[&str]| -> Container {
            let from: Vec<_> = prefixes.iter().map(|prefix| serde_json::json!({"prefix": prefix})).collect();
            serde_json::from_value(serde_json::json!({"name": "c", "envFrom": from})).unwrap()
        };
        let has = |prefixes: &[&str], name: &str| {
            let container = from(prefixes);
            Spec::of(&container).has(&v1::KeyValue { key: name.to_owned(), value: Vec::new() })
        };
        let some = ["B_", "A", "A_B", "C_LONG_"];
        for name in ["A", "A_A", "A_B_C", "AZ", "B_", "B_X", "C_LONG_X"] {
            assert!(has(&some, name), "{name}");
        }
        for name in ["B", "C_LONG", "C", "D", "", "Z"] {
            assert!(!has(&some, name) && has(&["B_", ""], name) && !has(&[], name), "{name}");
        }
    }
}
