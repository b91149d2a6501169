//! Sockets of plugins: which are told, and to which a connection is passed.

use crate::world;

use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_ipc::volnetd::watches_client::WatchesClient;
use bulkhead_ipc::volnetd::{PluginSocket, WatchEvent, WatchKind, WatchRequest, watch_event::Change};
use tonic::Code;
use world::*;

fn registration(name: &str) -> Kind {
    Kind::PluginSocket(PluginSocket { registration: name.into(), ..Default::default() })
}

fn endpoint(path: impl AsRef<Path>) -> Kind {
    let endpoint = path.as_ref().to_str().unwrap().to_owned();
    Kind::PluginSocket(PluginSocket { endpoint, ..Default::default() })
}

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A long path does not fit into an address: through the folder's handle.
fn listen(path: &Path) -> UnixListener {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let folder = std::fs::File::open(path.parent().unwrap()).unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&folder);
    let short = format!("/proc/self/fd/{fd}/s");
    let listener = UnixListener::bind(short).unwrap();
    std::fs::rename(path.with_file_name("s"), path).unwrap();
    listener
}

#[tokio::test(flavor = "current_thread")]
async fn a_connection_is_passed_and_the_plugin_sees_root() {
    let Some(world) = world_by_a_link().await else { return };
    let root = world.dir.join("root");
    // 255 bytes with a newline, as bad as a name can be.
    let name = format!("{}\n.sock", "n".repeat(249));
    let at = root.join("plugins_registry/deep").join(&name);
    let listener = listen(&at);
    assert_eq!(at.file_name().unwrap().as_bytes().len(), 255);
    let doubled = format!("{}//plugins_registry/./deep/{name}", root.display());
    let named = world.dir.join("named-root/plugins_registry/deep").join(&name);
    for kind in [registration(&format!("deep/{name}")), endpoint(&at), endpoint(doubled), endpoint(named)] {
        let fd = world.open(SYNCD, kind.clone()).await.unwrap_or_else(|error| panic!("{kind:?}: {error:?}"));
        let (mut server, _) = listener.accept().unwrap();
        assert_eq!(rustix::net::sockopt::socket_peercred(&server).unwrap().uid.as_raw(), 0);
        server.write_all(b"hello").unwrap();
        let mut client = UnixStream::from(fd);
        client.set_nonblocking(false).unwrap();
        let mut text = [0; 5];
        client.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"hello");
    }
    for uid in [EVICTIOND, STATUSD, OPERATOR] {
        assert_eq!(world.open(uid, endpoint(&at)).await.unwrap_err().0, Code::PermissionDenied);
    }
}

#[tokio::test(flavor = "current_thread")]
async fn what_somebody_else_could_steer_is_refused() {
    let Some(world) = world().await else { return };
    let root = world.dir.join("root");
    let plugin = root.join("plugins/d");
    let _good = listen(&plugin.join("csi.sock"));
    let _outside = listen(&world.dir.join("outside.sock"));
    let _foreign = listen(&plugin.join("foreign.sock"));
    std::os::unix::fs::chown(plugin.join("foreign.sock"), Some(STRANGER), None).unwrap();
    let _open = listen(&root.join("plugins/open/csi.sock"));
    chmod(&root.join("plugins/open"), 0o777);
    let _sticky = listen(&root.join("plugins/sticky/csi.sock"));
    chmod(&root.join("plugins/sticky"), 0o1777);
    let _group = listen(&root.join("plugins/group/csi.sock"));
    std::os::unix::fs::chown(root.join("plugins/group"), None, Some(STRANGER)).unwrap();
    chmod(&root.join("plugins/group"), 0o775);
    let _theirs = listen(&root.join("plugins/theirs/csi.sock"));
    std::os::unix::fs::chown(root.join("plugins/theirs"), Some(STRANGER), None).unwrap();
    let _pods = listen(&root.join("pods/u/volumes/kubernetes.io~empty-dir/v/csi.sock"));
    symlink("csi.sock", plugin.join("link.sock")).unwrap();
    symlink("d", root.join("plugins/link")).unwrap();
    symlink(world.dir.join("outside.sock"), plugin.join("out.sock")).unwrap();
    std::fs::write(plugin.join("file"), "").unwrap();
    drop(listen(&plugin.join("dead.sock")));
    world.open(SYNCD, endpoint(plugin.join("csi.sock"))).await.unwrap();
    for (path, code, word) in [
        ("plugins/d/link.sock", Code::FailedPrecondition, "link"),
        ("plugins/link/csi.sock", Code::FailedPrecondition, "link"),
        ("plugins/d/out.sock", Code::FailedPrecondition, "link"),
        ("plugins/d/foreign.sock", Code::FailedPrecondition, "does not belong to root"),
        ("plugins/theirs/csi.sock", Code::FailedPrecondition, "does not belong to root"),
        ("plugins/open/csi.sock", Code::FailedPrecondition, "written by others"),
        ("plugins/sticky/csi.sock", Code::FailedPrecondition, "written by others"),
        ("plugins/group/csi.sock", Code::FailedPrecondition, "written by others"),
        ("plugins/d/file", Code::FailedPrecondition, "not a socket"),
        ("plugins/d", Code::FailedPrecondition, "not a socket"),
        ("plugins/d/none.sock", Code::NotFound, "none.sock"),
        ("plugins/d/file/csi.sock", Code::NotFound, "file"),
        ("plugins/d/dead.sock", Code::NotFound, "refused"),
        ("plugins/d/../d/csi.sock", Code::InvalidArgument, "below the root directory"),
        ("pods/u/volumes/kubernetes.io~empty-dir/v/csi.sock", Code::InvalidArgument, "not below its pods"),
        ("", Code::InvalidArgument, "below the root directory"),
    ] {
        let (got, message) = world.open(SYNCD, endpoint(root.join(path))).await.unwrap_err();
        assert_eq!(got, code, "{path}: {message}");
        assert!(message.contains(word), "{path}: {message}");
    }
    for (kind, what) in [
        (endpoint(world.dir.join("outside.sock")), "outside"),
        (endpoint("/proc/1/root/run/x.sock"), "elsewhere"),
        (endpoint("plugins/d/csi.sock"), "relative"),
        (registration("../plugins/d/csi.sock"), "up"),
        (registration("/x"), "absolute"),
        (registration(""), "neither"),
        (Kind::PluginSocket(PluginSocket { registration: "a".into(), endpoint: "/b".into() }), "both"),
    ] {
        let (got, message) = world.open(SYNCD, kind).await.unwrap_err();
        assert_eq!(got, Code::InvalidArgument, "{what}: {message}");
    }
    assert!(UnixStream::connect(plugin.join("csi.sock")).is_ok(), "it was there all the time");
}

#[tokio::test(flavor = "current_thread")]
async fn nobody_waits_for_a_full_backlog() {
    let Some(world) = world().await else { return };
    let path = world.dir.join("root/plugins/full.sock");
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::STREAM,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let mut connections = Vec::new();
    let refused = loop {
        match world.open(SYNCD, endpoint(&path)).await {
            Ok(fd) => connections.push(fd),
            Err(refused) => break refused,
        }
        assert!(connections.len() < 10, "the backlog is never full");
    };
    assert_eq!(refused.0, Code::Unavailable, "{}", refused.1);
}

/// Mounts of the machine's own file systems are passed through, others are not even looked into.
#[tokio::test(flavor = "current_thread")]
async fn another_file_system_on_the_way() {
    let Some(world) = world().await else { return };
    let root = world.dir.join("root/plugins");
    for (name, fs_type, may) in [("memory", "tmpfs", true), ("ram", "ramfs", false)] {
        let at = root.join(name);
        std::fs::create_dir(&at).unwrap();
        rustix::mount::mount("none", &at, fs_type, rustix::mount::MountFlags::empty(), None).unwrap();
        chmod(&at, 0o755);
        let _listener = listen(&at.join("csi.sock"));
        let opened = world.open(SYNCD, endpoint(at.join("csi.sock"))).await;
        let _ = rustix::mount::unmount(&at, rustix::mount::UnmountFlags::DETACH);
        assert_eq!(opened.is_ok(), may, "{fs_type}: {opened:?}");
        if let Err((code, message)) = opened {
            assert_eq!(code, Code::FailedPrecondition);
            assert!(message.contains("may not answer"), "{message}");
        }
    }
}

#[tokio::test(flavor = "current_thread")]
async fn sockets_are_told_to_syncd_alone() {
    let Some(world) = world().await else { return };
    let request = || WatchRequest { kind: WatchKind::Plugins.into() };
    let refused = WatchesClient::new(world.channel(STATUSD).await).watch(request()).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let folder = world.dir.join("root/plugins_registry");
    let first = listen(&folder.join("a.sock"));
    let mut client = WatchesClient::new(world.channel(SYNCD).await);
    // The first look may have been before the socket.
    let (mut stream, before) = loop {
        let mut stream = client.watch(request()).await.unwrap().into_inner();
        let mut told = Vec::new();
        loop {
            let event = stream.message().await.unwrap().unwrap();
            let change = event.change();
            told.push(event);
            if change == Change::Listed {
                break;
            }
        }
        assert_eq!(told.first().map(WatchEvent::change), Some(Change::Rescan));
        // Nor need it have its name yet: it is bound under another.
        if let [_, added, _] = &told[..]
            && added.name == "a.sock"
        {
            break (stream, added.clone());
        }
    };
    assert_eq!(before.change(), Change::Added);
    drop(first);
    std::fs::remove_file(folder.join("a.sock")).unwrap();
    let _again = listen(&folder.join("a.sock"));
    let mut told = Vec::new();
    while told.last() != Some(&(Change::Added, "a.sock".to_owned())) {
        let event = stream.message().await.unwrap().unwrap();
        told.push((event.change(), event.name));
    }
    assert!(told.contains(&(Change::Removed, "a.sock".to_owned())), "{told:?}");
}
