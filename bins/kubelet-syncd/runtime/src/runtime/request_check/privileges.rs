//! Privileged, capabilities, no_new_privs and the root file system: never more than the spec.

use std::collections::HashSet;

use bulkhead_cri::v1;
use k8s_openapi::api::core::v1::SecurityContext;

use super::{Checked, RequestContext, Starting, must};

/// `CAP_net_admin` and `NET_ADMIN` are one to the runtime.
fn plain(name: &str) -> String {
    let name = name.to_ascii_uppercase();
    name.strip_prefix("CAP_").map_or_else(|| name.clone(), str::to_owned)
}

fn all_plain(list: &[String]) -> HashSet<String> {
    list.iter().map(|name| plain(name)).collect()
}

pub(super) fn container(starting: &Starting<'_>, asked: &v1::LinuxContainerSecurityContext) -> Checked {
    let own = starting.context();
    must(!asked.privileged || own.privileged == Some(true), "privileged", asked.privileged, "false")?;
    let may_escalate = own.allow_privilege_escalation != Some(false);
    must(may_escalate || asked.no_new_privs, "no_new_privs", asked.no_new_privs, "true")?;
    let read_only = own.read_only_root_filesystem == Some(true);
    must(!read_only || asked.readonly_rootfs, "readonly_rootfs", asked.readonly_rootfs, "true")?;
    capabilities(&own, &asked.capabilities.clone().unwrap_or_default())
}

fn capabilities(own: &SecurityContext, asked: &v1::Capability) -> Checked {
    let wanted = own.capabilities.clone().unwrap_or_default();
    let (add, drop) = (wanted.add.unwrap_or_default(), wanted.drop.unwrap_or_default());
    let may_add = all_plain(&add);
    let more = asked.add_capabilities.iter().find(|name| !may_add.contains(&plain(name)) && !may_add.contains("ALL"));
    must(more.is_none(), "add_capabilities", more, format!("{add:?}"))?;
    let dropped = all_plain(&asked.drop_capabilities);
    let kept = drop.iter().find(|name| !dropped.contains(&plain(name)));
    let missing = || format!("without {}", kept.map(String::as_str).unwrap_or_default());
    must(kept.is_none(), "drop_capabilities", missing(), format!("{drop:?}"))?;
    let ambient = &asked.add_ambient_capabilities;
    must(ambient.is_empty(), "add_ambient_capabilities", ambient, "none")
}

pub(super) fn sandbox(known: &RequestContext<'_>, asked: &v1::LinuxSandboxSecurityContext) -> Checked {
    let privileged = |context: Option<&SecurityContext>| context.is_some_and(|c| c.privileged == Some(true));
    let any = known.pod.spec.as_ref().is_some_and(|spec| {
        spec.containers.iter().any(|c| privileged(c.security_context.as_deref()))
            || spec.init_containers.iter().flatten().any(|c| privileged(c.security_context.as_deref()))
            || spec.ephemeral_containers.iter().flatten().any(|c| privileged(c.security_context.as_ref()))
    });
    must(!asked.privileged || any, "sandbox.privileged", asked.privileged, "false, no container is")
}
