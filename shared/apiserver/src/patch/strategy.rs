//! How strategic merge treats each list: the merge keys of the types in `k8s.io/api` (their `patchStrategy` and
//! `patchMergeKey` tags). A list that is not named here is replaced as a whole.

use crate::resources::Resource;

/// The lists below one type that merge, and the maps that lead to them.
#[derive(Debug)]
pub struct Schema {
    pub fields: &'static [Field],
}

/// One field that a patch treats specially, or that has such fields below.
#[derive(Debug)]
pub struct Field {
    pub name: &'static str,
    pub list: List,
    pub below: &'static Schema,
}

/// How a list merges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum List {
    /// Not a merging list (or no list at all).
    Atomic,
    /// Elements are told apart by this key.
    Keyed(&'static str),
    /// Elements are plain values, each at most once.
    Set,
}

impl Schema {
    /// What is known of a field; unknown ones have nothing below and replace.
    pub fn field(&self, name: &str) -> (List, &'static Schema) {
        self.fields
            .iter()
            .find(|field| field.name == name)
            .map_or((List::Atomic, &NOTHING), |field| (field.list, field.below))
    }
}

const fn keyed(name: &'static str, key: &'static str, below: &'static Schema) -> Field {
    Field { name, list: List::Keyed(key), below }
}

const fn set(name: &'static str) -> Field {
    Field { name, list: List::Set, below: &NOTHING }
}

const fn map(name: &'static str, below: &'static Schema) -> Field {
    Field { name, list: List::Atomic, below }
}

static NOTHING: Schema = Schema { fields: &[] };
static METADATA: Schema = Schema { fields: &[keyed("ownerReferences", "uid", &NOTHING), set("finalizers")] };
static META: Field = map("metadata", &METADATA);

static CONTAINER: Schema = Schema {
    fields: &[
        keyed("ports", "containerPort", &NOTHING),
        keyed("env", "name", &NOTHING),
        keyed("volumeMounts", "mountPath", &NOTHING),
        keyed("volumeDevices", "devicePath", &NOTHING),
    ],
};
static POD_SPEC: Schema = Schema {
    fields: &[
        keyed("volumes", "name", &NOTHING),
        keyed("initContainers", "name", &CONTAINER),
        keyed("containers", "name", &CONTAINER),
        keyed("ephemeralContainers", "name", &CONTAINER),
        keyed("imagePullSecrets", "name", &NOTHING),
        keyed("hostAliases", "ip", &NOTHING),
        keyed("topologySpreadConstraints", "topologyKey", &NOTHING),
        keyed("schedulingGates", "name", &NOTHING),
        keyed("resourceClaims", "name", &NOTHING),
    ],
};
static POD_STATUS: Schema = Schema {
    fields: &[
        keyed("conditions", "type", &NOTHING),
        keyed("hostIPs", "ip", &NOTHING),
        keyed("podIPs", "ip", &NOTHING),
        keyed("resourceClaimStatuses", "name", &NOTHING),
    ],
};
static POD: Schema =
    Schema { fields: &[map("metadata", &METADATA), map("spec", &POD_SPEC), map("status", &POD_STATUS)] };

static NODE_SPEC: Schema = Schema { fields: &[set("podCIDRs")] };
static NODE_STATUS: Schema =
    Schema { fields: &[keyed("conditions", "type", &NOTHING), keyed("addresses", "type", &NOTHING)] };
static NODE: Schema =
    Schema { fields: &[map("metadata", &METADATA), map("spec", &NODE_SPEC), map("status", &NODE_STATUS)] };

static SERVICE_SPEC: Schema = Schema { fields: &[keyed("ports", "port", &NOTHING)] };
static CONDITIONS: Schema = Schema { fields: &[keyed("conditions", "type", &NOTHING)] };
static SERVICE: Schema =
    Schema { fields: &[map("metadata", &METADATA), map("spec", &SERVICE_SPEC), map("status", &CONDITIONS)] };
static SERVICE_ACCOUNT: Schema = Schema { fields: &[map("metadata", &METADATA), keyed("secrets", "name", &NOTHING)] };
static CSI_NODE_SPEC: Schema = Schema { fields: &[keyed("drivers", "name", &NOTHING)] };
static CSI_NODE: Schema = Schema { fields: &[map("metadata", &METADATA), map("spec", &CSI_NODE_SPEC)] };
static WITH_CONDITIONS: Schema = Schema { fields: &[map("metadata", &METADATA), map("status", &CONDITIONS)] };
static OTHER: Schema = Schema { fields: std::slice::from_ref(&META) };

/// The schema of a resource's kind.
pub fn of(resource: &Resource) -> &'static Schema {
    match resource.kind {
        "Pod" => &POD,
        "Node" => &NODE,
        "Service" => &SERVICE,
        "ServiceAccount" => &SERVICE_ACCOUNT,
        "CSINode" => &CSI_NODE,
        "Namespace" | "PersistentVolumeClaim" => &WITH_CONDITIONS,
        _ => &OTHER,
    }
}
