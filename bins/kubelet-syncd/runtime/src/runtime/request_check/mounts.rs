//! Mounts: each has to be one of the container's `volumeMounts`, showing that volume and no other place of the machine, or
//! a file that the node keeps for the pod; never wider or more writable than the spec has it.

use std::path::Path;

use bulkhead_cri::v1;
use bulkhead_cri::v1::MountPropagation;
use k8s_openapi::api::core::v1::VolumeMount;
use kubelet_model::pod::spec::is_migrated;
use kubelet_model::v1::Volume;

use super::namespaces::mapping;
use super::{Checked, RequestContext, Starting, must};

pub(super) fn container(known: &RequestContext<'_>, starting: &Starting<'_>, asked: &[v1::Mount]) -> Checked {
    let mut free: Vec<(usize, &VolumeMount)> = starting.container.volume_mounts.iter().flatten().enumerate().collect();
    let (mut hosts, mut message) = (false, false);
    let mut given = starting.options.mounts.iter();
    for mount in asked {
        // Those of the allocation record come first, as they were given.
        if given.clone().next().is_some_and(|given| is_given(given, mount)) {
            given.next();
            mapping(known, "mounts.uid_mappings", &mount.uid_mappings)?;
            mapping(known, "mounts.gid_mappings", &mount.gid_mappings)?;
            continue;
        }
        let wanted = free.iter().position(|(_, wanted)| is_at(&wanted.mount_path, &mount.container_path));
        if let Some(place) = wanted {
            let (index, wanted) = free.remove(place);
            of_volume(known, starting, index, wanted, mount)?;
        } else if mount.container_path == "/etc/hosts" && !std::mem::replace(&mut hosts, true) {
            let file = known.folder().join("etc-hosts");
            must(Path::new(&mount.host_path) == file, "mounts.host_path", &mount.host_path, text(&file))?;
            plain(mount)?;
        } else if is_message(starting, &mount.container_path) && !std::mem::replace(&mut message, true) {
            let folder = known.folder().join("containers").join(&starting.container.name);
            let fits = is_directly_in(&mount.host_path, &folder);
            must(fits, "mounts.host_path", &mount.host_path, format!("a file in {}", text(&folder)))?;
            plain(mount)?;
        } else {
            let allowed = "those of volumeMounts, /etc/hosts and the termination message";
            must(false, "mounts.container_path", &mount.container_path, allowed)?;
        }
        mapping(known, "mounts.uid_mappings", &mount.uid_mappings)?;
        mapping(known, "mounts.gid_mappings", &mount.gid_mappings)?;
    }
    Ok(())
}

/// The same but for the users of the pod, which are looked at apart.
fn is_given(given: &v1::Mount, asked: &v1::Mount) -> bool {
    let of = |mount: &v1::Mount| v1::Mount { uid_mappings: Vec::new(), gid_mappings: Vec::new(), ..mount.clone() };
    of(given) == of(asked)
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// A path that is not absolute is taken from the root.
fn is_at(wanted: &str, asked: &str) -> bool {
    asked.starts_with('/') && asked.strip_prefix('/') == Some(wanted.strip_prefix('/').unwrap_or(wanted))
}

fn is_message(starting: &Starting<'_>, asked: &str) -> bool {
    let wanted = starting.container.termination_message_path.as_deref().unwrap_or_default();
    !wanted.is_empty() && is_at(wanted, asked)
}

/// Nothing beside the file itself.
fn plain(mount: &v1::Mount) -> Checked {
    must(mount.image.is_none(), "mounts.image", &mount.image_sub_path, "none")?;
    let private = i32::from(MountPropagation::PropagationPrivate);
    must(mount.propagation == private, "mounts.propagation", mount.propagation, "private")
}

fn is_directly_in(path: &str, folder: &Path) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    !matches!(name, "" | "." | "..") && folder.join(name).to_str() == Some(path)
}

fn is_below(path: &str, folder: &Path) -> bool {
    let below = Path::new(path).strip_prefix(folder).is_ok_and(|rest| rest.components().next().is_some());
    below && path.split('/').all(|part| !matches!(part, "." | ".."))
}

fn of_volume(
    known: &RequestContext<'_>,
    starting: &Starting<'_>,
    index: usize,
    wanted: &VolumeMount,
    mount: &v1::Mount,
) -> Checked {
    let volumes = known.pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    let volume = volumes.iter().find(|volume| volume.name == wanted.name);
    must(volume.is_some(), "mounts.container_path", &mount.container_path, "those of the pod's volumes")?;
    let Some(volume) = volume else { return Ok(()) };
    let part = has_text(&wanted.sub_path) || has_text(&wanted.sub_path_expr);
    match &volume.image {
        Some(source) => {
            must(mount.host_path.is_empty(), "mounts.host_path", &mount.host_path, "none, the volume is an image")?;
            let image = mount.image.clone().unwrap_or_default();
            let reference = source.reference.clone().unwrap_or_default();
            must(mount.image.is_some(), "mounts.image", (), &*reference)?;
            let named = [&image.user_specified_image, &image.image].contains(&&reference);
            must(named, "mounts.image", &image.user_specified_image, &*reference)?;
            let whole = mount.image_sub_path.is_empty();
            must(whole != part, "mounts.image_sub_path", &mount.image_sub_path, "the part that the mount names")?;
        }
        None => {
            must(mount.image.is_none(), "mounts.image", (), "none, the volume is no image")?;
            let (fits, allowed) = if part {
                part_of(known, volume, &starting.container.name, index, &mount.host_path)
            } else {
                whole(known, volume, &mount.host_path)
            };
            must(fits, "mounts.host_path", &mount.host_path, allowed)?;
        }
    }
    if volume.host_path.is_some() || known.runtime.claimed_paths.contains_key(&volume.name) {
        must(!mount.selinux_relabel, "mounts.selinux_relabel", true, "false, the files are the machine's")?;
    }
    let read_only = wanted.read_only == Some(true) || is_read_only(volume);
    must(!read_only || mount.readonly, "mounts.readonly", mount.readonly, "true")?;
    let deep = match wanted.recursive_read_only.as_deref() {
        Some("Enabled") => true,
        Some("IfPossible") => known.runtime.features.recursive_read_only_mounts,
        _ => false,
    };
    must(!deep || mount.recursive_read_only, "mounts.recursive_read_only", mount.recursive_read_only, "true")?;
    let widest = match wanted.mount_propagation.as_deref() {
        Some("Bidirectional") => MountPropagation::PropagationBidirectional,
        Some("HostToContainer") => MountPropagation::PropagationHostToContainer,
        _ => MountPropagation::PropagationPrivate,
    };
    let widest = i32::from(widest);
    must((0..=widest).contains(&mount.propagation), "mounts.propagation", mount.propagation, widest.to_string())
}

fn has_text(text: &Option<String>) -> bool {
    text.as_ref().is_some_and(|text| !text.is_empty())
}

/// Whether a path is where the whole volume is, and where that is.
fn whole(known: &RequestContext<'_>, volume: &Volume, path: &str) -> (bool, String) {
    if let Some(source) = &volume.host_path {
        return (path == source.path, source.path.clone());
    }
    if let Some(claimed) = known.runtime.claimed_paths.get(&volume.name) {
        return (claimed.to_str() == Some(path), text(claimed));
    }
    let folder = known.folder().join("volumes");
    let kinds = [
        (volume.empty_dir.is_some(), "empty-dir"),
        (volume.config_map.is_some(), "configmap"),
        (volume.secret.is_some(), "secret"),
        (volume.projected.is_some(), "projected"),
        (volume.downward_api.is_some(), "downward-api"),
        (volume.nfs.is_some(), "nfs"),
    ];
    match kinds.into_iter().find(|(is, _)| *is) {
        Some((_, kind)) => {
            let place = folder.join(format!("kubernetes.io~{kind}")).join(&volume.name);
            (Path::new(path) == place, text(&place))
        }
        // What a driver mounts bears a name of its own.
        None => (is_below(path, &folder), format!("a folder below {}", text(&folder))),
    }
}

/// Whether a path is where a part of a volume is bound for this mount. A claim's folder is named by its PersistentVolume, that of an
/// in-tree kind by the driver that serves it.
fn part_of(known: &RequestContext<'_>, volume: &Volume, container: &str, index: usize, path: &str) -> (bool, String) {
    let folder = known.folder().join("volume-subpaths");
    let of = |name: &str| folder.join(name).join(container).join(index.to_string());
    let has_another_name =
        volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some() || is_migrated(volume);
    if !has_another_name {
        let place = of(&volume.name);
        return (Path::new(path) == place, text(&place));
    }
    let name = Path::new(path).strip_prefix(&folder).ok().and_then(|rest| rest.iter().next()?.to_str());
    let fits = name.is_some_and(|name| name != ".." && of(name).to_str() == Some(path));
    (fits, text(&of("*")))
}

/// Nobody may write there, whatever the mount says.
fn is_read_only(volume: &Volume) -> bool {
    let made_here = volume.config_map.is_some()
        || volume.secret.is_some()
        || volume.projected.is_some()
        || volume.downward_api.is_some()
        || volume.image.is_some();
    let claimed = volume.persistent_volume_claim.as_ref().and_then(|claim| claim.read_only) == Some(true);
    let inline = volume.csi.as_ref().and_then(|csi| csi.read_only) == Some(true);
    let export = volume.nfs.as_ref().and_then(|nfs| nfs.read_only) == Some(true);
    made_here || claimed || inline || export
}
