//! Where the runtime keeps its images: asked once it is ready, and seldom again, for only its operator changes it. Who
//! measures the file system is `kubelet-evictiond`.

use bulkhead_cri::{CriClient, CriError, v1};
use tokio::sync::watch;

use super::runtime_health::RuntimeHealth;
use super::runtime_settings::Question;

/// Mount point (or folder) of the first image file system. Pure.
fn mountpoint(reply: &v1::ImageFsInfoResponse) -> Option<&str> {
    let path = reply.image_filesystems.first()?.fs_id.as_ref()?.mountpoint.as_str();
    path.starts_with('/').then_some(path)
}

/// Asked of the runtime.
#[derive(Debug)]
pub struct ImageFs {
    pub client: CriClient,
    pub health: watch::Receiver<RuntimeHealth>,
}

impl Question for ImageFs {
    const WHAT: &'static str = "file system of the images";

    async fn is_ready(&mut self) -> bool {
        self.health.wait_for(|health| health.ready).await.is_ok()
    }

    async fn ask(&self) -> Result<Option<String>, CriError> {
        let reply = self.client.image_fs_info(v1::ImageFsInfoRequest {}).await?;
        Ok(Some(mountpoint(&reply).unwrap_or_default().to_owned()))
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
