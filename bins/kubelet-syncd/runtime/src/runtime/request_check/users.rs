//! User and groups: exactly the spec's, else the image's; never root where the spec forbids it.

use std::collections::BTreeSet;

use bulkhead_cri::v1;

use super::{Checked, RequestContext, Starting, must};

fn value(asked: &Option<v1::Int64Value>) -> Option<i64> {
    asked.as_ref().map(|asked| asked.value)
}

fn or_nobody(id: Option<i64>) -> String {
    id.map_or_else(|| "none".to_owned(), |id| id.to_string())
}

pub(super) fn container(
    known: &RequestContext<'_>,
    starting: &Starting<'_>,
    asked: &v1::LinuxContainerSecurityContext,
) -> Checked {
    let (own, pod, image) = (starting.context(), known.context(), starting.image_user);
    let uid = value(&asked.run_as_user);
    let named = asked.run_as_username.as_str();
    if own.run_as_non_root.or(pod.run_as_non_root) == Some(true) {
        // The runtime would look a name up in the image, where it may be root's.
        must(named.is_empty(), "run_as_username", named, "a user by number, because of runAsNonRoot")?;
        must(uid.is_some_and(|uid| uid > 0), "run_as_user", uid, "any but root, because of runAsNonRoot")?;
    }
    match (own.run_as_user.or(pod.run_as_user), image.uid) {
        (Some(wanted), _) | (None, Some(wanted)) => {
            must(uid == Some(wanted), "run_as_user", uid, wanted.to_string())?;
            must(named.is_empty(), "run_as_username", named, "none beside a number")?;
        }
        (None, None) if image.username.is_empty() => {
            must(uid == Some(0), "run_as_user", uid, "0, the image names no user")?;
            must(named.is_empty(), "run_as_username", named, "none beside a number")?;
        }
        (None, None) => {
            must(uid.is_none(), "run_as_user", uid, format!("user {:?} of the image", image.username))?;
            must(named == image.username, "run_as_username", named, format!("{:?}, the image's", image.username))?;
        }
    }
    let group = value(&asked.run_as_group);
    let wanted = own.run_as_group.or(pod.run_as_group);
    must(group == wanted, "run_as_group", group, or_nobody(wanted))?;
    groups(known, &asked.supplemental_groups, asked.supplemental_groups_policy)
}

pub(super) fn sandbox(known: &RequestContext<'_>, asked: &v1::LinuxSandboxSecurityContext) -> Checked {
    let pod = known.context();
    let (uid, group) = (value(&asked.run_as_user), value(&asked.run_as_group));
    must(uid == pod.run_as_user, "sandbox.run_as_user", uid, or_nobody(pod.run_as_user))?;
    must(group == pod.run_as_group, "sandbox.run_as_group", group, or_nobody(pod.run_as_group))?;
    groups(known, &asked.supplemental_groups, asked.supplemental_groups_policy)
}

fn groups(known: &RequestContext<'_>, asked: &[i64], policy: i32) -> Checked {
    let pod = known.context();
    let mut allowed: BTreeSet<i64> = pod.supplemental_groups.into_iter().flatten().collect();
    allowed.extend(pod.fs_group);
    allowed.extend(&known.runtime.volume_groups);
    let more = asked.iter().find(|group| !allowed.contains(group));
    must(more.is_none(), "supplemental_groups", more, format!("{allowed:?}"))?;
    let strict = pod.supplemental_groups_policy.as_deref() == Some("Strict");
    let is_strict = policy == i32::from(v1::SupplementalGroupsPolicy::Strict);
    must(!strict || is_strict, "supplemental_groups_policy", policy, "Strict")
}
