//! What is compared with: a pod's files made by plain mkdir, mount and write, and the driver's calls made with nobody between.

use std::os::fd::AsFd as _;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bulkhead_csi::v1;
use bulkhead_csi::v1::volume_capability::access_mode::Mode;
use bulkhead_csi::v1::volume_capability::{AccessMode, AccessType, MountVolume};
use bulkhead_sys::{mount, open};
use bulkhead_testkit::csi::Driver;
use kubelet_edges::csi::connection::DialFuture;
use kubelet_edges::csi::node::CsiNode as _;
use kubelet_edges::csi::{self, CsiClient, Dial, Drivers, PluginAddress, Version};

use super::{GROUP, KEYS, VALUE};

/// Makes the five volumes of each pod below `at`, as the node leaves them, and takes them away again. Answers each pod's time.
///
/// # Errors
/// A call of the kernel failed.
pub fn files(at: &Path, pods: usize) -> Result<Vec<Duration>> {
    let mut times = Vec::with_capacity(pods);
    for pod in 0..pods {
        let pod = at.join(format!("plain-{pod}"));
        let begin = Instant::now();
        std::fs::create_dir(&pod).with_context(|| pod.display().to_string())?;
        for (volume, in_memory) in
            [("empty", false), ("scratch", false), ("map", false), ("more", false), ("keys", true)]
        {
            let volume = pod.join(volume);
            std::fs::create_dir(&volume)?;
            if in_memory {
                let target = open::base_dir(&volume)?;
                mount::tmpfs(target.as_fd(), &mount::Tmpfs::default())?;
            }
            if !["empty", "scratch"].iter().any(|name| volume.ends_with(name)) {
                content(&volume)?;
            }
            chown(&volume, None, Some(GROUP))?;
            std::fs::set_permissions(&volume, std::fs::Permissions::from_mode(0o2777))?;
        }
        times.push(begin.elapsed());
        bulkhead_testkit::mounts::detach_below(&pod);
        std::fs::remove_dir_all(&pod)?;
    }
    Ok(times)
}

/// The form of upstream's atomic writer.
fn content(volume: &Path) -> Result<()> {
    let set = volume.join("..set");
    std::fs::create_dir(&set)?;
    for key in 0..KEYS {
        let file = set.join(format!("key-{key}"));
        std::fs::write(&file, VALUE)?;
        chown(&file, None, Some(GROUP))?;
        symlink(Path::new("..data").join(format!("key-{key}")), volume.join(format!("key-{key}")))?;
    }
    symlink("..set", volume.join("..data")).context("..data")
}

/// The socket itself: no broker.
#[derive(Debug)]
struct Direct;

impl Dial for Direct {
    fn dial(&self, address: &PluginAddress) -> DialFuture {
        let path = address.to_string();
        Box::pin(tokio::net::UnixStream::connect(path))
    }
}

fn capability() -> v1::VolumeCapability {
    let mount = MountVolume { volume_mount_group: String::new(), ..MountVolume::default() };
    v1::VolumeCapability {
        access_type: Some(AccessType::Mount(mount)),
        access_mode: Some(AccessMode { mode: Mode::SingleNodeMultiWriter.into() }),
    }
}

/// The calls that the node makes for a volume, one volume after the other, and their opposites. Answers each volume's time.
///
/// # Errors
/// The driver's refusal.
pub fn driver(driver: &Driver, at: &Path, volumes: usize) -> Result<Vec<Duration>> {
    let drivers = Drivers::default();
    let endpoint = driver.socket().display().to_string();
    drivers.set(driver.name(), csi::Driver { endpoint, version: Version::parse("1.0.0")? });
    let client = CsiClient::new(drivers, Arc::new(Direct));
    let name = driver.name().to_owned();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut times = Vec::with_capacity(volumes);
        for volume in 0..volumes {
            let volume_id = format!("direct-{volume}");
            let (staging, target) = (at.join(format!("{volume_id}-staged")), at.join(&volume_id));
            std::fs::create_dir(&staging)?;
            let (staging, target) = (staging.display().to_string(), target.display().to_string());
            let begin = Instant::now();
            // Asked before each staging and each publication, as the node does.
            client.node_get_capabilities(&name, v1::NodeGetCapabilitiesRequest {}).await?;
            let stage = v1::NodeStageVolumeRequest {
                volume_id: volume_id.clone(),
                staging_target_path: staging.clone(),
                volume_capability: Some(capability()),
                ..Default::default()
            };
            client.node_stage_volume(&name, stage).await?;
            let publish = v1::NodePublishVolumeRequest {
                volume_id: volume_id.clone(),
                staging_target_path: staging.clone(),
                target_path: target.clone(),
                volume_capability: Some(capability()),
                ..Default::default()
            };
            client.node_publish_volume(&name, publish).await?;
            times.push(begin.elapsed());
            let unpublish = v1::NodeUnpublishVolumeRequest { volume_id: volume_id.clone(), target_path: target };
            client.node_unpublish_volume(&name, unpublish).await?;
            let unstage = v1::NodeUnstageVolumeRequest { volume_id, staging_target_path: staging.clone() };
            client.node_unstage_volume(&name, unstage).await?;
            std::fs::remove_dir(staging)?;
        }
        Ok(times)
    })
}
