//! Which resources are served, and what the registry of each allows: the table behind discovery, paths and verbs.

/// One resource of one API version.
#[derive(Debug, PartialEq, Eq)]
pub struct Resource {
    /// `""` for the core group.
    pub group: &'static str,
    pub version: &'static str,
    pub plural: &'static str,
    pub singular: &'static str,
    pub kind: &'static str,
    pub short: &'static [&'static str],
    pub namespaced: bool,
    /// Subresources with their kinds.
    pub subresources: &'static [(&'static str, &'static str)],
    /// A PUT without resourceVersion overwrites whatever is there.
    pub unconditional_update: bool,
    /// A PUT of what does not exist creates it.
    pub create_on_update: bool,
    /// DELETE answers with the object instead of a Status.
    pub returns_deleted: bool,
    /// Nothing is kept: a POST is a question (reviews).
    pub question: bool,
}

const PLAIN: Resource = Resource {
    group: "",
    version: "v1",
    plural: "",
    singular: "",
    kind: "",
    short: &[],
    namespaced: true,
    subresources: &[],
    unconditional_update: true,
    create_on_update: false,
    returns_deleted: false,
    question: false,
};

const CLUSTER: Resource = Resource { namespaced: false, ..PLAIN };
const QUESTION: Resource = Resource { question: true, namespaced: false, ..PLAIN };

const AUTHENTICATION: &str = "authentication.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";
const CERTIFICATES: &str = "certificates.k8s.io";
const COORDINATION: &str = "coordination.k8s.io";
const NODE: &str = "node.k8s.io";
const RESOURCE: &str = "resource.k8s.io";
const SCHEDULING: &str = "scheduling.k8s.io";
const STORAGE: &str = "storage.k8s.io";

/// Everything that is served, in the order in which discovery tells it.
pub static RESOURCES: &[Resource] = &[
    Resource { plural: "configmaps", singular: "configmap", kind: "ConfigMap", short: &["cm"], ..PLAIN },
    Resource {
        plural: "endpoints",
        singular: "endpoints",
        kind: "Endpoints",
        short: &["ep"],
        create_on_update: true,
        ..PLAIN
    },
    Resource { plural: "events", singular: "event", kind: "Event", short: &["ev"], create_on_update: true, ..PLAIN },
    Resource {
        plural: "namespaces",
        singular: "namespace",
        kind: "Namespace",
        short: &["ns"],
        subresources: &[("finalize", "Namespace"), ("status", "Namespace")],
        ..CLUSTER
    },
    Resource {
        plural: "nodes",
        singular: "node",
        kind: "Node",
        short: &["no"],
        subresources: &[("proxy", "NodeProxyOptions"), ("status", "Node")],
        ..CLUSTER
    },
    Resource {
        plural: "persistentvolumeclaims",
        singular: "persistentvolumeclaim",
        kind: "PersistentVolumeClaim",
        short: &["pvc"],
        subresources: &[("status", "PersistentVolumeClaim")],
        returns_deleted: true,
        ..PLAIN
    },
    Resource {
        plural: "persistentvolumes",
        singular: "persistentvolume",
        kind: "PersistentVolume",
        short: &["pv"],
        subresources: &[("status", "PersistentVolume")],
        returns_deleted: true,
        ..CLUSTER
    },
    Resource {
        plural: "pods",
        singular: "pod",
        kind: "Pod",
        short: &["po"],
        subresources: &[
            ("attach", "PodAttachOptions"),
            ("binding", "Binding"),
            ("ephemeralcontainers", "Pod"),
            ("eviction", "Eviction"),
            ("exec", "PodExecOptions"),
            ("log", "Pod"),
            ("portforward", "PodPortForwardOptions"),
            ("resize", "Pod"),
            ("status", "Pod"),
        ],
        returns_deleted: true,
        ..PLAIN
    },
    Resource { plural: "secrets", singular: "secret", kind: "Secret", ..PLAIN },
    Resource {
        plural: "serviceaccounts",
        singular: "serviceaccount",
        kind: "ServiceAccount",
        short: &["sa"],
        subresources: &[("token", "TokenRequest")],
        returns_deleted: true,
        ..PLAIN
    },
    Resource {
        plural: "services",
        singular: "service",
        kind: "Service",
        short: &["svc"],
        subresources: &[("status", "Service")],
        create_on_update: true,
        returns_deleted: true,
        ..PLAIN
    },
    Resource {
        group: AUTHENTICATION,
        plural: "tokenreviews",
        singular: "tokenreview",
        kind: "TokenReview",
        ..QUESTION
    },
    Resource {
        group: AUTHENTICATION,
        plural: "selfsubjectreviews",
        singular: "selfsubjectreview",
        kind: "SelfSubjectReview",
        ..QUESTION
    },
    Resource {
        group: AUTHORIZATION,
        plural: "subjectaccessreviews",
        singular: "subjectaccessreview",
        kind: "SubjectAccessReview",
        ..QUESTION
    },
    Resource {
        group: AUTHORIZATION,
        plural: "selfsubjectaccessreviews",
        singular: "selfsubjectaccessreview",
        kind: "SelfSubjectAccessReview",
        ..QUESTION
    },
    Resource {
        group: CERTIFICATES,
        plural: "certificatesigningrequests",
        singular: "certificatesigningrequest",
        kind: "CertificateSigningRequest",
        short: &["csr"],
        subresources: &[("approval", "CertificateSigningRequest"), ("status", "CertificateSigningRequest")],
        ..CLUSTER
    },
    Resource {
        group: COORDINATION,
        plural: "leases",
        singular: "lease",
        kind: "Lease",
        unconditional_update: false,
        create_on_update: true,
        ..PLAIN
    },
    Resource {
        group: NODE,
        plural: "runtimeclasses",
        singular: "runtimeclass",
        kind: "RuntimeClass",
        unconditional_update: false,
        ..CLUSTER
    },
    Resource {
        group: RESOURCE,
        plural: "resourceclaims",
        singular: "resourceclaim",
        kind: "ResourceClaim",
        subresources: &[("status", "ResourceClaim")],
        returns_deleted: true,
        ..PLAIN
    },
    Resource {
        group: RESOURCE,
        plural: "resourceslices",
        singular: "resourceslice",
        kind: "ResourceSlice",
        returns_deleted: true,
        ..CLUSTER
    },
    Resource {
        group: SCHEDULING,
        plural: "priorityclasses",
        singular: "priorityclass",
        kind: "PriorityClass",
        short: &["pc"],
        ..CLUSTER
    },
    Resource {
        group: STORAGE,
        plural: "csidrivers",
        singular: "csidriver",
        kind: "CSIDriver",
        unconditional_update: false,
        returns_deleted: true,
        ..CLUSTER
    },
    Resource {
        group: STORAGE,
        plural: "csinodes",
        singular: "csinode",
        kind: "CSINode",
        unconditional_update: false,
        returns_deleted: true,
        ..CLUSTER
    },
    Resource {
        group: STORAGE,
        plural: "storageclasses",
        singular: "storageclass",
        kind: "StorageClass",
        short: &["sc"],
        returns_deleted: true,
        ..CLUSTER
    },
    Resource {
        group: STORAGE,
        plural: "volumeattachments",
        singular: "volumeattachment",
        kind: "VolumeAttachment",
        subresources: &[("status", "VolumeAttachment")],
        returns_deleted: true,
        ..CLUSTER
    },
];

impl Resource {
    /// `pods`, `leases.coordination.k8s.io`: as messages name it.
    pub fn qualified(&self) -> String {
        qualified(self.group, self.plural)
    }

    /// `Pod`, `Lease.coordination.k8s.io`: as messages about content name it.
    pub fn qualified_kind(&self) -> String {
        qualified(self.group, self.kind)
    }

    /// `v1`, `storage.k8s.io/v1`.
    pub fn api_version(&self) -> String {
        group_version(self.group, self.version)
    }

    /// Position in [`RESOURCES`], which is also the table's place in the storage. All references lead into that table.
    pub fn index(&self) -> usize {
        RESOURCES.iter().position(|other| std::ptr::eq(other, self)).unwrap_or_default()
    }

    pub fn has_subresource(&self, name: &str) -> bool {
        self.subresources.iter().any(|(known, _)| *known == name)
    }

    /// A collection or object's path, below the server's root.
    pub fn path(&self, namespace: Option<&str>, name: Option<&str>) -> String {
        let mut path = if self.group.is_empty() { "/api/".to_owned() } else { format!("/apis/{}/", self.group) };
        path.push_str(self.version);
        if let Some(namespace) = namespace.filter(|_| self.namespaced) {
            path.push_str("/namespaces/");
            path.push_str(namespace);
        }
        path.push('/');
        path.push_str(self.plural);
        if let Some(name) = name {
            path.push('/');
            path.push_str(name);
        }
        path
    }
}

/// `plural.group`, or `plural` alone in the core group.
pub fn qualified(group: &str, name: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

/// `group/version`, or `version` alone in the core group.
pub fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// By path segments.
pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static Resource> {
    RESOURCES.iter().find(|known| known.group == group && known.version == version && known.plural == plural)
}

/// By the plural or the kind, as tests name things.
///
/// # Panics
/// Nothing of the name is served: a mistake in the program that asks.
pub fn named(name: &str) -> &'static Resource {
    let found = RESOURCES.iter().find(|known| known.plural == name || known.kind == name || known.singular == name);
    match found {
        Some(resource) => resource,
        None => panic!("no resource is called {name}"),
    }
}

/// By an object's `apiVersion` and `kind`.
pub fn of_object(api_version: &str, kind: &str) -> Option<&'static Resource> {
    RESOURCES.iter().find(|known| known.kind == kind && known.api_version() == api_version)
}

/// Groups with their (single) version, in order; the core group is not among them.
pub fn groups() -> Vec<(&'static str, &'static str)> {
    let mut groups = Vec::new();
    for resource in RESOURCES.iter().filter(|resource| !resource.group.is_empty()) {
        if !groups.contains(&(resource.group, resource.version)) {
            groups.push((resource.group, resource.version));
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_are_those_of_the_real_server() {
        let lease = named("leases");
        assert_eq!(lease.qualified(), "leases.coordination.k8s.io");
        assert_eq!(
            lease.path(Some("kube-node-lease"), Some("a")),
            "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/a"
        );
        assert_eq!(named("Node").path(Some("ignored"), None), "/api/v1/nodes");
        assert_eq!(RESOURCES[named("pods").index()].kind, "Pod");
        assert!(groups().contains(&("storage.k8s.io", "v1")));
    }
}
