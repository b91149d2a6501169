//! A second opinion on what is asked of the runtime: a request that grants a pod more than its spec says is refused before
//! it is sent.
//!
//! Nothing here calls what builds the requests (`security`, `container_config`, `sandbox_config`, `resources`): the rules
//! are written a second time, from the spec's side, so that one mistake does not pass twice. A request may grant less than
//! the spec, never more; what has no more or less (a user, a profile, a path) has to be the same. Decision 18 says what is
//! covered.

mod confinement;
mod devices;
mod environment;
mod mounts;
mod namespaces;
mod place;
mod privileges;
mod resources;
mod users;

use std::path::PathBuf;

use bulkhead_cri::v1;
use k8s_openapi::api::core::v1::{PodSecurityContext, SecurityContext};
use kubelet_model::v1::{Container, Pod};
use prometheus::{IntCounterVec, Opts};

use super::pod_runtime::PodRuntime;
use super::run_options::RunContainerOptions;
use super::security::ImageUser;
use kubelet_model::node_facts::NodeFacts;
use kubelet_model::pod::spec::PodIdentity;

/// What a request asks for and must not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("refused to ask the runtime for more than the pod's spec allows: {field} is {asked}, allowed: {allowed}")]
pub struct Refusal {
    /// The request's field, from a fixed list.
    pub field: &'static str,
    pub asked: String,
    pub allowed: String,
}

/// Requests that were refused, by call and field; to be registered once.
///
/// # Errors
/// Never for this name and these labels.
pub fn counter() -> Result<IntCounterVec, prometheus::Error> {
    let help = "Requests to the runtime that were not sent because they granted more than the pod's spec.";
    IntCounterVec::new(Opts::new("bulkhead_refused_cri_requests_total", help), &["call", "field"])
}

/// What is known of a pod beside the request.
#[derive(Debug, Clone, Copy)]
pub struct RequestContext<'a> {
    pub pod: &'a Pod,
    pub identity: &'a PodIdentity,
    pub facts: &'a NodeFacts,
    /// The pod's cgroup as volnetd made it. Empty: pods have none.
    pub cgroup_parent: &'a str,
    pub runtime: &'a PodRuntime,
}

/// What is known of one start of a container.
#[derive(Debug, Clone, Copy)]
pub struct Starting<'a> {
    pub container: &'a Container,
    /// Asked of the runtime for this start.
    pub image_user: &'a ImageUser,
    /// The record of what was allocated to it.
    pub options: &'a RunContainerOptions,
    /// The container whose processes an ephemeral one may see, by the runtime's id.
    pub target: Option<&'a str>,
}

type Checked = Result<(), Refusal>;

/// Err unless `fits`.
fn must(fits: bool, field: &'static str, asked: impl std::fmt::Debug, allowed: impl Into<String>) -> Checked {
    if fits { Ok(()) } else { Err(Refusal { field, asked: format!("{asked:?}"), allowed: allowed.into() }) }
}

/// Checks RunPodSandbox.
///
/// # Errors
/// The first thing that is too much.
pub fn sandbox(known: &RequestContext<'_>, config: &v1::PodSandboxConfig, handler: &str) -> Checked {
    place::handler(known, handler)?;
    sandbox_config(known, config)
}

/// Checks CreateContainer.
///
/// # Errors
/// The first thing that is too much.
pub fn container(
    known: &RequestContext<'_>,
    starting: &Starting<'_>,
    config: &v1::ContainerConfig,
    in_sandbox: &v1::PodSandboxConfig,
) -> Checked {
    sandbox_config(known, in_sandbox)?;
    place::container(known, starting, config)?;
    let linux = config.linux.clone().unwrap_or_default();
    let context = linux.security_context.unwrap_or_default();
    users::container(known, starting, &context)?;
    privileges::container(starting, &context)?;
    confinement::container(known, starting, &context)?;
    namespaces::container(known, starting, &context)?;
    mounts::container(known, starting, &config.mounts)?;
    devices::container(known, starting, config)?;
    environment::container(known, starting, config)?;
    resources::container(known, starting, &linux.resources.unwrap_or_default())
}

fn sandbox_config(known: &RequestContext<'_>, config: &v1::PodSandboxConfig) -> Checked {
    place::sandbox(known, config)?;
    let linux = config.linux.clone().unwrap_or_default();
    let context = linux.security_context.unwrap_or_default();
    users::sandbox(known, &context)?;
    privileges::sandbox(known, &context)?;
    confinement::sandbox(known, &context)?;
    namespaces::sandbox(known, &context)
}

impl RequestContext<'_> {
    fn context(&self) -> PodSecurityContext {
        self.pod.spec.as_ref().and_then(|spec| spec.security_context.clone()).unwrap_or_default()
    }

    /// `<root-dir>/pods/<uid>`.
    fn folder(&self) -> PathBuf {
        self.facts.pods_dir.join(self.identity.uid.as_str())
    }
}

impl Starting<'_> {
    fn context(&self) -> SecurityContext {
        self.container.security_context.as_deref().cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod mutations;
#[cfg(test)]
mod setup;
#[cfg(test)]
mod tests;
