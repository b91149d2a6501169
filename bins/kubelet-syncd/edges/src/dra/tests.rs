//! Plugins that answer as they are told to, over real sockets.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bulkhead_dra::v1;
use bulkhead_dra::v1::dra_plugin_server::{DraPlugin, DraPluginServer};
use bulkhead_dra::v1beta1;
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};

use super::plugin::Calls;
use super::{DriverError, Plugins, Service};
use crate::csi::CallObserver;
use crate::fixtures::{Direct, Serving};

#[derive(Debug, Default)]
struct Told(Mutex<Vec<(&'static str, Code)>>);

impl CallObserver for Told {
    fn call_ended(&self, _: &str, method: &'static str, code: Code, _: Duration) {
        self.0.lock().push((method, code));
    }
}

/// The claim's name says how it is answered.
struct Obeying;

#[tonic::async_trait]
impl DraPlugin for Obeying {
    async fn node_prepare_resources(
        &self,
        request: Request<v1::NodePrepareResourcesRequest>,
    ) -> Result<Response<v1::NodePrepareResourcesResponse>, Status> {
        let mut answer = v1::NodePrepareResourcesResponse::default();
        for claim in request.into_inner().claims {
            if claim.name == "never" {
                std::future::pending::<()>().await;
            }
            let share_id = Some("s".to_owned());
            let device = v1::Device { device_name: claim.name, share_id, ..Default::default() };
            let devices = vec![device];
            answer.claims.insert(claim.uid, v1::NodePrepareResourceResponse { devices, error: String::new() });
        }
        Ok(Response::new(answer))
    }
}

#[tonic::async_trait]
impl v1beta1::dra_plugin_server::DraPlugin for Obeying {
    async fn node_prepare_resources(
        &self,
        request: Request<v1beta1::NodePrepareResourcesRequest>,
    ) -> Result<Response<v1beta1::NodePrepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims.into_iter();
        let device =
            |name| v1beta1::Device { device_name: name, cdi_device_ids: vec!["v/c=1".into()], ..Default::default() };
        let answer = |name| v1beta1::NodePrepareResourceResponse { devices: vec![device(name)], error: "e".into() };
        let claims = claims.map(|claim| (claim.uid, answer(claim.name))).collect();
        Ok(Response::new(v1beta1::NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<v1beta1::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<v1beta1::NodeUnprepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims.into_iter();
        let answer = v1beta1::NodeUnprepareResourceResponse { error: "still there".into() };
        let claims = claims.map(|claim| (claim.uid, answer.clone())).collect();
        Ok(Response::new(v1beta1::NodeUnprepareResourcesResponse { claims }))
    }
}

fn serve(path: &Path, connections: &Arc<AtomicUsize>) -> Serving {
    let counted = connections.clone();
    let services = Server::builder()
        .add_service(DraPluginServer::new(Obeying))
        .add_service(v1beta1::dra_plugin_server::DraPluginServer::new(Obeying));
    Serving::at(path, move |listener| async move {
        let incoming = UnixListenerStream::new(listener).inspect(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        let _ = services.serve_with_incoming(incoming).await;
    })
}

fn claim(name: &str) -> Vec<v1::Claim> {
    vec![v1::Claim { namespace: "ns".into(), uid: "u".into(), name: name.into() }]
}

async fn wait(plugins: &Plugins, driver: &str, usable: bool) {
    let mut changes = plugins.changes();
    while plugins.usable().get(driver).copied().unwrap_or_default() != usable {
        changes.changed().await.unwrap();
    }
}

#[tokio::test]
async fn one_connection_for_all_calls_and_a_new_one_after_it_broke() {
    let folder = tempfile::tempdir().unwrap();
    let (path, old) = (folder.path().join("dra.sock"), folder.path().join("old.sock"));
    let (told, connections) = (Arc::new(Told::default()), Arc::new(AtomicUsize::new(0)));
    let calls = Calls { dial: Arc::new(Direct), timeout: Duration::from_millis(300), observer: Some(told.clone()) };
    let plugins = Plugins::new(calls);
    assert_eq!(plugins.get("d").unwrap_err().to_string(), "DRA driver d is not registered");
    assert_eq!(plugins.get("").unwrap_err(), DriverError::NoName);
    let endpoint = path.display().to_string();
    let plugin = plugins.add("d", &endpoint, Service::V1).unwrap();
    assert!(plugins.add("d", &endpoint, Service::V1).is_err());
    let away = plugin.prepare(claim("c")).await.unwrap_err();
    assert!(away.code() == Code::Unavailable && away.message().contains("Error while dialing"), "{away}");
    let server = serve(&path, &connections);
    // Whoever asks does not wait for the next try.
    for _ in 0..3 {
        let answer = plugin.prepare(claim("c")).await.unwrap();
        assert_eq!(answer.claims["u"].devices[0].share_id.as_deref(), Some("s"));
    }
    assert_eq!(plugin.unprepare(claim("c")).await.unwrap_err().code(), Code::Unimplemented);
    assert_eq!(plugin.prepare(claim("never")).await.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(plugin.watch_health().await.unwrap_err().code(), Code::Unimplemented);
    assert_eq!((connections.load(Ordering::Relaxed), plugins.usable()["d"]), (1, true));
    drop(server);
    wait(&plugins, "d", false).await;
    let server = serve(&path, &connections);
    wait(&plugins, "d", true).await;
    // It is taken in before it is answered.
    plugin.prepare(claim("c")).await.unwrap();
    assert_eq!(connections.load(Ordering::Relaxed), 2);
    // A second plugin of the driver, which nobody answers for, is not preferred to one that is there.
    let beside = plugins.add("d", &old.display().to_string(), Service::V1Beta1).unwrap();
    assert_eq!(plugins.get("d").unwrap().endpoint(), endpoint);
    let older = serve(&old, &connections);
    let answer = beside.prepare(claim("c")).await.unwrap();
    let device = &answer.claims["u"].devices[0];
    assert_eq!(
        (device.cdi_device_ids[0].as_str(), &device.share_id, answer.claims["u"].error.as_str()),
        ("v/c=1", &None, "e")
    );
    assert_eq!(beside.unprepare(claim("c")).await.unwrap().claims["u"].error, "still there");
    assert_eq!(plugins.get("d").unwrap().endpoint(), old.display().to_string(), "the newer one takes over");
    plugins.remove("d", &endpoint);
    plugins.remove("d", &old.display().to_string());
    assert!(plugins.usable().is_empty() && plugin.gone().is_cancelled());
    let v1 = |method: &str| format!("/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/{method}");
    let told: Vec<_> = told.0.lock().drain(..).map(|(method, code)| (method.to_owned(), code)).collect();
    assert_eq!(told[0], (v1("NodePrepareResources"), Code::Unavailable));
    assert_eq!(told[4], (v1("NodeUnprepareResources"), Code::Unimplemented));
    assert_eq!(told[5], (v1("NodePrepareResources"), Code::DeadlineExceeded));
    drop((server, older));
}

#[test]
fn which_version_is_spoken() {
    let chosen = |offered: &[&str]| Service::chosen(&offered.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>());
    assert_eq!(chosen(&["v1.DRAPlugin", "v1beta1.DRAPlugin"]), Ok(Service::V1));
    assert_eq!(chosen(&["v1beta1.DRAPlugin", "v1.DRAPlugin"]), Ok(Service::V1Beta1), "as upstream: the first");
    assert_eq!(chosen(&["v1alpha1.DRAResourceHealth", "v1beta1.DRAPlugin"]), Ok(Service::V1Beta1));
    assert_eq!(chosen(&[]), Err("empty list of supported gRPC services (aka supported versions)".into()));
    assert_eq!(
        chosen(&["v1alpha3", "x"]),
        Err("none of services supported by the plugin ([\"v1alpha3\" \"x\"]) are supported by the kubelet ([\"v1.DRAPlugin\" \"v1beta1.DRAPlugin\"])".into())
    );
}
