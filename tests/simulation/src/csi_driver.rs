//! A model of a CSI driver with its registrar: mounts are names in tables, which outlive it, over folders that are
//! there. It keeps the specification: each call may be repeated, one at a time is worked on for each volume (ABORTED
//! for others), what was begun is finished whoever waits for it, and a code that is final says that nothing was done.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_csi::registration::v1 as registration;
use bulkhead_csi::v1 as csi;
use parking_lot::Mutex;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Code, Request, Response, Status};

use crate::node::ROOT;
use crate::volumes::DRIVER;
use crate::volumes_schedule::DriverFault;
use crate::world::{Command, Shared, World};

type Answer<T> = Result<Response<T>, Status>;

/// One life of it.
#[derive(Debug, Clone)]
pub struct Model {
    pub world: Shared,
    /// Volumes that something is done about.
    busy: Arc<Mutex<BTreeSet<String>>>,
}

/// Serves until it is dropped.
pub async fn serve(world: Shared, listener: std::os::unix::net::UnixListener) {
    let Ok(listener) = UnixListener::from_std(listener) else { return };
    let model = Model { world, busy: Arc::default() };
    let server = tonic::transport::Server::builder()
        .add_service(registration::registration_server::RegistrationServer::new(model.clone()))
        .add_service(csi::node_server::NodeServer::new(model));
    // It ends with the process.
    let _ = server.serve_with_incoming(UnixListenerStream::new(listener)).await;
}

/// Where it says that it listens.
pub fn endpoint() -> String {
    format!("{ROOT}/plugins/{DRIVER}/csi.sock")
}

fn pause(milliseconds: u64) -> tokio::time::Sleep {
    tokio::time::sleep(Duration::from_millis(milliseconds))
}

/// What a request needs.
fn has_all(texts: &[&str], has_capability: bool) -> Result<(), Status> {
    if texts.contains(&"") || !has_capability {
        return Err(Status::invalid_argument("something is missing in the request"));
    }
    Ok(())
}

impl Model {
    fn is_free(&self, handle: &str) -> bool {
        self.busy.lock().insert(handle.to_owned())
    }

    fn free(&self, handle: &str) {
        self.busy.lock().remove(handle);
    }

    /// A call that changes mounts. `act` is told whether somebody still waits for it.
    async fn change<T: Default + Send + 'static>(
        &self,
        method: &'static str,
        handle: String,
        act: impl FnOnce(&mut World, bool) -> Result<(), Status> + Send + 'static,
    ) -> Answer<T> {
        if !self.is_free(&handle) {
            self.world.lock().coverage.call(&format!("{method} {:?}", Code::Aborted));
            return Err(Status::aborted(format!("an operation for {handle} is going on")));
        }
        let waits = Arc::new(());
        let waited_for = Arc::downgrade(&waits);
        let model = self.clone();
        let work = tokio::spawn(async move {
            let (done, back) = model.work(method, &handle, act, move || waited_for.strong_count() > 0).await;
            match back {
                Some(back) => pause(back).await,
                None => std::future::pending().await,
            }
            done
        });
        let done = work.await;
        drop(waits);
        done.unwrap_or_else(|_| Err(Status::unavailable("the driver is gone"))).map(|()| Response::new(T::default()))
    }

    /// What came of it, and how long the answer is under way; `None`: it never comes.
    async fn work(
        &self,
        method: &'static str,
        handle: &str,
        act: impl FnOnce(&mut World, bool) -> Result<(), Status> + Send,
        is_waited_for: impl Fn() -> bool + Send,
    ) -> (Result<(), Status>, Option<u64>) {
        let (there, back, fault) = {
            let mut world = self.world.lock();
            let (there, back) = world.latency(crate::schedule::Peer::Volnetd);
            let fault = (!world.volumes.faults.is_empty()).then(|| world.volumes.faults.remove(0));
            (there, back, fault)
        };
        let late = if let Some(DriverFault::Late { by }) = fault { by } else { 0 };
        pause(there + late).await;
        let mut world = self.world.lock();
        let refusal = match fault {
            Some(DriverFault::Fails { code }) => Some(Status::new(Code::from_i32(code), "refused by the simulation")),
            Some(DriverFault::Dies { done: false, .. } | DriverFault::SyncdDies { done: false }) => {
                Some(Status::unavailable("somebody is dead"))
            }
            _ => None,
        };
        let did = match refusal {
            Some(refusal) => Err(refusal),
            None => act(&mut world, is_waited_for()),
        };
        let how = match &did {
            Ok(()) => "does".to_owned(),
            Err(status) => format!("does not ({:?}) do", status.code()),
        };
        world.tell("driver", format!("{how} {method} {handle}"));
        world.coverage.call(&format!("{method} {:?}", did.as_ref().err().map_or(Code::Ok, Status::code)));
        let mut answers = true;
        match fault {
            Some(DriverFault::Dies { down, .. }) => {
                world.tell("driver", format!("dies before it has answered {method} {handle}"));
                world.commands.push(Command::KillDriver { down });
                answers = false;
            }
            Some(DriverFault::SyncdDies { .. }) => {
                world.tell("driver", format!("kubelet-syncd dies before it has the answer to {method} {handle}"));
                world.commands.push(Command::KillSyncd { down: 100 });
                answers = false;
            }
            Some(DriverFault::AnswerLost) => {
                world.tell("driver", format!("the answer to {method} {handle} is lost"));
                answers = false;
            }
            _ => {}
        }
        drop(world);
        self.free(handle);
        let told = match fault {
            Some(DriverFault::Unsure { code }) if did.is_ok() => {
                Err(Status::new(Code::from_i32(code), "it may be done"))
            }
            _ => did,
        };
        (told, answers.then_some(back))
    }
}

#[tonic::async_trait]
impl registration::registration_server::Registration for Model {
    async fn get_info(&self, _: Request<registration::InfoRequest>) -> Answer<registration::PluginInfo> {
        Ok(Response::new(registration::PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: DRIVER.to_owned(),
            endpoint: endpoint(),
            supported_versions: vec!["1.0.0".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<registration::RegistrationStatus>,
    ) -> Answer<registration::RegistrationStatusResponse> {
        let told = request.into_inner();
        let what =
            if told.plugin_registered { "is registered".to_owned() } else { format!("is refused: {}", told.error) };
        self.world.lock().tell("driver", what);
        Ok(Response::new(registration::RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl csi::node_server::Node for Model {
    async fn node_stage_volume(
        &self,
        request: Request<csi::NodeStageVolumeRequest>,
    ) -> Answer<csi::NodeStageVolumeResponse> {
        let asked = request.into_inner();
        has_all(&[&asked.volume_id, &asked.staging_target_path], asked.volume_capability.is_some())?;
        let (handle, path) = (asked.volume_id, asked.staging_target_path);
        self.change("NodeStageVolume", handle.clone(), move |world, is_waited_for| {
            if is_waited_for {
                world.check_stage(&handle, &path);
            }
            // As the hostpath driver.
            if world.volumes.staged_at.iter().any(|(at, of)| *of == handle && *at != path) {
                return Err(Status::failed_precondition(format!("{handle} is staged at another path")));
            }
            world.mount_staged(path, handle)
        })
        .await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Answer<csi::NodeUnstageVolumeResponse> {
        let csi::NodeUnstageVolumeRequest { volume_id: handle, staging_target_path: path } = request.into_inner();
        has_all(&[&handle, &path], true)?;
        self.change("NodeUnstageVolume", handle.clone(), move |world, is_waited_for| {
            if is_waited_for {
                world.check_unstage(&handle, &path);
            }
            // As the hostpath driver.
            let is_staged = world.volumes.staged_at.get(&path) == Some(&handle);
            if is_staged && world.volumes.published_at.values().any(|of| *of == handle) {
                return Err(Status::internal(format!("{handle} is still published")));
            }
            if is_staged {
                world.unmount_staged(&path);
            }
            Ok(())
        })
        .await
    }

    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Answer<csi::NodePublishVolumeResponse> {
        let asked = request.into_inner();
        has_all(&[&asked.volume_id, &asked.target_path], asked.volume_capability.is_some())?;
        let (handle, staging, target) = (asked.volume_id, asked.staging_target_path, asked.target_path);
        self.change("NodePublishVolume", handle.clone(), move |world, is_waited_for| {
            if is_waited_for {
                world.check_publish(&handle, &staging, &target);
            }
            if world.volumes.staged_at.get(&staging) != Some(&handle) {
                return Err(Status::failed_precondition(format!("{handle} is not staged")));
            }
            world.mount_published(target, handle)
        })
        .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Answer<csi::NodeUnpublishVolumeResponse> {
        let csi::NodeUnpublishVolumeRequest { volume_id: handle, target_path: target } = request.into_inner();
        has_all(&[&handle, &target], true)?;
        self.change("NodeUnpublishVolume", handle.clone(), move |world, is_waited_for| {
            if is_waited_for {
                world.check_unpublish(&handle, &target);
            }
            world.unmount_published(&target);
            Ok(())
        })
        .await
    }

    async fn node_get_volume_stats(
        &self,
        _: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Answer<csi::NodeGetVolumeStatsResponse> {
        Err(Status::unimplemented("the model has none"))
    }

    async fn node_expand_volume(
        &self,
        _: Request<csi::NodeExpandVolumeRequest>,
    ) -> Answer<csi::NodeExpandVolumeResponse> {
        Err(Status::unimplemented("the model has none"))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Answer<csi::NodeGetCapabilitiesResponse> {
        use csi::node_service_capability::{Rpc, Type, rpc::Type as Kind};
        let one = |kind: Kind| csi::NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: kind.into() })) };
        let capabilities = [Kind::StageUnstageVolume, Kind::SingleNodeMultiWriter].map(one).to_vec();
        Ok(Response::new(csi::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(&self, _: Request<csi::NodeGetInfoRequest>) -> Answer<csi::NodeGetInfoResponse> {
        Ok(Response::new(csi::NodeGetInfoResponse { node_id: "simulated".to_owned(), ..Default::default() }))
    }
}
