//! Volumes whose files come over the API, and volumes that belong to a group.

use crate::world;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bulkhead_ipc::volnetd::volumes_client::VolumesClient;
use bulkhead_ipc::volnetd::*;
use prost::Message;
use tonic::Code;
use tonic::transport::Channel;
use world::*;

const ALL: [(ContentPlugin, &str); 4] = [
    (ContentPlugin::ConfigMap, "configmap"),
    (ContentPlugin::Secret, "secret"),
    (ContentPlugin::Projected, "projected"),
    (ContentPlugin::DownwardApi, "downward-api"),
];

fn file(path: &str, data: &str) -> VolumeFile {
    VolumeFile { path: path.into(), data: data.into(), mode: 0o644, user: None }
}

fn content(files: Vec<VolumeFile>) -> VolumeContent {
    VolumeContent { files, fs_group: None }
}

fn memfd(content: &VolumeContent) -> OwnedFd {
    bulkhead_sys::memfd::sealed("files", &content.encode_to_vec()).unwrap()
}

fn request(pod: &str, plugin: ContentPlugin) -> OpenRequest {
    let put_content = PutContent { pod_uid: pod.into(), volume: "v".into(), plugin: plugin.into() };
    OpenRequest { id: 5, put_content: Some(put_content), ..Default::default() }
}

async fn put(world: &World, plugin: ContentPlugin, content: &VolumeContent) -> Result<(), (Code, String)> {
    match world.broker(SYNCD, request("p", plugin), Some(memfd(content))).await {
        (0, _, None) => Ok(()),
        (code, message, _) => Err((Code::from_i32(code.cast_signed()), message)),
    }
}

async fn set_up(volumes: &mut VolumesClient<Channel>, plugin: ContentPlugin) -> std::path::PathBuf {
    let request =
        SetUpContentRequest { pod_uid: "p".into(), volume: "v".into(), plugin: plugin.into(), ..Default::default() };
    volumes.set_up_content(request).await.unwrap().into_inner().host_path.into()
}

async fn tear_down(world: &World, volumes: &mut VolumesClient<Channel>) {
    let request = TearDownPodRequest { pod_uid: "p".into(), guard: world.guard(1), volumes_only: false };
    let reply = volumes.tear_down_pod(request).await.unwrap().into_inner();
    assert!(reply.done, "{:?}", reply.left);
    assert!(!world.pod("p").exists() && world.mounts(&world.dir.join("root/pods")).is_empty());
    assert!(world.node.journal.all().is_empty());
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test(flavor = "current_thread")]
async fn a_volume_of_each_kind() {
    let Some(world) = world().await else { return };
    let mut volumes = VolumesClient::new(world.channel(SYNCD).await);
    for (plugin, name) in ALL {
        volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
        assert_eq!(put(&world, plugin, &content(vec![])).await.unwrap_err().0, Code::NotFound, "not set up yet");
        let dir = world.pod("p").join(format!("volumes/kubernetes.io~{name}/v"));
        for _ in 0..2 {
            assert_eq!(set_up(&mut volumes, plugin).await, dir);
        }
        assert!(world.pod("p").join("plugins/kubernetes.io~empty-dir/wrapped_v/ready").is_file());
        let in_memory = plugin != ContentPlugin::ConfigMap;
        assert_eq!(world.mounts(&dir).len(), usize::from(in_memory), "{name}");
        assert!(world.mounts(&dir).iter().all(|mount| mount.contains(" tmpfs ")));
        assert_eq!(std::fs::metadata(&dir).unwrap().mode() & 0o777, 0o777);

        put(&world, plugin, &content(vec![file("a", "1"), file("d/x", "1"), file("gone", "1")])).await.unwrap();
        assert_eq!(std::fs::read_link(dir.join("a")).unwrap(), Path::new("..data/a"));
        assert_eq!(std::fs::read_link(dir.join("d")).unwrap(), Path::new("..data/d"));
        let set = std::fs::read_link(dir.join("..data")).unwrap();
        assert_eq!(names(&dir), [&set.display().to_string(), "..data", "a", "d", "gone"]);
        put(&world, plugin, &content(vec![file("gone", "1"), file("d/x", "1"), file("a", "1")])).await.unwrap();
        assert_eq!(std::fs::read_link(dir.join("..data")).unwrap(), set, "the same content is not written again");
        put(&world, plugin, &content(vec![file("a", "2"), file("d/x", "2")])).await.unwrap();
        assert_eq!(std::fs::read_to_string(dir.join("d/x")).unwrap(), "2");
        assert_eq!((names(&dir).len(), dir.join("gone").exists()), (4, false));

        let mut stream = volumes.list_volumes(ListVolumesRequest::default()).await.unwrap().into_inner();
        let state = stream.message().await.unwrap().unwrap();
        assert_eq!((state.plugin, state.mounted), (format!("kubernetes.io/{name}"), in_memory));
        assert!(!state.uncertain && state.host_path == dir.display().to_string());
        // A reboot: the marker is there and the memory is not. No secret is written on the disk below.
        if in_memory {
            rustix::mount::unmount(&dir, rustix::mount::UnmountFlags::empty()).unwrap();
            assert_eq!(put(&world, plugin, &content(vec![])).await.unwrap_err().0, Code::NotFound);
            let sub_path = PrepareSubPathRequest {
                pod_uid: "p".into(),
                volume: "v".into(),
                container: "c".into(),
                sub_path: "a".into(),
                root: Some(prepare_sub_path_request::Root::Plugin(format!("kubernetes.io/{name}"))),
                ..Default::default()
            };
            assert_eq!(volumes.prepare_sub_path(sub_path).await.unwrap_err().code(), Code::NotFound);
            assert_eq!(names(&dir), Vec::<String>::new());
            set_up(&mut volumes, plugin).await;
            put(&world, plugin, &content(vec![file("a", "3")])).await.unwrap();
            assert_eq!(world.mounts(&dir).len(), 1);
        }
        tear_down(&world, &mut volumes).await;
    }
}

#[tokio::test(flavor = "current_thread")]
async fn what_is_no_content_changes_nothing() {
    let Some(world) = world().await else { return };
    let mut volumes = VolumesClient::new(world.channel(SYNCD).await);
    let plugin = ContentPlugin::Secret;
    assert_eq!(put(&world, plugin, &content(vec![])).await.unwrap_err().0, Code::NotFound, "no such pod");
    volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    let dir = set_up(&mut volumes, plugin).await;
    let good = content(vec![file("a", "s3cret")]);
    put(&world, plugin, &good).await.unwrap();
    let before = names(&dir);

    let long = "x".repeat(256);
    let bad_paths = ["", "/a", "../a", "a/../../b", "..data/a", "..2026", "a\0b", long.as_str()];
    for bad in bad_paths {
        let (code, message) = put(&world, plugin, &content(vec![file(bad, "s3cret")])).await.unwrap_err();
        assert!(code == Code::InvalidArgument && !message.contains("s3cret"), "{bad:?}: {message}");
    }
    for bad in [
        content(vec![file("a", "1"), file("a", "2")]),
        content(vec![file("a", "1"), file("a/b", "2")]),
        content(vec![VolumeFile { mode: 0o4755, ..file("a", "1") }]),
        content(vec![VolumeFile { user: Some(-1), ..file("a", "1") }]),
        VolumeContent { fs_group: Some(-1), ..good.clone() },
        content(vec![file("a", ""); 20_001]),
    ] {
        assert_eq!(put(&world, plugin, &bad).await.unwrap_err().0, Code::InvalidArgument);
    }
    let raw = |fd: OwnedFd| world.broker(SYNCD, request("p", plugin), Some(fd));
    for bad in [
        OwnedFd::from(tempfile::tempfile().unwrap()),
        bulkhead_sys::memfd::sealed("files", b"\xff\xff no message").unwrap(),
        bulkhead_sys::memfd::sealed("files", &vec![0; (16 << 20) + 1]).unwrap(),
    ] {
        assert_eq!(raw(bad).await.0, Code::InvalidArgument as u32);
    }
    assert_eq!(world.broker(SYNCD, request("p", plugin), None).await.0, Code::InvalidArgument as u32, "no descriptor");
    assert_eq!(world.broker(SYNCD, request("../p", plugin), Some(memfd(&good))).await.0, Code::InvalidArgument as u32);
    assert_eq!(
        world.broker(SYNCD, request("p", ContentPlugin::Unspecified), Some(memfd(&good))).await.0,
        Code::InvalidArgument as u32
    );
    for uid in [STATUSD, EVICTIOND, OPERATOR, STRANGER] {
        let (code, ..) = world.broker(uid, request("p", plugin), Some(memfd(&good))).await;
        assert_eq!(code, Code::PermissionDenied as u32, "uid {uid}");
    }
    assert_eq!(names(&dir), before);
    assert_eq!(std::fs::read_to_string(dir.join("a")).unwrap(), "s3cret");

    // The memory that the volume may have is used up: the former files stay, and nothing is left of the new ones.
    let request = SetUpContentRequest {
        pod_uid: "p".into(),
        volume: "small".into(),
        plugin: plugin.into(),
        size_limit_bytes: 256 << 10,
        mount_points: vec!["mnt/other".into()],
    };
    let small: std::path::PathBuf =
        volumes.set_up_content(request.clone()).await.unwrap().into_inner().host_path.into();
    assert!(small.join("mnt/other").is_dir());
    let ask = |content: VolumeContent| {
        let put_content = PutContent { pod_uid: "p".into(), volume: "small".into(), plugin: plugin.into() };
        let ask = OpenRequest { id: 5, put_content: Some(put_content), ..Default::default() };
        world.broker(SYNCD, ask, Some(memfd(&content)))
    };
    assert_eq!(ask(content(vec![file("a", "1"), file("mnt/key", "1")])).await.0, 0);
    let before = names(&small);
    let (code, message, _) = ask(content(vec![file("big", &"x".repeat(512 << 10))])).await;
    assert_eq!(code, Code::ResourceExhausted as u32, "{message}");
    assert_eq!(names(&small), before);
    // What another volume is mounted on stays a folder, whatever keys there are.
    assert_eq!(std::fs::read_to_string(small.join("a")).unwrap(), "1");
    assert!(small.join("mnt/other").is_dir() && !small.join("mnt/key").exists());
    let bad = SetUpContentRequest { mount_points: vec!["../x".into()], ..request };
    assert_eq!(volumes.set_up_content(bad).await.unwrap_err().code(), Code::InvalidArgument);
    tear_down(&world, &mut volumes).await;
}

/// All files of a set, read through the link once; None where the set went away meanwhile.
fn read_set(dir: &Path) -> Option<BTreeMap<String, String>> {
    let data = bulkhead_sys::open::base_dir(&dir.join("..data")).ok()?;
    let mut files = BTreeMap::new();
    for entry in bulkhead_sys::tree::list(data.as_fd(), 1000).ok()? {
        let file = bulkhead_sys::open::regular_beneath(data.as_fd(), &entry.name).ok()?;
        files.insert(entry.name.into_string().unwrap(), std::io::read_to_string(std::fs::File::from(file)).ok()?);
    }
    Some(files)
}

/// A container that has the volume mounted sees each change, entire.
#[tokio::test(flavor = "current_thread")]
async fn a_reader_sees_old_or_new() {
    let Some(world) = world().await else { return };
    let mut volumes = VolumesClient::new(world.channel(SYNCD).await);
    volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    for plugin in [ContentPlugin::ConfigMap, ContentPlugin::Secret] {
        let dir = set_up(&mut volumes, plugin).await;
        let sets = |n: u32| content((0..20).map(|key| file(&format!("key-{key}"), &n.to_string())).collect());
        put(&world, plugin, &sets(0)).await.unwrap();
        // As a container has it: a mount of its own.
        let inside = world.dir.join("container");
        std::fs::create_dir_all(&inside).unwrap();
        let handles = [&dir, &inside].map(|path| bulkhead_sys::open::base_dir(path).unwrap());
        bulkhead_sys::mount::bind(handles[0].as_fd(), handles[1].as_fd()).unwrap();
        drop(handles);
        let stop = Arc::new(AtomicBool::new(false));
        let reader = std::thread::spawn({
            let (stop, inside) = (stop.clone(), inside.clone());
            move || {
                let (mut newest, mut sets) = (0, 0);
                while !stop.load(Ordering::Relaxed) {
                    let set = match read_set(&inside) {
                        Some(set) if set.len() == 20 => set,
                        // The set was removed while it was read: the link leads to the next one already.
                        _ => continue,
                    };
                    let values: Vec<u32> = set.values().map(|value| value.parse().unwrap()).collect();
                    assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
                    assert!(values[0] >= newest, "{} after {newest}", values[0]);
                    (newest, sets) = (values[0], sets + 1);
                }
                (newest, sets)
            }
        });
        for n in 1..=100 {
            put(&world, plugin, &sets(n)).await.unwrap();
            assert_eq!(std::fs::read_to_string(inside.join("key-7")).unwrap(), n.to_string());
        }
        stop.store(true, Ordering::Relaxed);
        let (newest, sets) = tokio::task::spawn_blocking(move || reader.join().unwrap()).await.unwrap();
        assert!(newest > 0 && sets > 0);
        assert_eq!(names(&dir).len(), 22);
        let base = bulkhead_sys::open::base_dir(&world.dir).unwrap();
        bulkhead_sys::mount::unmount(base.as_fd(), "container").unwrap();
    }
    tear_down(&world, &mut volumes).await;
}

/// A pod with a way to write into the volume swaps names for links while the files are replaced: nothing is written or
/// removed outside.
#[tokio::test(flavor = "current_thread")]
async fn a_race_for_the_names() {
    let Some(world) = world().await else { return };
    let mut volumes = VolumesClient::new(world.channel(SYNCD).await);
    volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    let plugin = ContentPlugin::ConfigMap;
    let dir = set_up(&mut volumes, plugin).await;
    let outside = world.dir.join("root/outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("key"), "untouched").unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let swapper = std::thread::spawn({
        let (stop, dir, outside) = (stop.clone(), dir.clone(), outside.clone());
        move || {
            let base = bulkhead_sys::open::base_dir(&dir).unwrap();
            while !stop.load(Ordering::Relaxed) {
                // Whatever is there now becomes a link that leads out.
                for entry in bulkhead_sys::tree::list(base.as_fd(), 1000).unwrap() {
                    let _ = rustix::fs::renameat(&base, entry.name.as_os_str(), &base, "stolen");
                    let _ = symlink(&outside, dir.join(&entry.name));
                    let _ = bulkhead_sys::tree::remove(base.as_fd(), "stolen");
                }
            }
        }
    });
    let (mut done, mut refused) = (0, 0);
    for n in 0..300 {
        let wanted = content(vec![file("key", &n.to_string()), file("d/key", "x")]);
        match put(&world, plugin, &wanted).await {
            Ok(()) => done += 1,
            Err(_) => refused += 1,
        }
    }
    stop.store(true, Ordering::Relaxed);
    swapper.join().unwrap();
    assert_eq!(names(&outside), ["key"], "{done} done, {refused} refused");
    assert_eq!(std::fs::read_to_string(outside.join("key")).unwrap(), "untouched");
    // Left alone, it is put right.
    put(&world, plugin, &content(vec![file("key", "last")])).await.unwrap();
    assert_eq!(std::fs::read_to_string(dir.join("..data/key")).unwrap(), "last");
    assert_eq!(std::fs::read_to_string(dir.join("key")).unwrap(), "last");
    tear_down(&world, &mut volumes).await;
    assert_eq!(std::fs::read_to_string(outside.join("key")).unwrap(), "untouched");
}

#[tokio::test(flavor = "current_thread")]
async fn the_group_of_a_volume() {
    let Some(world) = world().await else { return };
    let mut volumes = VolumesClient::new(world.channel(SYNCD).await);
    volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    let look = |path: &Path| {
        let meta = std::fs::metadata(path).unwrap();
        (meta.mode() & 0o7777, meta.gid())
    };
    for (volume, medium, mode) in [("disk", Medium::Disk, 0o2777), ("mem", Medium::Memory, 0o3777)] {
        let request = SetUpEmptyDirRequest {
            pod_uid: "p".into(),
            volume: volume.into(),
            medium: medium.into(),
            fs_group: Some(2000),
            ..Default::default()
        };
        let dir = world.pod("p").join("volumes/kubernetes.io~empty-dir").join(volume);
        // A crash before the marker: what is there is given, too.
        if medium == Medium::Disk {
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("f"), "").unwrap();
            std::fs::set_permissions(dir.join("f"), std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        let bad = SetUpEmptyDirRequest { fs_group: Some(-1), ..request.clone() };
        assert_eq!(volumes.set_up_empty_dir(bad).await.unwrap_err().code(), Code::InvalidArgument);
        volumes.set_up_empty_dir(request.clone()).await.unwrap();
        assert_eq!(look(&dir), (mode, 2000), "{volume}");
        if medium == Medium::Disk {
            assert_eq!(look(&dir.join("f")), (0o660, 2000));
        }
        // A volume that is complete stays as containers have it.
        std::fs::write(dir.join("later"), "").unwrap();
        std::fs::set_permissions(dir.join("later"), std::fs::Permissions::from_mode(0o600)).unwrap();
        volumes.set_up_empty_dir(request).await.unwrap();
        assert_eq!(look(&dir.join("later")), (0o600, 2000), "the group comes from the directory");
    }
    for (plugin, mode) in [(ContentPlugin::ConfigMap, 0o2777), (ContentPlugin::Projected, 0o3777)] {
        let dir = set_up(&mut volumes, plugin).await;
        let files = vec![
            VolumeFile { mode: 0o600, user: Some(1000), ..file("token", "t") },
            VolumeFile { mode: 0o400, ..file("d/x", "x") },
        ];
        put(&world, plugin, &VolumeContent { files, fs_group: Some(2000) }).await.unwrap();
        assert_eq!(look(&dir), (mode, 2000));
        // A link in a sticky directory is followed by its owner alone (`fs.protected_symlinks`).
        let token = dir.join("..data/token");
        assert_eq!((look(&token), std::fs::metadata(&token).unwrap().uid()), ((0o640, 2000), 1000));
        assert_eq!(std::fs::symlink_metadata(dir.join("token")).unwrap().uid(), 1000);
        assert_eq!(look(&dir.join("d/x")), (0o440, 2000));
        assert_eq!((look(&dir.join("d")), look(&dir.join("..data/"))), ((0o2755, 2000), (0o2755, 2000)));
    }
    tear_down(&world, &mut volumes).await;
}
