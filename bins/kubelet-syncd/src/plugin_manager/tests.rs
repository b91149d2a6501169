//! Plugins on real sockets: good ones, and those that hang, lie, and come back.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bulkhead_csi::registration::v1::registration_server::{Registration, RegistrationServer};
use bulkhead_csi::registration::{v1 as reg, v1beta1 as old};
use bulkhead_csi::v1;
use bulkhead_csi::v1::node_server::{Node, NodeServer};
use bulkhead_ipc::syncd::AcknowledgeRequest;
use bulkhead_ipc::syncd::storage_write::Write;
use kubelet_edges::csi::connection::DialFuture;
use kubelet_edges::csi::{CsiClient, Dial, Drivers, PluginAddress};
use parking_lot::Mutex;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use super::attendant::{CSI, Handler};
use super::csi::CsiHandler;
use super::wanted::SocketEvent;
use super::*;
use crate::storage_writes::StorageWrites;

#[derive(Debug)]
struct Direct {
    folder: PathBuf,
    /// So many connections are refused first.
    refusals: Arc<AtomicUsize>,
}

impl Dial for Direct {
    fn dial(&self, address: &PluginAddress) -> DialFuture {
        let one_less = |left: usize| left.checked_sub(1);
        if self.refusals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok() {
            return Box::pin(async { Err(std::io::ErrorKind::ConnectionRefused.into()) });
        }
        let path = match address {
            PluginAddress::Registration(name) => self.folder.join(name),
            PluginAddress::Endpoint(path) => path.into(),
        };
        Box::pin(UnixStream::connect(path))
    }
}

struct Feed(mpsc::Receiver<SocketEvent>);

impl SocketFeed for Feed {
    async fn next(&mut self) -> SocketEvent {
        match self.0.recv().await {
            Some(event) => event,
            None => std::future::pending().await,
        }
    }
}

/// A plugin: what it says, and what it was told.
#[derive(Clone)]
struct Plugin {
    info: reg::PluginInfo,
    node: v1::NodeGetInfoResponse,
    hangs: bool,
    /// So many times it cannot be told anything.
    deaf: Arc<AtomicUsize>,
    told: Arc<Mutex<Vec<(bool, String)>>>,
}

#[tonic::async_trait]
impl Registration for Plugin {
    async fn get_info(&self, _: Request<reg::InfoRequest>) -> Result<Response<reg::PluginInfo>, Status> {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(self.info.clone()))
    }

    async fn notify_registration_status(
        &self,
        request: Request<reg::RegistrationStatus>,
    ) -> Result<Response<reg::RegistrationStatusResponse>, Status> {
        if self.deaf.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |times| times.checked_sub(1)).is_ok() {
            return Err(Status::internal("deaf"));
        }
        let status = request.into_inner();
        self.told.lock().push((status.plugin_registered, status.error));
        Ok(Response::new(reg::RegistrationStatusResponse {}))
    }
}

/// The same in the older version alone.
struct Old(Plugin);

#[tonic::async_trait]
impl old::registration_server::Registration for Old {
    async fn get_info(&self, _: Request<old::InfoRequest>) -> Result<Response<old::PluginInfo>, Status> {
        let reg::PluginInfo { r#type, name, endpoint, supported_versions } = self.0.info.clone();
        Ok(Response::new(old::PluginInfo { r#type, name, endpoint, supported_versions }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<old::RegistrationStatus>,
    ) -> Result<Response<old::RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        self.0.told.lock().push((status.plugin_registered, status.error));
        Ok(Response::new(old::RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl Node for Plugin {
    async fn node_get_info(
        &self,
        _: Request<v1::NodeGetInfoRequest>,
    ) -> Result<Response<v1::NodeGetInfoResponse>, Status> {
        Ok(Response::new(self.node.clone()))
    }
}

impl Plugin {
    fn new(name: &str) -> Self {
        let info = reg::PluginInfo {
            r#type: "CSIPlugin".into(),
            name: name.into(),
            endpoint: String::new(),
            supported_versions: vec!["1.0.0".into()],
        };
        let node = v1::NodeGetInfoResponse { node_id: "node-1".into(), ..Default::default() };
        Plugin { info, node, hangs: false, deaf: Arc::default(), told: Arc::default() }
    }

    fn told(&self) -> Vec<(bool, String)> {
        self.told.lock().clone()
    }
}

struct Lab {
    folder: tempfile::TempDir,
    feed: mpsc::Sender<SocketEvent>,
    drivers: Drivers,
    writes: StorageWrites,
    table: PluginTable,
    refusals: Arc<AtomicUsize>,
}

impl Lab {
    fn start(standalone: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (feed, events) = mpsc::channel(16);
        let (drivers, writes) = (Drivers::default(), StorageWrites::default());
        let refusals: Arc<AtomicUsize> = Arc::default();
        let dial: Arc<dyn Dial> = Arc::new(Direct { folder: folder.path().to_owned(), refusals: refusals.clone() });
        let table = PluginTable::new(writes.clone());
        let client = CsiClient::new(drivers.clone(), dial.clone());
        let csi: Box<dyn Handler> = Box::new(CsiHandler::new(drivers.clone(), client, writes.clone(), standalone));
        let attendant = Arc::new(Attendant::new(dial, table.clone(), [(CSI, csi)].into(), folder.path().to_owned()));
        tokio::spawn(run(Feed(events), attendant, table.clone()));
        Lab { folder, feed, drivers, writes, table, refusals }
    }

    async fn add(&self, socket: &str, plugin: &Plugin) {
        let mut plugin = plugin.clone();
        let path = self.folder.path().join(socket);
        if plugin.info.endpoint.is_empty() {
            plugin.info.endpoint = path.display().to_string();
        }
        let incoming = UnixListenerStream::new(UnixListener::bind(&path).unwrap());
        let server = tonic::transport::Server::builder();
        let (registration, node) = (RegistrationServer::new(plugin.clone()), NodeServer::new(plugin));
        tokio::spawn({ server }.add_service(registration).add_service(node).serve_with_incoming(incoming));
        self.tell(SocketEvent::Added { socket: socket.into(), identity: "1".into() }).await;
    }

    async fn tell(&self, event: SocketEvent) {
        self.feed.send(event).await.unwrap();
    }

    /// The writer of the API server, that refuses some.
    fn write(&self, refused: &'static [&'static str]) {
        let writes = self.writes.clone();
        tokio::spawn(async move {
            let mut changed = writes.watch();
            let mut position = 0;
            loop {
                while let Some(write) = writes.after(position) {
                    position = write.sequence;
                    let refused_drivers =
                        refused.iter().map(|name| ((*name).to_owned(), "collision".to_owned())).collect();
                    writes.acknowledge(&AcknowledgeRequest {
                        sequence: position,
                        refused_drivers,
                        ..Default::default()
                    });
                }
                changed.changed().await.unwrap();
            }
        });
    }

    fn wished(&self) -> Vec<String> {
        match self.writes.after(0).and_then(|write| write.write) {
            Some(Write::CsiDrivers(all)) => all.drivers.into_iter().map(|driver| driver.name).collect(),
            _ => Vec::new(),
        }
    }

    fn state(&self, socket: &str) -> String {
        self.table
            .list()
            .iter()
            .find(|plugin| plugin.socket == socket)
            .map(|plugin| plugin.state.clone())
            .unwrap_or_default()
    }
}

async fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if is() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what} does not come");
}

#[tokio::test]
async fn told_only_when_the_api_server_has_it() {
    let lab = Lab::start(false);
    let (plugin, hanging) = (Plugin::new("d"), Plugin { hangs: true, ..Plugin::new("hangs") });
    lab.add("a-hangs.sock", &hanging).await;
    lab.add("d.sock", &plugin).await;
    eventually("the wish", || lab.wished() == ["d"]).await;
    assert_eq!((lab.state("d.sock"), plugin.told()), ("registering".to_owned(), vec![]));
    assert!(lab.drivers.get("d").is_some(), "its volumes can be taken back already");
    lab.write(&[]);
    eventually("the word", || plugin.told() == [(true, String::new())]).await;
    eventually("the state", || lab.state("d.sock") == "registered").await;
    eventually("its failure", || lab.state("a-hangs.sock") == "failed").await;
    assert_eq!(hanging.told(), []);
    lab.tell(SocketEvent::Removed { socket: "d.sock".into() }).await;
    eventually("its going", || lab.wished().is_empty() && lab.drivers.get("d").is_none()).await;
    assert_eq!(lab.state("d.sock"), "");
}

/// A socket's file is there before anybody listens.
#[tokio::test]
async fn one_that_does_not_listen_yet_has_not_failed() {
    let lab = Lab::start(false);
    lab.write(&[]);
    let plugin = Plugin::new("d");
    lab.refusals.store(3, Ordering::Relaxed);
    lab.add("d.sock", &plugin).await;
    eventually("the state", || {
        assert_ne!(lab.state("d.sock"), "failed");
        lab.state("d.sock") == "registered"
    })
    .await;
    assert_eq!((lab.refusals.load(Ordering::Relaxed), plugin.told()), (0, vec![(true, String::new())]));
    lab.refusals.store(usize::MAX, Ordering::Relaxed);
    lab.add("dead.sock", &Plugin::new("dead")).await;
    eventually("the failure of one that never does", || lab.state("dead.sock") == "failed").await;
}

/// As upstream since 1.36: registered is who knows it.
#[tokio::test]
async fn who_cannot_be_told_is_registered_again() {
    let lab = Lab::start(false);
    lab.write(&[]);
    let plugin = Plugin { deaf: Arc::new(AtomicUsize::new(1)), ..Plugin::new("d") };
    lab.add("d.sock", &plugin).await;
    eventually("its failure", || lab.state("d.sock") == "failed").await;
    assert!(lab.drivers.get("d").is_none() && lab.wished().is_empty());
    eventually("the word", || plugin.told() == [(true, String::new())]).await;
    eventually("the state", || lab.state("d.sock") == "registered").await;
    assert_eq!(lab.wished(), ["d"]);
}

/// A driver's own socket among those of plugins: what others have registered is known nevertheless.
#[tokio::test]
async fn what_is_no_plugin_is_waited_for_by_nobody() {
    let lab = Lab::start(false);
    let path = lab.folder.path().join("csi.sock");
    let incoming = UnixListenerStream::new(UnixListener::bind(&path).unwrap());
    let server = tonic::transport::Server::builder().add_service(NodeServer::new(Plugin::new("d")));
    tokio::spawn(server.serve_with_incoming(incoming));
    lab.tell(SocketEvent::Added { socket: "csi.sock".into(), identity: "1".into() }).await;
    lab.tell(SocketEvent::Listed).await;
    eventually("its failure", || lab.state("csi.sock") == "failed").await;
    eventually("all is known", || lab.writes.after(0).is_some()).await;
}

#[tokio::test]
async fn refusals_in_upstreams_words() {
    let lab = Lab::start(false);
    lab.write(&["collides"]);
    let device =
        Plugin { info: reg::PluginInfo { r#type: "DevicePlugin".into(), ..Plugin::new("x").info }, ..Plugin::new("x") };
    let future = Plugin {
        info: reg::PluginInfo { supported_versions: vec!["2.0.0".into()], ..Plugin::new("f").info },
        ..Plugin::new("f")
    };
    let nameless = Plugin { node: v1::NodeGetInfoResponse::default(), ..Plugin::new("nameless") };
    let path = lab.folder.path().display().to_string();
    for (socket, plugin, why) in [
        ("dev.sock", device, format!("RegisterPlugin error -- no handler registered for plugin type: DevicePlugin at socket {path}/dev.sock")),
        ("f.sock", future, "RegisterPlugin error -- plugin validation failed with err: validation failed for CSI Driver f at endpoint".into()),
        ("c.sock", Plugin::new("collides"), "RegisterPlugin error -- plugin registration failed with err: collision".into()),
        ("n.sock", nameless, "RegisterPlugin error -- plugin registration failed with err: error adding CSI driver node info: driverNodeID must not be empty".into()),
    ] {
        lab.add(socket, &plugin).await;
        eventually("a refusal", || plugin.told().first().is_some_and(|(ok, told)| !ok && told.starts_with(&why))).await;
        eventually("the state", || lab.state(socket) == "failed").await;
        assert!(lab.drivers.get(&plugin.info.name).is_none() || lab.state(socket) != "failed");
    }
    assert!(lab.wished().is_empty());
}

#[tokio::test]
async fn another_socket_of_the_same_name_is_another_plugin() {
    let lab = Lab::start(false);
    lab.write(&[]);
    let (first, second, third) = (Plugin::new("d"), Plugin::new("d"), Plugin::new("d"));
    lab.add("d.sock", &first).await;
    eventually("the first", || first.told().len() == 1).await;
    // A second one with the same version is refused as long as the first is there.
    lab.add("other.sock", &second).await;
    eventually("a refusal", || second.told().first().is_some_and(|(ok, _)| !ok)).await;
    std::fs::remove_file(lab.folder.path().join("d.sock")).unwrap();
    lab.tell(SocketEvent::Removed { socket: "d.sock".into() }).await;
    lab.add("d.sock", &third).await;
    eventually("one of them", || third.told().iter().chain(&second.told()).any(|(ok, _)| *ok)).await;
    assert_eq!(lab.wished(), ["d"]);
    assert!(lab.drivers.get("d").is_some());
}

#[tokio::test]
async fn the_older_version_of_the_service() {
    let lab = Lab::start(false);
    lab.write(&[]);
    let plugin = Plugin::new("old");
    let mut served = plugin.clone();
    let path = lab.folder.path().join("old.sock");
    served.info.endpoint = path.display().to_string();
    let incoming = UnixListenerStream::new(UnixListener::bind(&path).unwrap());
    let registration = old::registration_server::RegistrationServer::new(Old(served.clone()));
    let server = tonic::transport::Server::builder().add_service(registration).add_service(NodeServer::new(served));
    tokio::spawn(server.serve_with_incoming(incoming));
    lab.tell(SocketEvent::Added { socket: "old.sock".into(), identity: "1".into() }).await;
    eventually("the word", || plugin.told() == [(true, String::new())]).await;
}

#[tokio::test]
async fn without_an_api_server_no_driver_is_registered() {
    let lab = Lab::start(true);
    let plugin = Plugin::new("d");
    lab.add("d.sock", &plugin).await;
    eventually("a refusal", || !plugin.told().is_empty()).await;
    let (registered, why) = plugin.told().remove(0);
    assert!(!registered && why.ends_with("caused by: error getting kube client"), "{why}");
    assert!(lab.drivers.get("d").is_none() && lab.wished().is_empty());
}
