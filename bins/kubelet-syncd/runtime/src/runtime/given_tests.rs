//! What a container is given that other containers, the runtime and the container manager bring, in the order of work: files with
//! variables, image volumes, variables of devices.

use std::collections::BTreeMap;
use std::time::Duration;

use bulkhead_cri::{Code, v1};
use bulkhead_types::ContainerId;
use futures_util::future::BoxFuture;
use kubelet_model::v1::{Container, Pod};

use super::argument_list::LARGE_AT_A_TIME;
use super::container_config::{MountedVolume, VolumeRoot};
use super::fake_runtime::{Managers, World, world};
use super::image_volumes::Counted;
use super::result::ActionError;
use super::run_options::{ContainerManager, RunContainerOptions, WithoutQuota};
use kubelet_model::fixtures::{pod, sandbox_status, uid};
use kubelet_model::pod::model::{RuntimePod, SandboxState};

fn ready() -> RuntimePod {
    RuntimePod {
        uid: Some(uid()),
        namespace: "ns".to_owned(),
        name: "p".to_owned(),
        sandboxes: vec![sandbox_status("s0", 0, SandboxState::Ready)],
        containers: Vec::new(),
    }
}

fn volume(root: VolumeRoot) -> MountedVolume {
    let host_path = match root {
        VolumeRoot::Image => String::new(),
        _ => format!("/var/lib/kubelet/pods/{}/volumes/kubernetes.io~empty-dir/v", uid()),
    };
    MountedVolume {
        host_path: host_path.into(),
        read_only: root == VolumeRoot::Image,
        managed: false,
        root,
        folder: None,
        gid: None,
    }
}

fn from_file(volume: &str) -> Pod {
    let variable = |name: &str, key: &str, optional: bool| {
        serde_json::json!({"name": name, "valueFrom": {"fileKeyRef":
            {"volumeName": volume, "path": "env", "key": key, "optional": optional}}})
    };
    pod(serde_json::json!({"enableServiceLinks": true, "containers": [{"name": "a", "image": "i",
        "env": [variable("A", "FROM_FILE", false), variable("B", "FROM_FILE", false), variable("C", "NONE", true)]}]}))
}

#[tokio::test]
async fn a_file_is_read_once_for_each_start() {
    let mut w = world();
    w.volumes.insert("v".to_owned(), volume(VolumeRoot::Plugin("kubernetes.io/empty-dir")));
    let result = w.sync(&from_file("v"), &ready()).await;
    assert!(result.is_ok(), "{result:?}");
    let lines = w.fake.take();
    let at = |start: &str| lines.iter().position(|line| line.starts_with(start)).unwrap();
    assert!(at("ImageStatus") < at("env file v env") && at("env file v env") < at("CreateContainer"));
    assert_eq!(lines.iter().filter(|line| line.starts_with("env file")).count(), 1);
    let envs: BTreeMap<String, Vec<u8>> =
        w.fake.log().configs[0].envs.iter().map(|pair| (pair.key.clone(), pair.value.clone())).collect();
    assert_eq!(envs, [("A".to_owned(), b"yes".to_vec()), ("B".to_owned(), b"yes".to_vec())].into());
}

#[tokio::test]
async fn what_keeps_a_container_from_its_file() {
    let error = async |w: &World, pod: &Pod| {
        let result = w.sync(pod, &ready()).await;
        let error = result.actions.into_iter().find_map(|action| action.error).unwrap();
        (error.reason, error.message, error.transient)
    };
    let refused = |message: &str| ("CreateContainerConfigError".to_owned(), message.to_owned(), false);
    let mut w = world();
    let text = "cannot find the volume \"v\" referenced by FileKeyRef";
    assert_eq!(error(&w, &from_file("v")).await, refused(text));
    assert!(w.fake.events().contains(&format!("event Warning Failed spec.containers{{a}} Error: {text}")));

    w.volumes.insert("v".to_owned(), volume(VolumeRoot::Plugin("kubernetes.io/empty-dir")));
    w.fake.fail("env file v env", Code::InvalidArgument, "");
    assert_eq!(error(&w, &from_file("v")).await, refused("couldn't parse env file"));
    assert!(!w.fake.take().iter().any(|line| line.contains("/secret/place")), "the host's files are nobody's business");

    w.fake.log().volnetd_away = true;
    let (_, _, transient) = error(&w, &from_file("v")).await;
    assert!(transient && w.fake.events().is_empty());

    // Without the gate nobody reads anything.
    w.fake.log().volnetd_away = false;
    w.facts.env_files = false;
    w.fake.take();
    assert!(w.sync(&from_file("v"), &ready()).await.is_ok());
    assert!(!w.fake.take().iter().any(|line| line.starts_with("env file")));
}

fn with_images(mounts: &[serde_json::Value]) -> Pod {
    let image = |name: &str, reference: &str| serde_json::json!({"name": name, "image": {"reference": reference, "pullPolicy": "IfNotPresent"}});
    let mut pod = pod(serde_json::json!({"enableServiceLinks": true,
        "volumes": [image("data", "registry.test/data:1"), image("unused", "registry.test/none:1")],
        "containers": [
            {"name": "a", "image": "i", "volumeMounts": mounts, "env": [{"name": "PART", "value": "etc"}]},
            {"name": "b", "image": "i"}]}));
    pod.metadata.annotations.get_or_insert_default().insert("note".to_owned(), "n".to_owned());
    pod
}

fn image_world() -> World {
    let mut w = world();
    for name in ["data", "unused"] {
        w.volumes.insert(name.to_owned(), volume(VolumeRoot::Image));
    }
    w.fake.fail("ImageStatus registry.test/none:1", Code::NotFound, "no such image");
    w
}

#[tokio::test]
async fn an_image_is_asked_of_the_runtime_as_a_mount() {
    let w = image_world();
    let mounts = [
        serde_json::json!({"name": "data", "mountPath": "/data"}),
        serde_json::json!({"name": "data", "mountPath": "/part", "subPath": "usr/share", "readOnly": true}),
        serde_json::json!({"name": "data", "mountPath": "/other", "subPathExpr": "$(PART)"}),
    ];
    let pod = with_images(&mounts);
    let result = w.sync(&pod, &ready()).await;
    // An image that nobody mounts may be missing.
    assert!(result.is_ok(), "{result:?}");
    let lines = w.fake.cri();
    assert_eq!(
        lines,
        [
            "ImageStatus registry.test/data:1",
            "ImageStatus registry.test/none:1",
            "ImageStatus i",
            "CreateContainer s0 a",
            "StartContainer a-new",
            "ImageStatus i",
            "CreateContainer s0 b",
            "StartContainer b-new"
        ]
    );
    let spec = v1::ImageSpec {
        image: "sha256:i".into(),
        user_specified_image: "registry.test/data:1".into(),
        annotations: pod.metadata.annotations.clone().unwrap(),
        ..Default::default()
    };
    let mount = |container_path: &str, image_sub_path: &str| v1::Mount {
        container_path: container_path.into(),
        readonly: true,
        image: Some(spec.clone()),
        image_sub_path: image_sub_path.into(),
        ..Default::default()
    };
    let log = w.fake.log();
    let asked: Vec<v1::Mount> = log.configs[0].mounts.iter().filter(|m| m.image.is_some()).cloned().collect();
    assert_eq!(asked, [mount("/data", ""), mount("/part", "usr/share"), mount("/other", "etc")]);
    assert!(log.configs[1].mounts.iter().all(|m| m.image.is_none()));
    assert_eq!(log.counted, [Counted { requested: 1, mounts: 3, failed: false }]);
}

#[tokio::test]
async fn an_image_that_is_not_there_keeps_those_who_mount_it_waiting() {
    let w = image_world();
    let mount = |name: &str| serde_json::json!({"name": name, "mountPath": format!("/{name}")});
    let result = w.sync(&with_images(&[mount("unused"), mount("data")]), &ready()).await;
    let errors: Vec<(&str, &str)> = result
        .actions
        .iter()
        .filter_map(|action| action.error.as_ref())
        .map(|error| (error.reason.as_str(), error.message.as_str()))
        .collect();
    assert_eq!(errors, [("ErrImagePull", "no such image")]);
    assert_eq!(
        w.fake.events()[0],
        "event Warning Failed spec.containers{a} Error: ErrImagePull",
        "before anything of the container itself is tried"
    );
    let lines = w.fake.cri();
    assert!(!lines.contains(&"CreateContainer s0 a".to_owned()) && lines.contains(&"StartContainer b-new".to_owned()));
    assert!(w.fake.log().counted.is_empty());
}

#[tokio::test]
async fn a_runtime_that_cannot_mount_images_says_so() {
    let w = image_world();
    let text = "ImageVolumeMountFailed: nothing to mount";
    w.fake.fail("CreateContainer s0 a", Code::Unknown, text);
    let mount = serde_json::json!({"name": "data", "mountPath": "/data"});
    let result = w.sync(&with_images(&[mount]), &ready()).await;
    let error = result.actions.iter().find_map(|action| action.error.as_ref()).unwrap();
    assert_eq!((error.reason.as_str(), error.message.as_str()), ("CreateContainerError", text));
    assert!(w.fake.events().contains(&format!("event Warning Failed spec.containers{{a}} Error: {text}")));
    assert_eq!(w.fake.log().counted, [Counted { requested: 1, mounts: 1, failed: true }]);
}

/// A device plugin that gives these variables.
struct Devices(&'static [(&'static str, &'static str)]);

impl ContainerManager for Devices {
    fn prepare_dynamic_resources<'a>(&'a self, _: &'a Pod) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }

    fn run_options<'a>(
        &'a self,
        _: &'a Pod,
        _: &'a Container,
    ) -> BoxFuture<'a, Result<RunContainerOptions, ActionError>> {
        let envs = self.0.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect();
        Box::pin(async { Ok(RunContainerOptions { envs, ..RunContainerOptions::default() }) })
    }

    fn without_quota(&self, _: &Pod) -> WithoutQuota {
        WithoutQuota::default()
    }

    fn created(&self, _: &Pod, _: &Container, _: &ContainerId, _: &RunContainerOptions) {}
}

#[tokio::test]
async fn variables_of_devices_are_put_in_like_those_of_the_spec() {
    let mut w = world();
    w.container_manager = Managers(Box::new(Devices(&[("DEVICE", "first"), ("BOTH", "given"), ("DEVICE", "last")])));
    w.volumes.insert("v".to_owned(), volume(VolumeRoot::Plugin("kubernetes.io/empty-dir")));
    let mount = serde_json::json!({"name": "v", "mountPath": "/v", "subPathExpr": "of/$(DEVICE)/$(BOTH)"});
    let pod = pod(serde_json::json!({"enableServiceLinks": true, "volumes": [{"name": "v", "emptyDir": {}}],
        "containers": [{"name": "a", "image": "i", "command": ["$(DEVICE)", "$$(DEVICE)"], "args": ["$(BOTH) $(NONE)"],
            "env": [{"name": "BOTH", "value": "own"}], "volumeMounts": [mount]}]}));
    let result = w.sync(&pod, &ready()).await;
    assert!(result.is_ok(), "{result:?}");
    let part = w.fake.take().into_iter().find(|line| line.starts_with("sub path")).unwrap();
    assert!(part.ends_with("/v/of/last/own"), "{part}");
    let config = w.fake.log().configs[0].clone();
    assert_eq!((config.command, config.args), (vec!["last".into(), "$(DEVICE)".into()], vec!["own $(NONE)".into()]));
}

fn with_variable(bytes: usize) -> Pod {
    pod(serde_json::json!({"enableServiceLinks": true, "containers": [{"name": "a", "image": "i",
        "env": [{"name": "A", "value": "x".repeat(bytes)}]}]}))
}

#[tokio::test(start_paused = true)]
async fn large_starts_wait_for_their_turn() {
    let w = world();
    let all = u32::try_from(LARGE_AT_A_TIME).unwrap();
    let others = w.manager.large_starts.acquire_many(all).await.unwrap();
    let waits = tokio::time::timeout(Duration::from_secs(60), w.sync(&with_variable(600 << 10), &ready())).await;
    assert!(waits.is_err() && !w.fake.take().iter().any(|line| line.starts_with("CreateContainer")));
    assert!(w.sync(&with_variable(60 << 10), &ready()).await.is_ok());
    drop(others);
    assert!(w.sync(&with_variable(600 << 10), &ready()).await.is_ok());
    assert_eq!(w.manager.large_starts.available_permits(), LARGE_AT_A_TIME);
}

#[tokio::test]
async fn what_no_kernel_passes_to_a_program_is_not_asked_for() {
    let w = world();
    let result = w.sync(&with_variable(6 << 20), &ready()).await;
    let error = result.actions.into_iter().find_map(|action| action.error).unwrap();
    assert!(error.reason == "CreateContainerConfigError" && !error.transient);
    assert!(error.message.starts_with("argument list too long: with variable \"A\" the command"), "{}", error.message);
    assert!(!w.fake.take().iter().any(|line| line.starts_with("CreateContainer")));
}
