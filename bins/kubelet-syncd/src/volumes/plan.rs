//! From `spec.volumes` to what is to be set up. A kind that this node cannot do yet is an answer too: it names itself.

use std::collections::BTreeSet;

use bulkhead_ipc::volnetd::{HostPathType, Medium};
use bulkhead_types::resource_name::huge_page_size;
use bulkhead_types::{Quantity, VolumeName};
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, HostPathVolumeSource};
use kubelet_model::v1::{Pod, Volume};

use super::content::{Content, fs_group};
use kubelet_model::pod::resources::{Amounts, pod_requests};
use kubelet_runtime::runtime::container_config::VolumeRoot;

/// One volume of a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct VolumePlan {
    pub name: VolumeName,
    pub kind: VolumeKind,
}

/// What makes a volume.
#[derive(Debug, Clone, PartialEq)]
pub enum VolumeKind {
    /// `size_limit` and `huge_page`: bytes, 0 for none. `fs_group`: the group that owns it.
    EmptyDir {
        medium: Medium,
        size_limit: u64,
        huge_page: u64,
        fs_group: Option<i64>,
    },
    HostPath {
        path: String,
        kind: HostPathType,
    },
    Content(Content),
    /// The runtime mounts it.
    Image,
    /// The volume manager finds out what it is, and mounts it: a claim, or an inline volume of a CSI driver, an NFS server or
    /// another kind that the node attaches or mounts.
    Managed {
        kind: &'static str,
    },
    /// A sentence that says what is missing.
    Impossible {
        kind: &'static str,
        why: String,
    },
}

impl VolumeKind {
    /// The API's name of the kind.
    pub fn name(&self) -> &'static str {
        match self {
            VolumeKind::EmptyDir { .. } => "emptyDir",
            VolumeKind::HostPath { .. } => "hostPath",
            VolumeKind::Content(content) => content.kind(),
            VolumeKind::Image => "image",
            VolumeKind::Managed { kind } | VolumeKind::Impossible { kind, .. } => kind,
        }
    }

    /// Where its files are.
    pub fn root(&self) -> VolumeRoot {
        match self {
            VolumeKind::Managed { .. } => VolumeRoot::Plugin("kubernetes.io/csi"),
            VolumeKind::EmptyDir { .. } | VolumeKind::Impossible { .. } => {
                VolumeRoot::Plugin("kubernetes.io/empty-dir")
            }
            VolumeKind::HostPath { .. } => VolumeRoot::HostPath,
            VolumeKind::Content(content) => VolumeRoot::Plugin(content.plugin_name()),
            VolumeKind::Image => VolumeRoot::Image,
        }
    }
}

/// The volumes of a pod that some container uses; one that is only declared is not set up (upstream
/// `pkg/kubelet/volumemanager/populator`).
///
/// `memory`: bytes; bounds a memory-backed volume: the smaller of what the node can give to pods and the pod's limit.
pub fn plan(pod: &Pod, memory: u64) -> Vec<VolumePlan> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let used: BTreeSet<&str> = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
        .flat_map(|c| {
            let mounts = c.volume_mounts.iter().flatten().map(|m| m.name.as_str());
            mounts.chain(c.volume_devices.iter().flatten().map(|d| d.name.as_str()))
        })
        .chain(spec.ephemeral_containers.iter().flatten().flat_map(|c| {
            let mounts = c.volume_mounts.iter().flatten().map(|m| m.name.as_str());
            mounts.chain(c.volume_devices.iter().flatten().map(|d| d.name.as_str()))
        }))
        .collect();
    let requests = pod_requests(pod, true);
    let volumes = spec.volumes.iter().flatten().filter(|v| used.contains(v.name.as_str()));
    volumes
        .filter_map(|volume| {
            // The name was validated with the pod.
            let name = VolumeName::parse(&volume.name).ok()?;
            Some(VolumePlan { name, kind: kind_of(pod, volume, &requests, memory) })
        })
        .collect()
}

fn kind_of(pod: &Pod, volume: &Volume, requests: &Amounts, memory: u64) -> VolumeKind {
    if let Some(source) = &volume.empty_dir {
        empty_dir(source, fs_group(pod), requests, memory)
    } else if let Some(source) = &volume.host_path {
        host_path(source)
    } else if volume.image.is_some() {
        VolumeKind::Image
    } else if let Some(content) = Content::of(pod, volume, memory) {
        VolumeKind::Content(content)
    } else if kubelet_volume_manager::populator::is_managed(volume) {
        VolumeKind::Managed { kind: kind_name(volume) }
    } else {
        VolumeKind::Impossible { kind: kind_name(volume), why: without_plugin(volume) }
    }
}

/// In upstream's words.
fn without_plugin(volume: &Volume) -> String {
    if volume.git_repo.is_some() {
        // Its gate is locked.
        return "git-repo volume plugin has been disabled; if necessary, it may be re-enabled by enabling the feature-gate \
                `GitRepoVolumeDriver`"
            .to_owned();
    }
    // Upstream has none of the others (cephfs, rbd ...) any more.
    format!("failed to get Plugin from volumeSpec for volume {:?} err=no volume plugin matched", volume.name)
}

fn empty_dir(source: &EmptyDirVolumeSource, fs_group: Option<i64>, requests: &Amounts, memory: u64) -> VolumeKind {
    let limit =
        source.size_limit.as_ref().and_then(|q| Quantity::parse(&q.0).ok()).map_or(0, |q| q.value().max(0) as u64);
    let kind = |medium, size_limit, huge_page| VolumeKind::EmptyDir { medium, size_limit, huge_page, fs_group };
    match source.medium.as_deref().unwrap_or("") {
        "" => kind(Medium::Disk, limit, 0),
        "Memory" => {
            // Upstream pkg/volume/emptydir calculateEmptyDirMemorySize: the smallest of node, pod and volume.
            let size = [memory, limit].into_iter().filter(|bytes| *bytes > 0).min().unwrap_or(0);
            kind(Medium::Memory, size, 0)
        }
        "HugePages" => {
            let sizes: Vec<u64> = requested_pages(requests);
            match sizes[..] {
                [size] => kind(Medium::HugePages, limit, size),
                [] => impossible_pages(
                    "medium HugePages needs a request for huge pages of one size; the pod requests none",
                ),
                _ => impossible_pages(
                    "medium HugePages cannot be used when the pod requests huge pages of several sizes",
                ),
            }
        }
        other => {
            let size =
                other.strip_prefix("HugePages-").and_then(|t| Quantity::parse(t).ok()).map(|q| q.value().max(0) as u64);
            match size {
                Some(size) if requested_pages(requests).contains(&size) => kind(Medium::HugePages, limit, size),
                Some(_) => impossible_pages(&format!("medium {other} is not requested by any container")),
                None => impossible_pages(&format!(
                    "medium {other:?} is not one of \"\", Memory, HugePages, HugePages-<size>"
                )),
            }
        }
    }
}

fn impossible_pages(why: &str) -> VolumeKind {
    VolumeKind::Impossible { kind: "emptyDir", why: why.to_owned() }
}

fn requested_pages(requests: &Amounts) -> Vec<u64> {
    let sizes: BTreeSet<u64> = requests
        .iter()
        .filter(|(_, amount)| !amount.is_zero())
        .filter_map(|(name, _)| huge_page_size(name))
        .map(|q| q.value().max(0) as u64)
        .collect();
    sizes.into_iter().collect()
}

fn host_path(source: &HostPathVolumeSource) -> VolumeKind {
    let kind = match source.type_.as_deref().unwrap_or("") {
        "" => HostPathType::Unspecified,
        "DirectoryOrCreate" => HostPathType::DirectoryOrCreate,
        "Directory" => HostPathType::Directory,
        "FileOrCreate" => HostPathType::FileOrCreate,
        "File" => HostPathType::File,
        "Socket" => HostPathType::Socket,
        "CharDevice" => HostPathType::CharDevice,
        "BlockDevice" => HostPathType::BlockDevice,
        other => {
            return VolumeKind::Impossible { kind: "hostPath", why: format!("hostPath type {other:?} is not known") };
        }
    };
    VolumeKind::HostPath { path: source.path.clone(), kind }
}

fn kind_name(v: &Volume) -> &'static str {
    let kinds: [(bool, &str); 23] = [
        (v.persistent_volume_claim.is_some(), "persistentVolumeClaim"),
        (v.ephemeral.is_some(), "ephemeral"),
        (v.csi.is_some(), "csi"),
        (v.nfs.is_some(), "nfs"),
        (v.iscsi.is_some(), "iscsi"),
        (v.fc.is_some(), "fc"),
        (v.git_repo.is_some(), "gitRepo"),
        (v.flex_volume.is_some(), "flexVolume"),
        // Upstream hands these to a CSI driver, or has none of them any more.
        (v.aws_elastic_block_store.is_some(), "awsElasticBlockStore"),
        (v.azure_disk.is_some(), "azureDisk"),
        (v.azure_file.is_some(), "azureFile"),
        (v.cephfs.is_some(), "cephfs"),
        (v.cinder.is_some(), "cinder"),
        (v.flocker.is_some(), "flocker"),
        (v.gce_persistent_disk.is_some(), "gcePersistentDisk"),
        (v.glusterfs.is_some(), "glusterfs"),
        (v.photon_persistent_disk.is_some(), "photonPersistentDisk"),
        (v.portworx_volume.is_some(), "portworxVolume"),
        (v.quobyte.is_some(), "quobyte"),
        (v.rbd.is_some(), "rbd"),
        (v.scale_io.is_some(), "scaleIO"),
        (v.storageos.is_some(), "storageos"),
        (v.vsphere_volume.is_some(), "vsphereVolume"),
    ];
    kinds.into_iter().find(|(there, _)| *there).map_or("of this kind", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(volume: serde_json::Value, resources: serde_json::Value) -> VolumeKind {
        let mut volume = volume;
        volume["name"] = "v".into();
        let pod: Pod = serde_json::from_value(serde_json::json!({"spec": {
            "securityContext": {"fsGroup": 7},
            "containers": [{"name": "a", "resources": resources, "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
            "volumes": [volume, {"name": "unused", "emptyDir": {}}],
        }}))
        .unwrap();
        let plans = plan(&pod, 1 << 30);
        assert_eq!(plans.len(), 1);
        plans[0].kind.clone()
    }

    #[test]
    fn kinds() {
        let none = serde_json::json!({});
        let empty =
            |medium, size_limit, huge_page| VolumeKind::EmptyDir { medium, size_limit, huge_page, fs_group: Some(7) };
        assert_eq!(one(serde_json::json!({"emptyDir": {}}), none.clone()), empty(Medium::Disk, 0, 0));
        let memory = serde_json::json!({"emptyDir": {"medium": "Memory"}});
        assert_eq!(one(memory, none.clone()), empty(Medium::Memory, 1 << 30, 0));
        let small = serde_json::json!({"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}});
        assert_eq!(one(small, none.clone()), empty(Medium::Memory, 1 << 20, 0));
        let huge = serde_json::json!({"emptyDir": {"medium": "HugePages"}});
        let pages = serde_json::json!({"requests": {"hugepages-2Mi": "4Mi"}, "limits": {"hugepages-2Mi": "4Mi"}});
        assert_eq!(one(huge.clone(), pages), empty(Medium::HugePages, 0, 2 << 20));
        assert!(matches!(one(huge, none.clone()), VolumeKind::Impossible { .. }));
        let host = serde_json::json!({"hostPath": {"path": "/x", "type": "Socket"}});
        assert_eq!(one(host, none.clone()), VolumeKind::HostPath { path: "/x".into(), kind: HostPathType::Socket });
        let config = one(serde_json::json!({"configMap": {"name": "c"}}), none.clone());
        assert!(matches!(&config, VolumeKind::Content(c) if c.fs_group == Some(7)), "{config:?}");
        assert_eq!((config.name(), config.root()), ("configMap", VolumeRoot::Plugin("kubernetes.io/configmap")));
        let image = one(serde_json::json!({"image": {"reference": "r"}}), none.clone());
        assert_eq!((image.name(), image.root()), ("image", VolumeRoot::Image));
        let claim = one(serde_json::json!({"persistentVolumeClaim": {"claimName": "c"}}), none);
        assert_eq!(claim, VolumeKind::Managed { kind: "persistentVolumeClaim" });
        let nfs = one(serde_json::json!({"nfs": {"server": "s", "path": "/p"}}), serde_json::json!({}));
        assert_eq!(nfs, VolumeKind::Managed { kind: "nfs" });
    }

    #[test]
    fn what_any_container_mounts_or_has_as_a_device_is_planned() {
        let claims = ["mounted", "device", "init", "debug", "debug-device", "declared"];
        let volume = |name: &str| serde_json::json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
        let mount = |name: &str| serde_json::json!([{"name": name, "mountPath": format!("/{name}")}]);
        let device = |name: &str| serde_json::json!([{"name": name, "devicePath": format!("/dev/{name}")}]);
        let pod: Pod = serde_json::from_value(serde_json::json!({"spec": {
            "containers": [{"name": "a", "volumeMounts": mount("mounted"), "volumeDevices": device("device")}],
            "initContainers": [{"name": "b", "volumeMounts": mount("init")}],
            "ephemeralContainers":
                [{"name": "c", "volumeMounts": mount("debug"), "volumeDevices": device("debug-device")}],
            "volumes": claims.map(volume),
        }}))
        .unwrap();
        let planned: Vec<String> = plan(&pod, 1 << 30).iter().map(|plan| plan.name.to_string()).collect();
        assert_eq!(planned, claims[..5]);
    }

    #[test]
    fn what_a_csi_driver_serves_is_the_volume_managers() {
        for (kind, source) in [
            ("awsElasticBlockStore", serde_json::json!({"volumeID": "v"})),
            ("azureDisk", serde_json::json!({"diskName": "d", "diskURI": "u"})),
            ("azureFile", serde_json::json!({"secretName": "s", "shareName": "s"})),
            ("cinder", serde_json::json!({"volumeID": "v"})),
            ("gcePersistentDisk", serde_json::json!({"pdName": "p"})),
            ("portworxVolume", serde_json::json!({"volumeID": "v"})),
            ("vsphereVolume", serde_json::json!({"volumePath": "p"})),
            ("fc", serde_json::json!({"wwids": ["w"]})),
            ("iscsi", serde_json::json!({"targetPortal": "10.0.0.1", "iqn": "iqn.x", "lun": 0})),
            ("flexVolume", serde_json::json!({"driver": "v/d"})),
        ] {
            let planned = one(serde_json::json!({kind: source}), serde_json::json!({}));
            assert_eq!(planned, VolumeKind::Managed { kind });
        }
    }

    #[test]
    fn kinds_that_are_not_there() {
        for (kind, source) in [
            ("cephfs", serde_json::json!({"monitors": ["m"]})),
            ("flocker", serde_json::json!({"datasetName": "d"})),
            ("glusterfs", serde_json::json!({"endpoints": "e", "path": "p"})),
            ("photonPersistentDisk", serde_json::json!({"pdID": "p"})),
            ("quobyte", serde_json::json!({"registry": "r", "volume": "v"})),
            ("rbd", serde_json::json!({"monitors": ["m"], "image": "i"})),
            ("scaleIO", serde_json::json!({"gateway": "g", "system": "s", "secretRef": {"name": "n"}})),
            ("storageos", serde_json::json!({"volumeName": "v"})),
        ] {
            let planned = one(serde_json::json!({kind: source}), serde_json::json!({}));
            let VolumeKind::Impossible { kind: named, why } = planned else { panic!("{kind}: {planned:?}") };
            let refused = "failed to get Plugin from volumeSpec for volume \"v\" err=no volume plugin matched";
            assert_eq!((named, &*why), (kind, refused));
        }
        let git = one(serde_json::json!({"gitRepo": {"repository": "r"}}), serde_json::json!({}));
        let VolumeKind::Impossible { kind: "gitRepo", why } = git else { panic!("{git:?}") };
        let disabled = "git-repo volume plugin has been disabled; if necessary, it may be re-enabled by enabling the feature-gate \
                        `GitRepoVolumeDriver`";
        assert_eq!(&*why, disabled);
    }
}
