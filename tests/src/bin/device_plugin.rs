//! A device plugin for tests: it offers what a file says, answers with variables, a mount and a device, writes down every call, and
//! misbehaves as it is told to while it runs.
//!
//! It listens beside `kubelet.sock` in `<root>/device-plugins` and registers there, again when there is a new one. In its state folder
//! lie `calls.jsonl` (a line for each call, and for each list while it flaps) and `told.json`, an object that is read anew all the
//! time: `devices` (objects with `id`, `health` and `nodes`), `prefer` (ids), `cdi` (names of CDI devices, which everybody gets),
//! `annotations` (likewise), `flap` (a device's id, whose health changes each millisecond), `without` (an optional call that it does not
//! have), `bare` (true: it gives variables alone) and `fault` (method to `hang`, `fail` or `die`). SIGTERM ends it, also as the first
//! process of a container.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bulkhead_device_plugin::v1beta1::device_plugin_server::{DevicePlugin, DevicePluginServer};
use bulkhead_device_plugin::v1beta1::registration_client::RegistrationClient;
use bulkhead_device_plugin::v1beta1::{
    AllocateRequest, AllocateResponse, CdiDevice, ContainerAllocateResponse, ContainerPreferredAllocationResponse,
    Device, DevicePluginOptions, DeviceSpec, Empty, ListAndWatchResponse, Mount, NumaNode, PreStartContainerRequest,
    PreStartContainerResponse, PreferredAllocationRequest, PreferredAllocationResponse, RegisterRequest, TopologyInfo,
};
use bulkhead_device_plugin::{HEALTHY, UNHEALTHY, VERSION};
use clap::{Arg, Command};
use futures_util::stream::BoxStream;
use kubelet_pod_resources::connections::clients;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};

const LOOK: Duration = Duration::from_millis(20);

type Lists = BoxStream<'static, Result<ListAndWatchResponse, Status>>;

#[derive(Debug, Clone)]
struct Plugin(Arc<PathBuf>);

impl Plugin {
    fn told(&self) -> Value {
        let text = std::fs::read(self.0.join("told.json")).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or(Value::Null)
    }

    fn record(&self, call: &str, what: &Value) {
        let line = format!("{}\n", json!({"call": call, "what": what}));
        let file = std::fs::OpenOptions::new().create(true).append(true).open(self.0.join("calls.jsonl"));
        if let Err(error) = file.and_then(|mut file| file.write_all(line.as_bytes())) {
            eprintln!("device_plugin: {error}");
        }
    }

    async fn meet(&self, call: &str, what: Value) -> Result<(), Status> {
        self.record(call, &what);
        match self.told()["fault"][call].as_str() {
            Some("hang") => {
                while self.told()["fault"][call] == "hang" {
                    tokio::time::sleep(LOOK).await;
                }
                Ok(())
            }
            Some("fail") => Err(Status::internal(format!("{call} fails as it was told to"))),
            Some("die") => {
                let _ = kill(Pid::this(), Signal::SIGKILL);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn devices(told: &Value) -> Vec<Device> {
    let one = |device: &Value| {
        let nodes = device["nodes"].as_array().into_iter().flatten().filter_map(Value::as_i64);
        let nodes: Vec<NumaNode> = nodes.map(|id| NumaNode { id }).collect();
        Device {
            id: device["id"].as_str().unwrap_or_default().to_owned(),
            health: device["health"].as_str().unwrap_or(HEALTHY).to_owned(),
            topology: (!nodes.is_empty()).then_some(TopologyInfo { nodes }),
        }
    };
    told["devices"].as_array().into_iter().flatten().map(one).collect()
}

fn texts(told: &Value) -> BTreeMap<String, String> {
    let text = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
    told.as_object().into_iter().flatten().filter_map(text).collect()
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    async fn get_device_plugin_options(&self, _: Request<Empty>) -> Result<Response<DevicePluginOptions>, Status> {
        self.meet("GetDevicePluginOptions", Value::Null).await?;
        let has = |call: &str| self.told()["without"] != call;
        Ok(Response::new(DevicePluginOptions {
            pre_start_required: has("PreStartContainer"),
            get_preferred_allocation_available: has("GetPreferredAllocation"),
        }))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Lists>, Status> {
        self.meet("ListAndWatch", Value::Null).await?;
        let plugin = self.clone();
        let lists = futures_util::stream::unfold((None, false), move |(last, flip): (Option<Vec<Device>>, bool)| {
            let plugin = plugin.clone();
            async move {
                loop {
                    let told = plugin.told();
                    let mut now = devices(&told);
                    if let Some(flapping) = told["flap"].as_str() {
                        for device in now.iter_mut().filter(|device| device.id == flapping) {
                            device.health = if flip { HEALTHY } else { UNHEALTHY }.to_owned();
                        }
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        plugin.record("flap", &json!(flip));
                        return Some((Ok(ListAndWatchResponse { devices: now.clone() }), (Some(now), !flip)));
                    }
                    if told.is_object() && last.as_ref() != Some(&now) {
                        return Some((Ok(ListAndWatchResponse { devices: now.clone() }), (Some(now), flip)));
                    }
                    tokio::time::sleep(LOOK).await;
                }
            }
        });
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let request = request.into_inner().container_requests.into_iter().next().unwrap_or_default();
        let what = json!({"available": request.available_device_i_ds, "must": request.must_include_device_i_ds,
            "size": request.allocation_size});
        self.meet("GetPreferredAllocation", what).await?;
        let told = self.told();
        let prefer = told["prefer"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
        let answer = ContainerPreferredAllocationResponse { device_i_ds: prefer.collect() };
        Ok(Response::new(PreferredAllocationResponse { container_responses: vec![answer] }))
    }

    async fn allocate(&self, request: Request<AllocateRequest>) -> Result<Response<AllocateResponse>, Status> {
        let ids = request.into_inner().container_requests.into_iter().next().unwrap_or_default().devices_ids;
        self.meet("Allocate", json!(ids)).await?;
        let told = self.told();
        let names = told["cdi"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let envs = BTreeMap::from([("GIVEN_DEVICES".to_owned(), ids.join(","))]);
        if told["bare"] == true {
            let answer = ContainerAllocateResponse { envs, ..ContainerAllocateResponse::default() };
            return Ok(Response::new(AllocateResponse { container_responses: vec![answer] }));
        }
        let answer = ContainerAllocateResponse {
            envs,
            mounts: vec![Mount {
                container_path: "/given".to_owned(),
                host_path: self.0.display().to_string(),
                read_only: true,
            }],
            devices: vec![DeviceSpec {
                container_path: "/dev/given".to_owned(),
                host_path: "/dev/null".to_owned(),
                permissions: "rw".to_owned(),
            }],
            annotations: texts(&told["annotations"]),
            cdi_devices: names.map(|name| CdiDevice { name: name.to_owned() }).collect(),
        };
        Ok(Response::new(AllocateResponse { container_responses: vec![answer] }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        self.meet("PreStartContainer", json!(request.into_inner().devices_ids)).await?;
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

fn main() -> ExitCode {
    let flag = |name: &'static str| Arg::new(name).long(name).required(true);
    let given = Command::new("device_plugin")
        .arg(flag("resource"))
        .arg(flag("root").help("the kubelet's root directory"))
        .arg(flag("state").help("a folder for calls and what the plugin is told"))
        .get_matches();
    let text = |name: &str| given.get_one::<String>(name).cloned().unwrap_or_default();
    let (folder, state) = (Path::new(&text("root")).join("device-plugins"), PathBuf::from(text("state")));
    let plugin = Plugin(Arc::new(state));
    let resource = text("resource");
    bulkhead_tests::program::run("device_plugin", async {
        let mut ended = signal(SignalKind::terminate())?;
        tokio::select! {
            served = run(&resource, &folder, &plugin) => served,
            _ = ended.recv() => Ok(()),
        }
    })
}

/// Which file it is: the number of one that is gone may be given again.
fn identity(path: &Path) -> Option<(u64, i64, i64)> {
    std::fs::metadata(path).ok().map(|found| (found.ino(), found.ctime(), found.ctime_nsec()))
}

/// Serves and registers, and begins anew with each new kubelet.sock, as plugins do.
async fn run(resource: &str, folder: &Path, plugin: &Plugin) -> Result<()> {
    let kubelet = folder.join("kubelet.sock");
    let endpoint = format!("{}.sock", resource.replace('/', "_"));
    loop {
        let Some(seen) = identity(&kubelet) else {
            tokio::time::sleep(LOOK).await;
            continue;
        };
        let own = folder.join(&endpoint);
        let _ = std::fs::remove_file(&own);
        let listener = UnixListener::bind(&own).with_context(|| format!("binding {}", own.display()))?;
        let service = DevicePluginServer::new(plugin.clone());
        let serving = tokio::spawn(Server::builder().add_service(service).serve_with_incoming(clients(listener)));
        let request = RegisterRequest {
            version: VERSION.to_owned(),
            endpoint: endpoint.clone(),
            resource_name: resource.to_owned(),
            options: None,
        };
        let address = Endpoint::from_shared(format!("unix://{}", kubelet.display()))?;
        let registered = match address.connect().await {
            // As upstream's stub, of which most plugins are made (`plugin/v1beta1/stub.go`, Register).
            _ if folder.join("DEPRECATION").exists() => Err("Deprecation file found. Skip registration".to_owned()),
            Ok(channel) => {
                let answer = RegistrationClient::new(channel).register(request).await;
                answer.map(|_| ()).map_err(|status| status.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        plugin.record("Register", &json!(registered.as_ref().err()));
        while registered.is_ok() && identity(&kubelet) == Some(seen) {
            tokio::time::sleep(LOOK).await;
        }
        serving.abort();
        tokio::time::sleep(LOOK).await;
    }
}
