//! Requests as the builders make them, for tests of the second look.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bulkhead_cri::v1;
use kubelet_model::v1::{Container, Pod};
use serde_json::{Value, json};

use crate::runtime::run_options::RunContainerOptions;

use super::{Checked, RequestContext, Starting};
use crate::runtime::container_config::{Instance, MountedVolume, MountedVolumes, VolumeRoot, container_config};
use crate::runtime::dns::ResolvConf;
use crate::runtime::image_volumes::ImageVolumes;
use crate::runtime::pod_runtime::PodRuntime;
use crate::runtime::sandbox_config::sandbox_plan;
use crate::runtime::security::ImageUser;
use crate::runtime::sub_paths::sub_paths;
use crate::runtime::userns::IdBlock;
use kubelet_model::node_facts::{HandlerFeatures, HostFacts, NodeFacts};
use kubelet_model::pod::spec::{PodIdentity, find_container};

pub const UID: &str = "45bbbc9d-d0f2-4f05-b523-456180a33b77";
pub const PODS: &str = "/var/lib/kubelet/pods";
pub const CGROUP: &str = "/kubepods/besteffort/pod45bbbc9d-d0f2-4f05-b523-456180a33b77";

/// A pod and all that belongs to it.
#[derive(Debug, Clone)]
pub struct Setup {
    pub pod: Pod,
    pub facts: NodeFacts,
    pub runtime: PodRuntime,
    pub image_user: ImageUser,
    pub options: RunContainerOptions,
    /// Which container starts.
    pub name: String,
    pub target: Option<String>,
}

/// What the container manager gave.
fn allocated() -> RunContainerOptions {
    let path = |path: &str| path.to_owned();
    RunContainerOptions {
        devices: vec![v1::Device {
            container_path: path("/dev/g"),
            host_path: path("/dev/g0"),
            permissions: path("rw"),
        }],
        mounts: vec![v1::Mount {
            container_path: path("/lib/g"),
            host_path: path("/opt/g"),
            readonly: true,
            ..Default::default()
        }],
        envs: vec![(path("G"), b"0".to_vec())],
        annotations: BTreeMap::from([(path("vendor.com/a"), path("1"))]),
        cdi_devices: vec![path("vendor.com/gpu=0")],
        cpuset_cpus: path("2-3"),
        cpuset_mems: path("0"),
        without_quota: false,
    }
}

/// Both requests of one start.
#[derive(Debug, Clone)]
pub struct Requests {
    pub container: v1::ContainerConfig,
    pub sandbox: v1::PodSandboxConfig,
    pub handler: String,
}

/// A pod of that spec with one container `main` that is changed as given.
pub fn pod(spec: Value, main: Value) -> Pod {
    let mut container = json!({"name": "main", "image": "i", "terminationMessagePath": "/dev/termination-log",
        "env": [{"name": "A", "value": "x"}]});
    merge(&mut container, main);
    let mut whole = json!({"containers": [container], "securityContext": {}, "enableServiceLinks": true});
    merge(&mut whole, spec);
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": UID, "labels": {"a": "b"}, "annotations": {"note": "n"}},
        "spec": whole,
    }))
    .unwrap()
}

pub fn merge(into: &mut Value, from: Value) {
    for (key, value) in from.as_object().unwrap() {
        into[key] = value.clone();
    }
}

impl Setup {
    pub fn of(pod: Pod) -> Self {
        let mut facts = NodeFacts::new(HostFacts { memory_capacity: 8 << 30, ..HostFacts::default() });
        facts.cluster_dns = vec!["10.96.0.10".into()];
        let own = pod.spec.as_ref().unwrap().host_users == Some(false);
        let features = HandlerFeatures { recursive_read_only_mounts: true, user_namespaces: own };
        let users = own.then_some(IdBlock { first: 131_072, length: 65_536 });
        let runtime = PodRuntime { features, users, volume_groups: vec![5005], ..PodRuntime::default() };
        let image_user = ImageUser { uid: Some(0), username: String::new() };
        Setup { pod, facts, runtime, image_user, options: allocated(), name: "main".to_owned(), target: None }
    }

    pub fn container(&self) -> Container {
        find_container(&self.pod, &self.name).unwrap().1.into_owned()
    }

    /// As the builders make them; None where they refuse the pod.
    pub fn requests(&self) -> Option<Requests> {
        let (identity, container) = (PodIdentity::of(&self.pod).unwrap(), self.container());
        let host = ResolvConf { nameservers: vec!["10.255.255.53".into()], ..ResolvConf::default() };
        let plan = sandbox_plan(&self.pod, &identity, 0, CGROUP, &host, &self.facts, self.runtime.clone()).ok()?;
        let environment = [("A".to_owned(), b"x".to_vec())].into();
        let folder = Path::new(PODS).join(UID);
        let parts = sub_paths(&container, &environment).ok()?;
        let place = |volume: &str, index: usize| {
            folder.join("volume-subpaths").join(volume).join(&self.name).join(index.to_string())
        };
        let parts: BTreeMap<usize, PathBuf> = parts.iter().map(|p| (p.index, place(&p.volume, p.index))).collect();
        let file = folder.join("containers").join(&self.name).join("13d0088e");
        let instance = Instance {
            restart_count: 3,
            image_ref: "sha256:i",
            image_user: &self.image_user,
            volumes: &self.volumes(),
            images: &self.images(),
            environment: &environment,
            sub_paths: &parts,
            options: &self.options,
            etc_hosts: Some(&folder.join("etc-hosts")),
            termination_file: Some(&file),
            target: self.target.as_deref(),
            runtime: &self.runtime,
        };
        let config = container_config(&self.pod, &identity, &container, &instance, &self.facts).ok()?;
        Some(Requests { container: config, sandbox: plan.config, handler: plan.runtime.handler })
    }

    fn images(&self) -> ImageVolumes {
        let volumes = self.pod.spec.as_ref().unwrap().volumes.iter().flatten();
        let image = |volume: &kubelet_model::v1::Volume| {
            let user_specified_image = volume.image.as_ref()?.reference.clone()?;
            Some(v1::ImageSpec { image: "sha256:v".into(), user_specified_image, ..Default::default() })
        };
        volumes.filter_map(|v| Some((v.name.clone(), image(v)?))).collect()
    }

    /// Where volnetd puts them.
    fn volumes(&self) -> MountedVolumes {
        let volumes = self.pod.spec.as_ref().unwrap().volumes.iter().flatten();
        let place = |volume: &kubelet_model::v1::Volume| {
            let kinds = [
                (volume.empty_dir.is_some(), "empty-dir", false),
                (volume.config_map.is_some(), "configmap", true),
                (volume.secret.is_some(), "secret", true),
                (volume.projected.is_some(), "projected", true),
                (volume.downward_api.is_some(), "downward-api", true),
                (volume.image.is_some(), "image", true),
            ];
            let (_, plugin, read_only) = kinds.into_iter().find(|(is, ..)| *is)?;
            let host_path = format!("{PODS}/{UID}/volumes/kubernetes.io~{plugin}/{}", volume.name).into();
            Some(MountedVolume {
                host_path,
                read_only,
                managed: true,
                root: VolumeRoot::Plugin("kubernetes.io/x"),
                folder: None,
                gid: None,
            })
        };
        let host = |path: &str| MountedVolume {
            host_path: path.into(),
            read_only: false,
            managed: false,
            root: VolumeRoot::HostPath,
            folder: None,
            gid: None,
        };
        let path = |volume: &kubelet_model::v1::Volume| {
            let own = volume.host_path.as_ref().map(|source| source.path.clone());
            own.or_else(|| Some(self.runtime.claimed_paths.get(&volume.name)?.display().to_string()))
        };
        volumes.filter_map(|v| Some((v.name.clone(), place(v).or_else(|| Some(host(&path(v)?)))?))).collect()
    }

    /// What the second look says.
    pub fn check(&self, requests: &Requests) -> Checked {
        let identity = PodIdentity::of(&self.pod).unwrap();
        let known = RequestContext {
            pod: &self.pod,
            identity: &identity,
            facts: &self.facts,
            cgroup_parent: CGROUP,
            runtime: &self.runtime,
        };
        let container = self.container();
        let (image_user, target) = (&self.image_user, self.target.as_deref());
        let starting = Starting { container: &container, image_user, options: &self.options, target };
        super::sandbox(&known, &requests.sandbox, &requests.handler)?;
        super::container(&known, &starting, &requests.container, &requests.sandbox)
    }
}
