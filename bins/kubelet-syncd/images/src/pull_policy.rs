//! When an image is pulled: `imagePullPolicy`.

use kubelet_model::pod::image_reference;

/// `imagePullPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

impl PullPolicy {
    /// From the pod; where it says nothing, `latest` means Always and everything else IfNotPresent.
    pub fn of(given: Option<&str>, image: &str) -> Self {
        match given {
            Some("Always") => PullPolicy::Always,
            Some("IfNotPresent") => PullPolicy::IfNotPresent,
            Some("Never") => PullPolicy::Never,
            _ if image_reference::is_latest(image) => PullPolicy::Always,
            _ => PullPolicy::IfNotPresent,
        }
    }
}
