//! subPath: what is bound, and pods that try to make it something else.

use crate::world;

use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bulkhead_ipc::volnetd::prepare_sub_path_request::Root;
use bulkhead_ipc::volnetd::volumes_client::VolumesClient;
use bulkhead_ipc::volnetd::*;
use prost::Message;
use tonic::Code;
use tonic::transport::Channel;
use world::*;

type Volumes = VolumesClient<Channel>;

/// A pod "p" with an emptyDir "v" on the disk; its directory.
async fn pod(world: &World) -> (Volumes, PathBuf) {
    let mut volumes = VolumesClient::new(world.channel(SYNCD).await);
    volumes.prepare_pod(PreparePodRequest { pod_uid: "p".into() }).await.unwrap();
    let dir = empty_dir(&mut volumes, "v", Medium::Disk).await;
    (volumes, dir)
}

async fn empty_dir(volumes: &mut Volumes, volume: &str, medium: Medium) -> PathBuf {
    let request = SetUpEmptyDirRequest {
        pod_uid: "p".into(),
        volume: volume.into(),
        medium: medium.into(),
        ..Default::default()
    };
    volumes.set_up_empty_dir(request).await.unwrap().into_inner().host_path.into()
}

fn request(sub_path: &str) -> PrepareSubPathRequest {
    PrepareSubPathRequest {
        pod_uid: "p".into(),
        volume: "v".into(),
        container: "c".into(),
        index: 0,
        sub_path: sub_path.into(),
        root: Some(Root::Plugin("kubernetes.io/empty-dir".into())),
        read_only: false,
    }
}

async fn prepare(volumes: &mut Volumes, request: PrepareSubPathRequest) -> Result<PathBuf, (Code, String)> {
    match volumes.prepare_sub_path(request).await {
        Ok(reply) => Ok(reply.into_inner().host_path.into()),
        Err(status) => Err((status.code(), status.message().to_owned())),
    }
}

async fn tear_down(world: &World, volumes: &mut Volumes) {
    let request = TearDownPodRequest { pod_uid: "p".into(), guard: world.guard(1), volumes_only: false };
    let reply = volumes.tear_down_pod(request).await.unwrap().into_inner();
    assert!(reply.done, "{:?}", reply.left);
    assert!(!world.pod("p").exists() && world.mounts(&world.dir.join("root/pods")).is_empty());
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().mode() & 0o7777
}

#[tokio::test(flavor = "current_thread")]
async fn directories_files_and_what_is_missing() {
    let Some(world) = world().await else { return };
    let (mut volumes, dir) = pod(&world).await;
    std::fs::create_dir_all(dir.join("real/sub")).unwrap();
    std::fs::write(dir.join("real/file"), "x").unwrap();
    symlink("real", dir.join("link")).unwrap();
    symlink(dir.join("real"), dir.join("own-path")).unwrap();

    let path = prepare(&mut volumes, request("own-path/sub")).await.unwrap();
    assert!(path.is_dir());
    let path = prepare(&mut volumes, request("link/sub")).await.unwrap();
    assert_eq!(path, world.pod("p").join("volume-subpaths/v/c/0"));
    std::fs::write(path.join("new"), "y").unwrap();
    assert_eq!(std::fs::read_to_string(dir.join("real/sub/new")).unwrap(), "y");
    let parents = ["volume-subpaths", "volume-subpaths/v", "volume-subpaths/v/c"];
    assert!(parents.iter().all(|parent| mode(&world.pod("p").join(parent)) == 0o750));
    let file = prepare(&mut volumes, PrepareSubPathRequest { index: 1, ..request("real/file") }).await.unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "x");

    // Missing: made, with the permissions of the volume; not in a read-only mount.
    let missing = PrepareSubPathRequest { index: 2, ..request("a/b/c") };
    let read_only = PrepareSubPathRequest { read_only: true, ..missing.clone() };
    assert_eq!(prepare(&mut volumes, read_only.clone()).await.unwrap_err().0, Code::NotFound);
    assert!(!dir.join("a").exists());
    prepare(&mut volumes, missing).await.unwrap();
    for made in ["a", "a/b", "a/b/c"] {
        assert_eq!(mode(&dir.join(made)), 0o777, "{made}");
    }
    prepare(&mut volumes, read_only).await.unwrap();
    // The volume's root itself.
    let root = prepare(&mut volumes, PrepareSubPathRequest { index: 3, ..request("./") }).await.unwrap();
    assert!(root.join("real").is_dir());

    // Asked again, by this process or the next one: the same mount.
    let mounts = || {
        let mut ids: Vec<_> = bulkhead_sys::mountinfo::MountInfo::new()
            .read()
            .unwrap()
            .filter(|m| m.mount_point.starts_with(world.pod("p")))
            .map(|m| (m.mount_point.display().to_string(), m.id))
            .collect();
        ids.sort();
        ids
    };
    let before = mounts();
    assert_eq!(before.len(), 4);
    prepare(&mut volumes, request("real/sub")).await.unwrap();
    prepare(&mut volumes, PrepareSubPathRequest { index: 1, ..request("link/file") }).await.unwrap();
    assert_eq!(mounts(), before);
    // Another object under the same path, of the other kind even: replaced.
    std::fs::rename(dir.join("real"), dir.join("former")).unwrap();
    std::fs::create_dir(dir.join("real")).unwrap();
    std::fs::write(dir.join("real/sub"), "a file now").unwrap();
    let path = prepare(&mut volumes, request("link/sub")).await.unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "a file now");
    assert_eq!(mounts().len(), 4);
    // The target without its mount, as a crash or a reboot leaves it.
    rustix::mount::unmount(&path, rustix::mount::UnmountFlags::empty()).unwrap();
    assert_eq!(
        std::fs::read_to_string(prepare(&mut volumes, request("real/sub")).await.unwrap()).unwrap(),
        "a file now"
    );

    let mut stream = volumes.list_volumes(ListVolumesRequest::default()).await.unwrap().into_inner();
    let state = stream.message().await.unwrap().unwrap();
    assert_eq!(state.sub_paths, ["c/0", "c/1", "c/2", "c/3"]);
    tear_down(&world, &mut volumes).await;
}

#[tokio::test(flavor = "current_thread")]
async fn of_a_configmap_of_memory_and_of_the_host() {
    let Some(world) = world().await else { return };
    let (mut volumes, _) = pod(&world).await;
    let set_up = SetUpContentRequest {
        pod_uid: "p".into(),
        volume: "cm".into(),
        plugin: ContentPlugin::ConfigMap.into(),
        ..Default::default()
    };
    let cm = PrepareSubPathRequest {
        volume: "cm".into(),
        root: Some(Root::Plugin("kubernetes.io/configmap".into())),
        ..request("key")
    };
    assert_eq!(prepare(&mut volumes, cm.clone()).await.unwrap_err().0, Code::NotFound, "not set up yet");
    volumes.set_up_content(set_up).await.unwrap();
    let put = |data: &str| {
        let file = VolumeFile { path: "key".into(), data: data.into(), mode: 0o644, user: None };
        let content = VolumeContent { files: vec![file], fs_group: None };
        let put_content =
            PutContent { pod_uid: "p".into(), volume: "cm".into(), plugin: ContentPlugin::ConfigMap.into() };
        let request = OpenRequest { id: 1, put_content: Some(put_content), ..Default::default() };
        world.broker(SYNCD, request, Some(bulkhead_sys::memfd::sealed("x", &content.encode_to_vec()).unwrap()))
    };
    assert_eq!(put("1").await.0, 0);
    let key = prepare(&mut volumes, cm.clone()).await.unwrap();
    assert_eq!(std::fs::read_to_string(&key).unwrap(), "1");
    // A running container keeps what it was started with; the next one gets what is there then.
    assert_eq!(put("2").await.0, 0);
    assert_eq!(std::fs::read_to_string(&key).unwrap(), "1");
    assert_eq!(std::fs::read_to_string(prepare(&mut volumes, cm).await.unwrap()).unwrap(), "2");

    let memory = empty_dir(&mut volumes, "mem", Medium::Memory).await;
    std::fs::create_dir(memory.join("d")).unwrap();
    let of_memory = PrepareSubPathRequest { volume: "mem".into(), ..request("d") };
    prepare(&mut volumes, of_memory).await.unwrap();

    let host = world.dir.join("host");
    std::fs::create_dir_all(host.join("data/inner")).unwrap();
    symlink("/etc", host.join("data/out")).unwrap();
    symlink(host.join("data/inner"), host.join("data/current")).unwrap();
    symlink("data", host.join("alias")).unwrap();
    symlink(host.join("alias/inner"), host.join("data/by-alias")).unwrap();
    let of_host = |sub_path: &str, path: &Path| PrepareSubPathRequest {
        volume: "host".into(),
        root: Some(Root::HostPath(path.display().to_string())),
        ..request(sub_path)
    };
    let inner = prepare(&mut volumes, of_host("inner", &host.join("data"))).await.unwrap();
    std::fs::write(inner.join("f"), "kept").unwrap();
    // A link may name the volume by its path on the host, as the host's own software writes it.
    for (link, volume) in [("current", "data"), ("current", "alias"), ("by-alias", "alias")] {
        let path = prepare(&mut volumes, of_host(link, &host.join(volume))).await.unwrap();
        assert_eq!(std::fs::read_to_string(path.join("f")).unwrap(), "kept", "{link} of {volume}");
    }
    let (code, _) = prepare(&mut volumes, of_host("by-alias", &host.join("data"))).await.unwrap_err();
    assert_eq!(code, Code::InvalidArgument, "this volume is not known by that name");
    assert_eq!(prepare(&mut volumes, of_host("out", &host.join("data"))).await.unwrap_err().0, Code::InvalidArgument);
    assert_eq!(prepare(&mut volumes, of_host("x", &host.join("none"))).await.unwrap_err().0, Code::InvalidArgument);
    assert_eq!(prepare(&mut volumes, of_host("x", Path::new("/a/../b"))).await.unwrap_err().0, Code::InvalidArgument);

    let mut stream = volumes.list_volumes(ListVolumesRequest::default()).await.unwrap().into_inner();
    let mut listed = Vec::new();
    while let Some(state) = stream.message().await.unwrap() {
        listed.push((state.plugin, state.volume, state.sub_paths.join(",")));
    }
    listed.sort();
    let expected =
        [("configmap", "cm", "c/0"), ("empty-dir", "mem", "c/0"), ("empty-dir", "v", ""), ("host-path", "host", "c/0")];
    let expected = expected
        .map(|(plugin, volume, binds)| (format!("kubernetes.io/{plugin}"), volume.to_owned(), binds.to_owned()));
    assert_eq!(listed, expected);

    // An orphan goes with all of it, the host's own files stay.
    let prune = PruneRequest { known_pod_uids: vec![], guard: world.guard(1) };
    let mut steps = volumes.prune(prune).await.unwrap().into_inner();
    while let Some(step) = steps.message().await.unwrap() {
        assert_eq!(step.error, "", "{step:?}");
    }
    assert!(!world.pod("p").exists() && world.mounts(&world.dir.join("root/pods")).is_empty());
    assert_eq!(std::fs::read_to_string(host.join("data/inner/f")).unwrap(), "kept");
}

#[tokio::test(flavor = "current_thread")]
async fn ways_out_and_odd_objects() {
    let Some(world) = world().await else { return };
    let (mut volumes, dir) = pod(&world).await;
    let outside = world.dir.join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("secret"), "x").unwrap();
    symlink(&outside, dir.join("absolute")).unwrap();
    std::fs::create_dir(dir.join("inside")).unwrap();
    symlink("../../../../../../outside", dir.join("inside/up")).unwrap();
    symlink("loop", dir.join("loop")).unwrap();
    symlink("/proc/self/root", dir.join("magic")).unwrap();
    symlink("nowhere", dir.join("dangling")).unwrap();
    for bad in [
        "absolute",
        "absolute/secret",
        "absolute/new",
        "inside/up",
        "inside/up/secret",
        "loop",
        "magic",
        "magic/etc",
        "dangling",
        "dangling/x",
    ] {
        for read_only in [false, true] {
            let ask = PrepareSubPathRequest { read_only, ..request(bad) };
            let (code, message) = prepare(&mut volumes, ask).await.unwrap_err();
            let expected =
                if read_only && bad.starts_with("dangling") { Code::NotFound } else { Code::InvalidArgument };
            assert_eq!(code, expected, "{bad}: {message}");
        }
    }
    for bad in ["", "/etc", "..", "../v", "inside/../..", "a\0b"] {
        assert_eq!(prepare(&mut volumes, request(bad)).await.unwrap_err().0, Code::InvalidArgument, "{bad:?}");
    }
    for ask in [
        PrepareSubPathRequest { root: None, ..request("x") },
        PrepareSubPathRequest { root: Some(Root::Plugin("kubernetes.io/flexvolume".into())), ..request("x") },
        PrepareSubPathRequest { root: Some(Root::Plugin("../../etc".into())), ..request("x") },
        PrepareSubPathRequest { root: Some(Root::HostPath("relative".into())), ..request("x") },
        PrepareSubPathRequest { volume: "../v".into(), ..request("x") },
        PrepareSubPathRequest { container: "../c".into(), ..request("x") },
        PrepareSubPathRequest { pod_uid: "../p".into(), ..request("x") },
    ] {
        assert_eq!(prepare(&mut volumes, ask.clone()).await.unwrap_err().0, Code::InvalidArgument, "{ask:?}");
    }
    assert_eq!(
        prepare(&mut volumes, PrepareSubPathRequest { pod_uid: "none".into(), ..request("x") }).await.unwrap_err().0,
        Code::NotFound
    );
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1, "nothing is made outside");
    assert!(!dir.join("nowhere").exists());
    assert!(world.mounts(&world.pod("p")).is_empty());

    // What is neither file nor directory is bound as it is, and nobody waits for it.
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, dir.join("fifo"), fifo, rustix::fs::Mode::from_raw_mode(0o600), 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(dir.join("socket")).unwrap();
    let path = prepare(&mut volumes, request("fifo")).await.unwrap();
    assert!(std::fs::symlink_metadata(&path).unwrap().file_type().is_fifo());
    let path = prepare(&mut volumes, request("socket")).await.unwrap();
    assert!(std::fs::symlink_metadata(&path).unwrap().file_type().is_socket());
    // Deep, and over a mount inside the volume.
    let deep = vec!["d"; 300].join("/");
    let path = prepare(&mut volumes, request(&deep)).await.unwrap();
    std::fs::write(path.join("f"), "").unwrap();
    assert!(dir.join(&deep).join("f").exists());
    std::fs::create_dir(dir.join("mount")).unwrap();
    let point = bulkhead_sys::open::base_dir(&dir.join("mount")).unwrap();
    bulkhead_sys::mount::tmpfs(point.as_fd(), &Default::default()).unwrap();
    drop(point);
    std::fs::write(dir.join("mount/on-it"), "y").unwrap();
    let path = prepare(&mut volumes, request("mount")).await.unwrap();
    assert_eq!(std::fs::read_to_string(path.join("on-it")).unwrap(), "y");
    // In the way of a target: nothing that a pod could have put there, and not followed.
    rustix::mount::unmount(&path, rustix::mount::UnmountFlags::empty()).unwrap();
    std::fs::remove_dir(&path).unwrap();
    symlink(&outside, &path).unwrap();
    prepare(&mut volumes, request("inside")).await.unwrap();
    assert!(path.join("up").is_symlink());
    tear_down(&world, &mut volumes).await;
    assert_eq!(std::fs::read_to_string(outside.join("secret")).unwrap(), "x");
}

/// A pod swaps a directory for a link that leads out, thousands of times: what is bound is always inside.
#[tokio::test(flavor = "current_thread")]
async fn a_pod_that_swaps() {
    let Some(world) = world().await else { return };
    let (mut volumes, dir) = pod(&world).await;
    let outside = world.dir.join("outside");
    std::fs::create_dir_all(outside.join("sub")).unwrap();
    std::fs::write(outside.join("sub/secret"), "x").unwrap();
    std::fs::create_dir_all(dir.join("d/sub")).unwrap();
    symlink(&outside, dir.join("evil")).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let swapper = std::thread::spawn({
        let (stop, dir) = (stop.clone(), dir.clone());
        move || {
            let base = bulkhead_sys::open::base_dir(&dir).unwrap();
            let mut swaps = 0u32;
            while !stop.load(Ordering::Relaxed) {
                let exchange = rustix::fs::RenameFlags::EXCHANGE;
                swaps += u32::from(rustix::fs::renameat_with(&base, "d", &base, "evil", exchange).is_ok());
            }
            swaps
        }
    });
    let inside = std::fs::metadata(&dir).unwrap().dev();
    let secret = std::fs::metadata(outside.join("sub")).unwrap().ino();
    let (mut bound, mut refused) = (0, 0);
    for round in 0..400 {
        // Existing and new paths in turn.
        let path = if round % 2 == 0 { "d/sub".to_owned() } else { format!("d/new-{round}/x") };
        match prepare(&mut volumes, request(&path)).await {
            Ok(path) => {
                let meta = std::fs::metadata(&path).unwrap();
                assert_eq!(meta.dev(), inside);
                assert_ne!(meta.ino(), secret, "{path:?} leads out");
                assert!(!path.join("secret").exists());
                bound += 1;
            }
            Err((code, message)) => {
                assert!(matches!(code, Code::InvalidArgument | Code::Unavailable), "{code:?} {message}");
                refused += 1;
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    let swaps = swapper.join().unwrap();
    let made: Vec<_> = std::fs::read_dir(&outside).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(made, ["sub"], "{bound} bound, {refused} refused, {swaps} swaps");
    assert!(swaps > 0 && bound > 0);
    tear_down(&world, &mut volumes).await;
    assert!(outside.join("sub/secret").exists());
}

/// While a subPath is in use nothing of the pod is removed, and the answer says who holds it.
#[tokio::test(flavor = "current_thread")]
async fn a_bind_in_use() {
    let Some(world) = world().await else { return };
    let (mut volumes, dir) = pod(&world).await;
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o2770)).unwrap();
    let path = prepare(&mut volumes, request("x")).await.unwrap();
    assert_eq!(mode(&dir.join("x")) & 0o777, 0o770);
    std::fs::write(path.join("f"), "").unwrap();
    let held = std::fs::File::open(path.join("f")).unwrap();
    let request = TearDownPodRequest { pod_uid: "p".into(), guard: world.guard(1), volumes_only: false };
    let reply = volumes.tear_down_pod(request).await.unwrap().into_inner();
    assert!(!reply.done && reply.left[0].contains(&format!("({})", std::process::id())), "{:?}", reply.left);
    assert!(dir.join("x/f").exists());
    drop(held);
    tear_down(&world, &mut volumes).await;
}
