//! A CSI driver: the calls for volumes on a node, asked of the model and of the hostpath driver of kubernetes-csi.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use bulkhead_csi::v1 as csi;
use bulkhead_csi::v1::node_client::NodeClient;
use bulkhead_csi::v1::node_service_capability::{Type, rpc::Type as Rpc};
use bulkhead_csi::v1::volume_capability::access_mode::Mode;
use bulkhead_csi::v1::volume_capability::{AccessMode, AccessType, MountVolume};
use bulkhead_simulation::world::Shared;
use bulkhead_testkit::skip::{Lack, skip_this_test};
use bulkhead_testkit::{cluster, machine, mounts};
use tokio::runtime::{Builder, Runtime};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::{code, in_tokio, scenarios};

const PLUGIN: &str = "hostpathplugin";

async fn hold(subject: &Subject) -> Result<()> {
    scenarios!(subject;
        what_it_is,
        everything_twice,
        the_order_is_kept,
        what_is_not_there_may_be_taken_back,
        what_is_missing_is_refused,
        two_at_once,
    )
}

#[test]
fn the_model_is_a_driver() -> Result<()> {
    in_tokio(async { hold(&Subject::model()?).await })
}

#[test]
fn the_hostpath_driver_is_what_the_model_takes_it_for() -> Result<()> {
    if !machine::is_root() {
        return skip_this_test(Lack::Root);
    }
    let Some(program) = cluster::programs().map(|folder| folder.join(PLUGIN)).filter(|program| program.is_file())
    else {
        return skip_this_test(Lack::ControlPlane);
    };
    in_tokio(async { hold(&Subject::hostpath(&program).await?).await })
}

#[derive(Debug)]
enum Kind {
    /// None when it is dropped.
    Model(Option<Runtime>),
    Hostpath(Child),
}

/// Who is asked.
#[derive(Debug)]
struct Subject {
    kind: Kind,
    channel: Channel,
    // Last: it goes when all is unmounted.
    folder: tempfile::TempDir,
}

/// The little of the Controller service that makes a volume; no node has use for it.
#[derive(Clone, PartialEq, prost::Message)]
struct CreateVolumeRequest {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "3")]
    volume_capabilities: Vec<csi::VolumeCapability>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct CreateVolumeResponse {
    #[prost(message, optional, tag = "1")]
    volume: Option<Volume>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Volume {
    #[prost(string, tag = "2")]
    volume_id: String,
}

fn capability() -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume::default())),
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
    }
}

impl Subject {
    fn model() -> Result<Self> {
        let folder = tempfile::tempdir().context("making a folder")?;
        let socket = folder.path().join("csi.sock");
        let listener = UnixListener::bind(&socket).context("listening")?;
        listener.set_nonblocking(true).context("making a listener")?;
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().context("making a runtime")?;
        runtime.spawn(bulkhead_simulation::csi_driver::serve(Shared::new(1), listener));
        Ok(Subject { kind: Kind::Model(Some(runtime)), channel: bulkhead_ipc::client::channel(&socket), folder })
    }

    async fn hostpath(program: &Path) -> Result<Self> {
        let folder = tempfile::tempdir().context("making a folder")?;
        let (socket, state) = (folder.path().join("csi.sock"), folder.path().join("state"));
        std::fs::create_dir(&state).context("making a folder")?;
        let log = std::fs::File::create(folder.path().join("log")).context("making a log")?;
        // The death of the thread that starts it ends it, too.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(program)
            .args(["--drivername=hostpath.csi.k8s.io", "--nodeid=node-a"])
            .arg(format!("--endpoint=unix://{}", socket.display()))
            .arg(format!("--statedir={}", state.display()))
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("a log")?)
            .stderr(log)
            .spawn()
            .context("starting the hostpath driver")?;
        let subject = Subject { kind: Kind::Hostpath(child), channel: bulkhead_ipc::client::channel(&socket), folder };
        crate::eventually("the hostpath driver answers", async || {
            Ok(subject.node().node_get_info(csi::NodeGetInfoRequest {}).await.map(drop)?)
        })
        .await?;
        Ok(subject)
    }

    fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone())
    }

    /// A volume that is on no node; its handle.
    async fn volume(&self, name: &str) -> Result<String> {
        if let Kind::Model(_) = self.kind {
            return Ok(name.to_owned());
        }
        let mut client = tonic::client::Grpc::new(self.channel.clone());
        client.ready().await.context("no connection")?;
        let request = CreateVolumeRequest { name: name.to_owned(), volume_capabilities: vec![capability()] };
        let codec = tonic_prost::ProstCodec::<CreateVolumeRequest, CreateVolumeResponse>::default();
        let path = tonic::codegen::http::uri::PathAndQuery::from_static("/csi.v1.Controller/CreateVolume");
        let made = client.unary(tonic::Request::new(request), path, codec).await?.into_inner();
        Ok(made.volume.context("no volume")?.volume_id)
    }

    /// Where a volume is staged, made as a kubelet makes it; and where it is published, below a folder that is there.
    fn place(&self, name: &str) -> Result<String> {
        let path: PathBuf = self.folder.path().join(name);
        if name.ends_with("globalmount") {
            std::fs::create_dir_all(&path).context("making a folder")?;
        } else {
            std::fs::create_dir_all(path.parent().context("no folder")?).context("making a folder")?;
        }
        Ok(path.to_string_lossy().into_owned())
    }

    async fn stage(&self, volume: &str, path: &str) -> Result<(), Status> {
        let request = csi::NodeStageVolumeRequest {
            volume_id: volume.to_owned(),
            staging_target_path: path.to_owned(),
            volume_capability: Some(capability()),
            ..Default::default()
        };
        self.node().node_stage_volume(request).await.map(drop)
    }

    async fn unstage(&self, volume: &str, path: &str) -> Result<(), Status> {
        let (volume_id, staging_target_path) = (volume.to_owned(), path.to_owned());
        self.node()
            .node_unstage_volume(csi::NodeUnstageVolumeRequest { volume_id, staging_target_path })
            .await
            .map(drop)
    }

    async fn publish(&self, volume: &str, staging: &str, target: &str) -> Result<(), Status> {
        let request = csi::NodePublishVolumeRequest {
            volume_id: volume.to_owned(),
            staging_target_path: staging.to_owned(),
            target_path: target.to_owned(),
            volume_capability: Some(capability()),
            ..Default::default()
        };
        self.node().node_publish_volume(request).await.map(drop)
    }

    async fn unpublish(&self, volume: &str, target: &str) -> Result<(), Status> {
        let (volume_id, target_path) = (volume.to_owned(), target.to_owned());
        self.node().node_unpublish_volume(csi::NodeUnpublishVolumeRequest { volume_id, target_path }).await.map(drop)
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        match &mut self.kind {
            // Nobody may wait here, as the test runs in a runtime itself.
            Kind::Model(runtime) => runtime.take().into_iter().for_each(Runtime::shutdown_background),
            Kind::Hostpath(child) => {
                let _ = child.kill();
                let _ = child.wait();
                mounts::detach_below(self.folder.path());
            }
        }
    }
}

/// Its name for the node, and that it stages.
async fn what_it_is(subject: &Subject) -> Result<()> {
    let info = subject.node().node_get_info(csi::NodeGetInfoRequest {}).await?.into_inner();
    ensure!(!info.node_id.is_empty(), "{info:?}");
    let all = subject.node().node_get_capabilities(csi::NodeGetCapabilitiesRequest {}).await?.into_inner();
    for wanted in [Rpc::StageUnstageVolume, Rpc::SingleNodeMultiWriter] {
        let is =
            |one: &csi::NodeServiceCapability| matches!(&one.r#type, Some(Type::Rpc(rpc)) if rpc.r#type() == wanted);
        ensure!(all.capabilities.iter().any(is), "no {wanted:?}: {all:?}");
    }
    Ok(())
}

/// Each call may be repeated, and a volume be published at several places.
async fn everything_twice(subject: &Subject) -> Result<()> {
    let volume = subject.volume("twice").await?;
    let (staging, first, second) =
        (subject.place("twice/globalmount")?, subject.place("twice/pod-1/mount")?, subject.place("twice/pod-2/mount")?);
    for _ in 0..2 {
        subject.stage(&volume, &staging).await?;
    }
    for target in [&first, &second, &first] {
        subject.publish(&volume, &staging, target).await?;
    }
    for target in [&first, &first, &second, &second] {
        subject.unpublish(&volume, target).await?;
    }
    for _ in 0..2 {
        subject.unstage(&volume, &staging).await?;
    }
    // And from the beginning.
    subject.stage(&volume, &staging).await?;
    subject.publish(&volume, &staging, &first).await?;
    subject.unpublish(&volume, &first).await?;
    subject.unstage(&volume, &staging).await?;
    Ok(())
}

/// Nothing is published that is not staged there, nothing unstaged that is published, and staged is at one place.
async fn the_order_is_kept(subject: &Subject) -> Result<()> {
    let volume = subject.volume("order").await?;
    let (staging, other, target) =
        (subject.place("order/globalmount")?, subject.place("order/2/globalmount")?, subject.place("order/pod/mount")?);
    ensure!(code(&subject.publish(&volume, &staging, &target).await) == Code::FailedPrecondition, "not staged");
    subject.stage(&volume, &staging).await?;
    ensure!(code(&subject.stage(&volume, &other).await) == Code::FailedPrecondition, "staged at another place");
    let elsewhere = code(&subject.publish(&volume, &other, &target).await);
    ensure!([Code::FailedPrecondition, Code::InvalidArgument].contains(&elsewhere), "staged elsewhere: {elsewhere:?}");
    subject.publish(&volume, &staging, &target).await?;
    ensure!(code(&subject.unstage(&volume, &staging).await) == Code::Internal, "it is published");
    subject.unpublish(&volume, &target).await?;
    subject.unstage(&volume, &staging).await?;
    ensure!(
        code(&subject.publish(&volume, &staging, &target).await) == Code::FailedPrecondition,
        "not staged any more"
    );
    Ok(())
}

async fn what_is_not_there_may_be_taken_back(subject: &Subject) -> Result<()> {
    let volume = subject.volume("absent").await?;
    let (staging, target) = (subject.place("absent/globalmount")?, subject.place("absent/pod/mount")?);
    subject.unpublish(&volume, &target).await?;
    subject.unstage(&volume, &staging).await?;
    subject.stage(&volume, &staging).await?;
    subject.unpublish(&volume, &target).await?;
    subject.unstage(&volume, &subject.place("absent/2/globalmount")?).await?;
    // It is staged still.
    subject.publish(&volume, &staging, &target).await?;
    subject.unpublish(&volume, &target).await?;
    subject.unstage(&volume, &staging).await?;
    Ok(())
}

async fn what_is_missing_is_refused(subject: &Subject) -> Result<()> {
    let volume = subject.volume("missing").await?;
    let (staging, target) = (subject.place("missing/globalmount")?, subject.place("missing/pod/mount")?);
    let (mut node, mut other) = (subject.node(), subject.node());
    let no_capability = csi::NodeStageVolumeRequest {
        volume_id: volume.clone(),
        staging_target_path: staging.clone(),
        ..Default::default()
    };
    let published_so = csi::NodePublishVolumeRequest {
        volume_id: volume.clone(),
        staging_target_path: staging.clone(),
        target_path: target.clone(),
        ..Default::default()
    };
    let codes = [
        code(&subject.stage("", &staging).await),
        code(&subject.stage(&volume, "").await),
        code(&node.node_stage_volume(no_capability).await),
        code(&subject.unstage("", &staging).await),
        code(&subject.unstage(&volume, "").await),
        code(&subject.publish("", &staging, &target).await),
        code(&subject.publish(&volume, &staging, "").await),
        code(&other.node_publish_volume(published_so).await),
        code(&subject.unpublish("", &target).await),
        code(&subject.unpublish(&volume, "").await),
    ];
    ensure!(codes == [Code::InvalidArgument; 10], "{codes:?}");
    Ok(())
}

/// One of two calls for a volume is done; the other one, too, or it is told to come again.
async fn two_at_once(subject: &Subject) -> Result<()> {
    let volume = subject.volume("at-once").await?;
    let staging = subject.place("at-once/globalmount")?;
    let codes = tokio::join!(subject.stage(&volume, &staging), subject.stage(&volume, &staging));
    let codes = [code(&codes.0), code(&codes.1)];
    ensure!(codes.contains(&Code::Ok), "{codes:?}");
    ensure!(codes.iter().all(|code| [Code::Ok, Code::Aborted].contains(code)), "{codes:?}");
    subject.stage(&volume, &staging).await?;
    subject.unstage(&volume, &staging).await?;
    Ok(())
}
