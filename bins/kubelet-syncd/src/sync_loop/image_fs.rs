//! Where the runtime keeps its images: asked once it is ready, and seldom again, for only its operator changes it. Who
//! measures the file system is `kubelet-evictiond`.

use std::time::Duration;

use bulkhead_cri::{CriClient, v1};
use tokio::sync::watch;

use super::runtime_health::RuntimeHealth;

/// Pause after an answer, and after none.
const PAUSE: Duration = Duration::from_secs(600);
const RETRY: Duration = Duration::from_secs(10);

/// Mount point (or folder) of the first image file system. Pure.
fn mountpoint(reply: &v1::ImageFsInfoResponse) -> Option<&str> {
    let path = reply.image_filesystems.first()?.fs_id.as_ref()?.mountpoint.as_str();
    path.starts_with('/').then_some(path)
}

/// Asks for ever.
pub async fn follow(client: CriClient, mut health: watch::Receiver<RuntimeHealth>, answer: watch::Sender<String>) {
    loop {
        if health.wait_for(|health| health.ready).await.is_err() {
            return;
        }
        let pause = match client.image_fs_info(v1::ImageFsInfoRequest {}).await {
            Ok(reply) => {
                let path = mountpoint(&reply).unwrap_or_default();
                answer.send_if_modified(|known| {
                    let changed = known != path;
                    if changed {
                        tracing::info!(path, "file system of the images");
                        path.clone_into(known);
                    }
                    changed
                });
                PAUSE
            }
            Err(error) => {
                tracing::debug!(%error, "file system of the images is not known yet");
                RETRY
            }
        };
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_one_counts() {
        let usage = |mountpoint: &str| v1::FilesystemUsage {
            fs_id: Some(v1::FilesystemIdentifier { mountpoint: mountpoint.to_owned() }),
            ..Default::default()
        };
        let reply =
            |list: Vec<v1::FilesystemUsage>| v1::ImageFsInfoResponse { image_filesystems: list, ..Default::default() };
        assert_eq!(mountpoint(&reply(vec![usage("/images"), usage("/more")])), Some("/images"));
        assert_eq!(mountpoint(&reply(vec![usage("relative")])), None);
        assert_eq!(mountpoint(&reply(vec![v1::FilesystemUsage::default()])), None);
        assert_eq!(mountpoint(&reply(vec![])), None);
    }
}
