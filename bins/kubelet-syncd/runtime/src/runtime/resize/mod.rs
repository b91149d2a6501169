//! Carrying out a resize that was granted: which containers of a pod have something else than what they were granted
//! ([`plan`]), in which order pod and containers change ([`steps`]), and doing it ([`act`]).
//! Upstream: `pkg/kubelet/kuberuntime/kuberuntime_manager.go`, computePodResizeAction and doPodResizeAction.

pub mod act;
pub mod plan;
pub mod steps;

pub use plan::{ContainerUpdate, Resize, Size, plan};

/// No pod was ever resized, for tests of everything else.
#[cfg(any(test, feature = "fixtures"))]
#[derive(Debug)]
pub struct NoResizer;

#[cfg(any(test, feature = "fixtures"))]
impl act::Resizer for NoResizer {
    fn actuated(&self) -> Option<crate::allocation::PodResources> {
        None
    }
    fn gates(&self) -> crate::allocation::Gates {
        crate::allocation::Gates::default()
    }
    fn making(&self, _: &kubelet_model::v1::Container) -> std::io::Result<()> {
        Ok(())
    }
    fn resize<'a>(
        &'a self,
        _: &'a Resize,
        _: &'a bulkhead_types::SandboxId,
    ) -> futures_util::future::BoxFuture<'a, Result<(), crate::runtime::result::ActionError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
