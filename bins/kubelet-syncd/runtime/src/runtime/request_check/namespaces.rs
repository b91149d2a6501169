//! Namespaces: the machine's only where the spec says so, another container's only for an ephemeral one that names it, and
//! the pod's own users where it does not want the machine's.

use bulkhead_cri::v1;
use bulkhead_cri::v1::NamespaceMode;

use super::{Checked, RequestContext, Starting, must};

pub(super) fn container(
    known: &RequestContext<'_>,
    starting: &Starting<'_>,
    asked: &v1::LinuxContainerSecurityContext,
) -> Checked {
    let asked = asked.namespace_options.clone();
    must(asked.is_some(), "namespace_options", (), "those of the spec")?;
    let asked = asked.unwrap_or_default();
    shared(known, &asked)?;
    if asked.pid != i32::from(NamespaceMode::Target) {
        return must(asked.target_id.is_empty(), "target_id", &asked.target_id, "none");
    }
    let is_ephemeral =
        known.pod.spec.as_ref().and_then(|spec| spec.ephemeral_containers.as_ref()).is_some_and(|list| {
            list.iter().any(|c| c.name == starting.container.name && c.target_container_name.is_some())
        });
    let fits = is_ephemeral && !asked.target_id.is_empty() && starting.target == Some(asked.target_id.as_str());
    must(fits, "target_id", &asked.target_id, "the container that targetContainerName names")
}

pub(super) fn sandbox(known: &RequestContext<'_>, asked: &v1::LinuxSandboxSecurityContext) -> Checked {
    match &asked.namespace_options {
        Some(asked) => {
            shared(known, asked)?;
            let targets = asked.pid == i32::from(NamespaceMode::Target) || !asked.target_id.is_empty();
            must(!targets, "sandbox.target_id", &asked.target_id, "none")
        }
        // Left out, every namespace is the pod's, but for users.
        None => must(known.runtime.users.is_none(), "sandbox.namespace_options", (), "users of the pod's own"),
    }
}

fn shared(known: &RequestContext<'_>, asked: &v1::NamespaceOption) -> Checked {
    let spec = known.pod.spec.as_ref();
    let is = |value: Option<bool>| value == Some(true);
    let node = i32::from(NamespaceMode::Node);
    let host_network = is(spec.and_then(|s| s.host_network));
    must(asked.network != node || host_network, "network", "the machine's", "the pod's own")?;
    let host_ipc = is(spec.and_then(|s| s.host_ipc));
    must(asked.ipc != node || host_ipc, "ipc", "the machine's", "the pod's own")?;
    let host_pid = is(spec.and_then(|s| s.host_pid));
    must(asked.pid != node || host_pid, "pid", "the machine's", "the container's own")?;
    let shares = host_pid || is(spec.and_then(|s| s.share_process_namespace));
    must(asked.pid != i32::from(NamespaceMode::Pod) || shares, "pid", "the pod's", "the container's own")?;
    users(known, asked.userns_options.as_ref())
}

fn users(known: &RequestContext<'_>, asked: Option<&v1::UserNamespace>) -> Checked {
    let wants_own = known.pod.spec.as_ref().and_then(|s| s.host_users) == Some(false);
    let has_own = asked.is_some_and(|users| users.mode == i32::from(NamespaceMode::Pod));
    must(!wants_own || has_own, "userns_options", "the machine's", "the pod's own, because hostUsers is false")?;
    for ids in asked.into_iter().flat_map(|users| [&users.uids, &users.gids]) {
        mapping(known, "userns_options", ids)?;
    }
    Ok(())
}

/// The ids of a namespace, or those that a mount is shown with: exactly the pod's block, where it has one.
pub(super) fn mapping(known: &RequestContext<'_>, field: &'static str, asked: &[v1::IdMapping]) -> Checked {
    let ids: Vec<_> = asked.iter().map(|ids| (ids.container_id, ids.host_id, ids.length)).collect();
    match known.runtime.users {
        None => must(ids.is_empty(), field, ids, "none"),
        Some(block) => {
            // Root of the machine is in nobody's block.
            let wanted = vec![(0, block.first, block.length)];
            must(ids == wanted && block.first > 0, field, ids, format!("{wanted:?}"))
        }
    }
}
