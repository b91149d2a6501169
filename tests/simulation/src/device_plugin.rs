//! A model of a device plugin: it registers with kubelet-syncd whenever it starts, tells its devices and their health, and answers for
//! them. It keeps nothing: which device is whose is the kubelet's to know.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_device_plugin::v1beta1 as api;
use bulkhead_device_plugin::v1beta1::device_plugin_server::{DevicePlugin, DevicePluginServer};
use bulkhead_device_plugin::v1beta1::registration_client::RegistrationClient;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{UnboundedReceiverStream, UnixListenerStream};
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use crate::node::ROOT;
use crate::resources::{PATH, RESOURCE};
use crate::resources_schedule::PluginFault;
use crate::schedule::Peer;
use crate::world::{Command, Shared, World};

type Answer<T> = Result<Response<T>, Status>;

/// Its socket below `device-plugins`.
const SOCKET: &str = "simulated.sock";
/// Between two attempts to register.
const AGAIN: Duration = Duration::from_secs(1);

/// One life of it.
#[derive(Debug, Clone)]
pub struct Model {
    world: Shared,
}

/// Where it says that it listens.
pub fn endpoint() -> String {
    format!("{ROOT}/device-plugins/{SOCKET}")
}

/// Serves until it is dropped. `registrar`: the socket of the kubelet's registration.
pub async fn serve(world: Shared, listener: std::os::unix::net::UnixListener, registrar: PathBuf) {
    let Ok(listener) = UnixListener::from_std(listener) else { return };
    let model = Model { world: world.clone() };
    let server = tonic::transport::Server::builder().add_service(DevicePluginServer::new(model));
    let registers = async {
        while let Err(status) = register(&registrar).await {
            world.lock().tell("plugin", format!("cannot register: {}", status.message()));
            tokio::time::sleep(AGAIN).await;
        }
        let mut world = world.lock();
        world.tell("plugin", "is registered");
        world.resources.is_back();
    };
    // Serving ends with the process.
    let _ = tokio::join!(server.serve_with_incoming(UnixListenerStream::new(listener)), registers);
}

async fn register(registrar: &Path) -> Result<(), Status> {
    let mut client = RegistrationClient::new(bulkhead_ipc::client::channel(registrar));
    let request = api::RegisterRequest {
        version: bulkhead_device_plugin::VERSION.to_owned(),
        endpoint: SOCKET.to_owned(),
        resource_name: RESOURCE.to_owned(),
        options: Some(options()),
    };
    client.register(request).await.map(drop)
}

fn options() -> api::DevicePluginOptions {
    api::DevicePluginOptions { pre_start_required: true, get_preferred_allocation_available: true }
}

fn pause(milliseconds: u64) -> tokio::time::Sleep {
    tokio::time::sleep(Duration::from_millis(milliseconds))
}

impl Model {
    /// A call about devices of a container. What was begun is finished; `act` is told whether somebody still waits for it.
    async fn call<T: Send + 'static>(
        &self,
        what: String,
        act: impl FnOnce(&mut World, bool) -> Result<T, Status> + Send + 'static,
    ) -> Answer<T> {
        let waits = std::sync::Arc::new(());
        let waited_for = std::sync::Arc::downgrade(&waits);
        let model = self.clone();
        let work = tokio::spawn(async move {
            let (there, back, fault) = {
                let mut world = model.world.lock();
                let (there, back) = world.latency(Peer::Volnetd);
                (there, back, world.resources.take_fault())
            };
            let late = if let Some(PluginFault::Late { by }) = fault { by } else { 0 };
            pause(there + late).await;
            let (done, answers) = {
                let mut world = model.world.lock();
                let done = match fault {
                    Some(PluginFault::Fails) => Err(Status::internal("refused by the simulation")),
                    _ => act(&mut world, waited_for.strong_count() > 0),
                };
                let how = if done.is_ok() { "does" } else { "does not do" };
                world.tell("plugin", format!("{how} {what}"));
                let method = what.split(' ').next().unwrap_or_default().to_owned();
                world.coverage.call(&format!("{method} {}", if done.is_ok() { "Ok" } else { "Internal" }));
                (done, answers(&mut world, fault, &what))
            };
            if !answers {
                std::future::pending::<()>().await;
            }
            pause(back).await;
            done
        });
        let done = work.await;
        drop(waits);
        done.unwrap_or_else(|_| Err(Status::unavailable("the plugin is gone"))).map(Response::new)
    }
}

/// Whether the answer comes.
fn answers(world: &mut World, fault: Option<PluginFault>, what: &str) -> bool {
    match fault {
        Some(PluginFault::Dies { down }) => {
            world.tell("plugin", format!("dies before it has answered {what}"));
            world.commands.push(Command::KillPlugin { down });
            false
        }
        Some(PluginFault::SyncdDies) => {
            world.tell("plugin", format!("kubelet-syncd dies before it has the answer to {what}"));
            world.commands.push(Command::KillSyncd { down: 100 });
            false
        }
        Some(PluginFault::AnswerLost) => {
            world.tell("plugin", format!("the answer to {what} is lost"));
            false
        }
        _ => true,
    }
}

#[tonic::async_trait]
impl DevicePlugin for Model {
    async fn get_device_plugin_options(&self, _: Request<api::Empty>) -> Answer<api::DevicePluginOptions> {
        self.world.lock().resources.is_connected();
        Ok(Response::new(options()))
    }

    async fn list_and_watch(&self, _: Request<api::Empty>) -> Answer<BoxStream<api::ListAndWatchResponse>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut world = self.world.lock();
        // Its other end is the caller's.
        let _ = sender.send(Ok(world.resources.list()));
        world.resources.watchers.push(sender);
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(receiver))))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<api::PreferredAllocationRequest>,
    ) -> Answer<api::PreferredAllocationResponse> {
        let asked = request.into_inner().container_requests;
        self.call("GetPreferredAllocation".to_owned(), move |_, _| {
            // The last ones, as the kubelet itself would take the first.
            let prefer = |one: api::ContainerPreferredAllocationRequest| {
                let size = usize::try_from(one.allocation_size).unwrap_or(0);
                let others =
                    one.available_device_i_ds.iter().rev().filter(|id| !one.must_include_device_i_ds.contains(id));
                let ids = one.must_include_device_i_ds.iter().chain(others).take(size).cloned().collect();
                api::ContainerPreferredAllocationResponse { device_i_ds: ids }
            };
            let container_responses = asked.into_iter().map(prefer).collect();
            Ok(api::PreferredAllocationResponse { container_responses })
        })
        .await
    }

    async fn allocate(&self, request: Request<api::AllocateRequest>) -> Answer<api::AllocateResponse> {
        let asked: Vec<Vec<String>> =
            request.into_inner().container_requests.into_iter().map(|one| one.devices_ids).collect();
        self.call(format!("Allocate {}", asked.concat().join(" ")), move |world, is_waited_for| {
            if is_waited_for {
                world.check_allocate(&asked.concat());
            }
            let device = |id: &String| api::DeviceSpec {
                container_path: format!("{PATH}{id}"),
                host_path: format!("{PATH}{id}"),
                permissions: "rw".to_owned(),
            };
            let answer = |ids: &Vec<String>| api::ContainerAllocateResponse {
                devices: ids.iter().map(device).collect(),
                ..Default::default()
            };
            Ok(api::AllocateResponse { container_responses: asked.iter().map(answer).collect() })
        })
        .await
    }

    async fn pre_start_container(
        &self,
        request: Request<api::PreStartContainerRequest>,
    ) -> Answer<api::PreStartContainerResponse> {
        let ids = request.into_inner().devices_ids;
        self.call(format!("PreStartContainer {}", ids.join(" ")), move |world, _| {
            world.resources.prepared.extend(ids);
            Ok(api::PreStartContainerResponse {})
        })
        .await
    }
}
