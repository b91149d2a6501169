//! How the runtime runs a pod, the same for its sandbox and its containers: by which handler, what that can do, and which
//! of the machine's users are the pod's own (upstream `pkg/kubelet/runtimeclass`, `pkg/kubelet/userns`).

use std::collections::BTreeMap;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::VolumeMount;
use kubelet_model::v1::Pod;

use super::userns::{IdBlock, UserNamespaces, UsernsError};
use kubelet_model::node_facts::{HandlerFeatures, NodeFacts};
use kubelet_model::objects::Objects;
use kubelet_model::objects::named_objects::LookupError;
use kubelet_model::pod::spec::{PodIdentity, containers, ephemeral_containers, init_containers};

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodRuntime {
    /// Empty: the runtime's default one.
    pub handler: String,
    pub features: HandlerFeatures,
    /// None: the pod has the node's users.
    pub users: Option<IdBlock>,
    /// Groups that the pod's volumes give to its processes, sorted; see [`super::container_config::volume_groups`].
    pub volume_groups: Vec<i64>,
    /// Paths of the host that stand behind the pod's claims, by the volume's name; see [`super::container_config::claimed_paths`].
    pub claimed_paths: BTreeMap<String, PathBuf>,
    /// The pod has CPUs that nobody else has, and its sandbox no CFS quota; see [`super::run_options::WithoutQuota`].
    pub without_quota: bool,
}

/// Why a pod cannot be run as it asks. The texts are upstream's.
#[derive(Debug, thiserror::Error)]
pub enum PodRuntimeError {
    #[error(transparent)]
    Handler(#[from] LookupError),
    #[error("can't set `spec.hostUsers: false`, runtime does not support user namespaces")]
    NoUserNamespaces,
    #[error("can't set `spec.hostUsers: false`, RuntimeClass handler {0:?} does not support user namespaces")]
    HandlerWithoutUserNamespaces(String),
    #[error("create user namespace: {0}")]
    Users(#[from] UsernsError),
}

impl PodRuntimeError {
    /// Somebody has not answered yet: nothing is known to be wrong with the pod.
    pub fn is_transient(&self) -> bool {
        matches!(self, PodRuntimeError::Handler(error) if error.is_transient())
    }
}

impl PodRuntime {
    /// Looks the handler up, and gives the pod a block of users where it wants one and has none. `has_sandbox`: the
    /// handler was chosen with that, so its name does not matter any more, only what it can do for those who ask for it.
    ///
    /// # Errors
    /// There is no such RuntimeClass, or the handler cannot give the pod users of its own, or none are left.
    pub fn of(
        pod: &Pod,
        identity: &PodIdentity,
        objects: &dyn Objects,
        facts: &NodeFacts,
        blocks: &UserNamespaces,
        has_sandbox: bool,
    ) -> Result<Self, PodRuntimeError> {
        let spec = pod.spec.as_ref();
        let class = spec.and_then(|s| s.runtime_class_name.as_deref()).unwrap_or_default();
        let handler = objects.runtime_handler(class);
        let handler = handler.map_err(|error| LookupError::of("runtimeclass.node.k8s.io", class, error));
        let handler = match handler {
            Err(error) if has_sandbox && error.is_transient() && !asks_for_features(pod) => String::new(),
            handler => handler?,
        };
        let features = facts.handler(&handler);
        let wants_users = spec.and_then(|s| s.host_users) == Some(false);
        let users = match (wants_users, features.user_namespaces) {
            (false, _) => None,
            (true, true) => Some(blocks.of_pod(&identity.uid)?),
            (true, false) if handler.is_empty() => return Err(PodRuntimeError::NoUserNamespaces),
            (true, false) => return Err(PodRuntimeError::HandlerWithoutUserNamespaces(handler)),
        };
        Ok(PodRuntime { handler, features, users, ..PodRuntime::default() })
    }
}

/// What the handler of the pod's RuntimeClass can do; None: the class cannot be looked up (upstream `kubelet_pods.go`
/// runtimeClassSupportsRecursiveReadOnlyMounts, for which that is a handler that can do nothing).
pub fn handler_features(pod: &Pod, objects: &dyn Objects, facts: &NodeFacts) -> Option<HandlerFeatures> {
    let class = pod.spec.as_ref().and_then(|spec| spec.runtime_class_name.as_deref()).unwrap_or_default();
    objects.runtime_handler(class).ok().map(|handler| facts.handler(&handler))
}

fn asks_for_features(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let recursive = |mounts: &Option<Vec<VolumeMount>>| {
        mounts.iter().flatten().any(|mount| !matches!(mount.recursive_read_only.as_deref(), None | Some("Disabled")))
    };
    spec.host_users == Some(false)
        || containers(pod).iter().chain(init_containers(pod)).any(|c| recursive(&c.volume_mounts))
        || ephemeral_containers(pod).iter().any(|c| recursive(&c.volume_mounts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::userns::{NoBlockStore, Pool};
    use kubelet_model::fixtures::{FakeObjects, pod};
    use kubelet_model::node_facts::HostFacts;

    #[test]
    fn who_may_have_users_of_its_own() {
        let objects = FakeObjects::default();
        objects.put_handler("sandboxed", "gvisor");
        objects.put_handler("plain", "runc");
        let mut facts = NodeFacts::new(HostFacts::default());
        facts.handlers.insert("runc".into(), HandlerFeatures { user_namespaces: true, ..HandlerFeatures::default() });
        let blocks = UserNamespaces::new(Pool::of(65_536, None, 110), Box::new(NoBlockStore));
        let ask = |spec: serde_json::Value, facts: &NodeFacts| {
            let pod = pod(spec);
            let identity = PodIdentity::of(&pod).unwrap();
            PodRuntime::of(&pod, &identity, &objects, facts, &blocks, false).map_err(|e| e.to_string())
        };
        let own = |class: &str| serde_json::json!({"containers": [], "hostUsers": false, "runtimeClassName": class});
        let refused = |spec, why: &str| assert_eq!(ask(spec, &facts), Err(why.to_owned()));
        refused(own(""), "can't set `spec.hostUsers: false`, runtime does not support user namespaces");
        refused(
            own("sandboxed"),
            "can't set `spec.hostUsers: false`, RuntimeClass handler \"gvisor\" does not support user namespaces",
        );
        let given = ask(own("plain"), &facts).unwrap();
        assert_eq!((given.handler.as_str(), given.users), ("runc", Some(IdBlock { first: 65_536, length: 65_536 })));
        // The same users at the next start.
        assert_eq!(ask(own("plain"), &facts).unwrap(), given);
        for host_users in [None, Some(true)] {
            let spec = serde_json::json!({"containers": [], "hostUsers": host_users, "runtimeClassName": "plain"});
            assert_eq!(ask(spec, &facts).unwrap().users, None);
        }
        assert_eq!(ask(serde_json::json!({"containers": []}), &facts).unwrap(), PodRuntime::default());
    }

    #[test]
    fn what_the_handler_of_a_class_can_do() {
        let objects = FakeObjects::default();
        objects.put_handler("deep", "crun");
        objects.put_handler("lost", "nowhere");
        let mut facts = NodeFacts::new(HostFacts::default());
        let deep = HandlerFeatures { recursive_read_only_mounts: true, ..HandlerFeatures::default() };
        facts.handlers = [("crun".to_owned(), deep), (String::new(), HandlerFeatures::default())].into();
        for (class, expected) in [
            ("", Some(HandlerFeatures::default())),
            ("deep", Some(deep)),
            ("lost", Some(HandlerFeatures::default())),
            ("unknown", None),
        ] {
            let pod = pod(serde_json::json!({"containers": [], "runtimeClassName": class}));
            assert_eq!(handler_features(&pod, &objects, &facts), expected, "{class}");
        }
    }

    #[test]
    fn while_the_class_cannot_be_looked_up() {
        let objects = FakeObjects::default();
        objects.set_away(true);
        let facts = NodeFacts::new(HostFacts::default());
        let blocks = UserNamespaces::new(Pool::of(65_536, None, 110), Box::new(NoBlockStore));
        let ask = |spec: serde_json::Value, has_sandbox| {
            let pod = pod(spec);
            let identity = PodIdentity::of(&pod).unwrap();
            let asked = PodRuntime::of(&pod, &identity, &objects, &facts, &blocks, has_sandbox);
            asked.map_err(|error| error.is_transient())
        };
        let plain = serde_json::json!({"containers": [], "runtimeClassName": "x"});
        assert_eq!(ask(plain.clone(), false), Err(true));
        assert_eq!(ask(plain, true), Ok(PodRuntime::default()));
        let own = serde_json::json!({"containers": [], "runtimeClassName": "x", "hostUsers": false});
        assert_eq!(ask(own, true), Err(true));
        let mounts =
            serde_json::json!([{"name": "v", "mountPath": "/v", "readOnly": true, "recursiveReadOnly": "IfPossible"}]);
        let recursive =
            serde_json::json!({"containers": [{"name": "c", "volumeMounts": mounts}], "runtimeClassName": "x"});
        assert_eq!(ask(recursive, true), Err(true));
    }
}
