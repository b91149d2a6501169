//! A DRA driver for tests: prepares whatever claim it is asked for by writing a CDI file for it, writes down every call, tells the health
//! of its devices, and misbehaves as it is told to while it runs.
//!
//! It serves `DRAPlugin` on `<root>/plugins/<name>/dra.sock` and registers itself in `<root>/plugins_registry`.
//! In its state folder lie `calls.jsonl` (a line for each call, when it comes), `faults.json` (see [`faults`]; read anew at each call)
//! and `health.json` (an object: device names, each with `Healthy` or another word that is its message; looked at ten times a second).
//!
//! A claim named `NAME` has two devices in the pool `node`, `NAME-a` for the request `a` and `NAME-b` for the request `b`, as CDI
//! devices `DRIVER/claim=NAME-a` and so on; a container that has one has the variable `DRA_DRIVER_NAME_A` (letters of the names that
//! variables cannot have are `_`).

mod faults;

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bulkhead_csi::registration::v1 as registration;
use bulkhead_dra::health::v1alpha1 as health;
use bulkhead_dra::{v1, v1beta1};
use clap::{Arg, ArgMatches, Command};
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use kubelet_pod_resources::connections::clients;
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tonic::{Request, Response, Status};

/// Between two looks at the health.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The driver as its services see it.
#[derive(Debug, Clone)]
struct Served(Arc<Driver>);

#[derive(Debug)]
struct Driver {
    name: String,
    endpoint: String,
    versions: Vec<String>,
    state: PathBuf,
    cdi: PathBuf,
    calls: File,
}

impl Driver {
    fn record(&self, call: &str, request: &Value) {
        let line = json!({"pid": std::process::id(), "call": call, "request": request});
        // One write, so that lines of two processes do not mix.
        let _ = (&self.calls).write_all(format!("{line}\n").as_bytes());
    }

    fn cdi_file(&self, claim: &str) -> PathBuf {
        self.cdi.join(format!("{}-{claim}.json", self.name))
    }

    /// Its devices, once the runtime can know of them.
    fn prepare(&self, claim: &str) -> Result<Vec<v1::Device>> {
        let part = |request: &str| {
            let variable = format!("DRA_{}_{claim}_{request}", self.name)
                .to_uppercase()
                .replace(|c: char| !c.is_alphanumeric(), "_");
            let env = [format!("{variable}=yes")];
            json!({"name": format!("{claim}-{request}"), "containerEdits": {"env": env}})
        };
        let kind = format!("{}/claim", self.name);
        let spec = json!({"cdiVersion": "0.6.0", "kind": kind, "devices": [part("a"), part("b")]});
        std::fs::create_dir_all(&self.cdi).context("the folder of CDI files")?;
        std::fs::write(self.cdi_file(claim), spec.to_string()).context("a CDI file")?;
        let device = |request: &str| v1::Device {
            request_names: vec![request.to_owned()],
            pool_name: "node".to_owned(),
            device_name: format!("{claim}-{request}"),
            cdi_device_ids: vec![format!("{kind}={claim}-{request}")],
            share_id: Some(format!("share-of-{claim}")),
        };
        Ok(vec![device("a"), device("b")])
    }

    /// All devices whose health it knows.
    fn health(&self) -> Vec<health::DeviceHealth> {
        let told: Value = std::fs::read(self.state.join("health.json"))
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default();
        let device = |(name, word): (&String, &Value)| {
            let healthy = word == "Healthy";
            let health = if healthy { health::HealthStatus::Healthy } else { health::HealthStatus::Unhealthy };
            health::DeviceHealth {
                device: Some(health::DeviceIdentifier { pool_name: "node".to_owned(), device_name: name.clone() }),
                health: health.into(),
                health_check_timeout_seconds: 3600,
                message: word.as_str().filter(|_| !healthy).unwrap_or_default().to_owned(),
                ..Default::default()
            }
        };
        told.as_object().into_iter().flatten().map(device).collect()
    }
}

fn names(claims: &[v1::Claim]) -> Value {
    claims.iter().map(|claim| json!({"namespace": claim.namespace, "name": claim.name, "uid": claim.uid})).collect()
}

#[tonic::async_trait]
impl v1::dra_plugin_server::DraPlugin for Served {
    async fn node_prepare_resources(
        &self,
        request: Request<v1::NodePrepareResourcesRequest>,
    ) -> Result<Response<v1::NodePrepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims;
        self.0.record("NodePrepareResources", &names(&claims));
        faults::meet(&self.0.state, "NodePrepareResources").await?;
        let mut answer = v1::NodePrepareResourcesResponse::default();
        for claim in claims {
            let result = match faults::of_claim(&self.0.state, "NodePrepareResources", &claim.name) {
                Some(error) => v1::NodePrepareResourceResponse { error, ..Default::default() },
                None => {
                    let devices =
                        self.0.prepare(&claim.name).map_err(|error| Status::internal(format!("{error:#}")))?;
                    v1::NodePrepareResourceResponse { devices, ..Default::default() }
                }
            };
            answer.claims.insert(claim.uid, result);
        }
        Ok(Response::new(answer))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<v1::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<v1::NodeUnprepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims;
        self.0.record("NodeUnprepareResources", &names(&claims));
        faults::meet(&self.0.state, "NodeUnprepareResources").await?;
        let mut answer = v1::NodeUnprepareResourcesResponse::default();
        for claim in claims {
            let error = faults::of_claim(&self.0.state, "NodeUnprepareResources", &claim.name).unwrap_or_default();
            if error.is_empty() {
                let _ = std::fs::remove_file(self.0.cdi_file(&claim.name));
            }
            answer.claims.insert(claim.uid, v1::NodeUnprepareResourceResponse { error });
        }
        Ok(Response::new(answer))
    }
}

/// The same by the older name.
#[tonic::async_trait]
impl v1beta1::dra_plugin_server::DraPlugin for Served {
    async fn node_prepare_resources(
        &self,
        request: Request<v1beta1::NodePrepareResourcesRequest>,
    ) -> Result<Response<v1beta1::NodePrepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims.into_iter().map(newer).collect();
        let request = Request::new(v1::NodePrepareResourcesRequest { claims });
        let answer = v1::dra_plugin_server::DraPlugin::node_prepare_resources(self, request).await?.into_inner();
        let device = |device: v1::Device| v1beta1::Device {
            request_names: device.request_names,
            pool_name: device.pool_name,
            device_name: device.device_name,
            cdi_device_ids: device.cdi_device_ids,
        };
        let one = |one: v1::NodePrepareResourceResponse| v1beta1::NodePrepareResourceResponse {
            devices: one.devices.into_iter().map(device).collect(),
            error: one.error,
        };
        let claims = answer.claims.into_iter().map(|(uid, answer)| (uid, one(answer))).collect();
        Ok(Response::new(v1beta1::NodePrepareResourcesResponse { claims }))
    }

    async fn node_unprepare_resources(
        &self,
        request: Request<v1beta1::NodeUnprepareResourcesRequest>,
    ) -> Result<Response<v1beta1::NodeUnprepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims.into_iter().map(newer).collect();
        let request = Request::new(v1::NodeUnprepareResourcesRequest { claims });
        let answer = v1::dra_plugin_server::DraPlugin::node_unprepare_resources(self, request).await?.into_inner();
        let one = |one: v1::NodeUnprepareResourceResponse| v1beta1::NodeUnprepareResourceResponse { error: one.error };
        let claims = answer.claims.into_iter().map(|(uid, answer)| (uid, one(answer))).collect();
        Ok(Response::new(v1beta1::NodeUnprepareResourcesResponse { claims }))
    }
}

fn newer(claim: v1beta1::Claim) -> v1::Claim {
    v1::Claim { namespace: claim.namespace, uid: claim.uid, name: claim.name }
}

#[tonic::async_trait]
impl health::dra_resource_health_server::DraResourceHealth for Served {
    async fn node_watch_resources(
        &self,
        _: Request<health::NodeWatchResourcesRequest>,
    ) -> Result<Response<BoxStream<'static, Result<health::NodeWatchResourcesResponse, Status>>>, Status> {
        let start = (self.clone(), None);
        let told = stream::unfold(start, |(served, last)| async move {
            loop {
                let devices = served.0.health();
                if last.as_ref() != Some(&devices) {
                    let answer = health::NodeWatchResourcesResponse { devices: devices.clone() };
                    return Some((Ok(answer), (served, Some(devices))));
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        });
        Ok(Response::new(told.boxed()))
    }
}

#[tonic::async_trait]
impl registration::registration_server::Registration for Served {
    async fn get_info(
        &self,
        _: Request<registration::InfoRequest>,
    ) -> Result<Response<registration::PluginInfo>, Status> {
        Ok(Response::new(registration::PluginInfo {
            r#type: "DRAPlugin".to_owned(),
            name: self.0.name.clone(),
            endpoint: self.0.endpoint.clone(),
            supported_versions: self.0.versions.clone(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<registration::RegistrationStatus>,
    ) -> Result<Response<registration::RegistrationStatusResponse>, Status> {
        let told = request.into_inner();
        let told = json!({"plugin_registered": told.plugin_registered, "error": told.error});
        self.0.record("NotifyRegistrationStatus", &told);
        Ok(Response::new(registration::RegistrationStatusResponse {}))
    }
}

fn main() -> ExitCode {
    bulkhead_tests::program::run("dra_driver", run(&command().get_matches()))
}

fn command() -> Command {
    let flag = |name: &'static str| Arg::new(name).long(name).required(true);
    Command::new("dra_driver")
        .arg(flag("name"))
        .arg(flag("root").help("the kubelet's root directory"))
        .arg(flag("state").help("a folder for calls, faults and health"))
        .arg(flag("cdi").help("a folder of CDI files that the runtime reads"))
        .arg(Arg::new("version").long("version").default_value("v1.DRAPlugin").help("what GetInfo says is supported"))
}

async fn run(given: &ArgMatches) -> Result<()> {
    let text = |name: &str| given.get_one::<String>(name).cloned().unwrap_or_default();
    let (root, state, name) = (PathBuf::from(text("root")), PathBuf::from(text("state")), text("name"));
    let socket = root.join("plugins").join(&name).join("dra.sock");
    let calls = File::options().create(true).append(true).open(state.join("calls.jsonl")).context("opening calls")?;
    let driver = Served(Arc::new(Driver {
        endpoint: socket.display().to_string(),
        versions: vec![text("version")],
        cdi: text("cdi").into(),
        calls,
        state,
        name: name.clone(),
    }));
    let mut end = signal(SignalKind::terminate()).context("waiting for SIGTERM")?;
    let services = Server::builder()
        .add_service(v1::dra_plugin_server::DraPluginServer::new(driver.clone()))
        .add_service(v1beta1::dra_plugin_server::DraPluginServer::new(driver.clone()))
        .add_service(health::dra_resource_health_server::DraResourceHealthServer::new(driver.clone()));
    let serving = serve(services, &socket)?;
    let registered = root.join("plugins_registry").join(format!("{name}-reg.sock"));
    // The driver's socket is there before anybody is told of it.
    let service = registration::registration_server::RegistrationServer::new(driver);
    let _registering = serve(Server::builder().add_service(service), &registered)?;
    tokio::select! {
        _ = end.recv() => {}
        ended = serving => ended.context("serving")??,
    }
    let _ = std::fs::remove_file(registered);
    let _ = std::fs::remove_file(socket);
    Ok(())
}

/// Listens on a socket that has its mode before anybody can see it under its name.
fn serve(services: Router, socket: &Path) -> Result<JoinHandle<Result<(), tonic::transport::Error>>> {
    let folder = socket.parent().context("a socket without a folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    // A name that begins with a dot is no plugin's.
    let hidden = folder.join(".new-dra.sock");
    let _ = std::fs::remove_file(&hidden);
    let listener = UnixListener::bind(&hidden).with_context(|| format!("binding {}", hidden.display()))?;
    std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o700))?;
    std::fs::rename(&hidden, socket).with_context(|| format!("naming {}", socket.display()))?;
    Ok(tokio::spawn(services.serve_with_incoming(clients(listener))))
}
