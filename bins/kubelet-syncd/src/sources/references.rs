//! API objects that a pod refers to. A static pod must do without the API server, so any of them refuses it (upstream
//! `pkg/api/pod` HasAPIObjectReference, gate PreventStaticPodAPIReferences).

use kubelet_model::v1::{Container, PodSpec, Volume};

use kubelet_model::validation::field::{items, text};

/// The first kind of object that the pod needs, in upstream's wording and order.
pub fn first(spec: &PodSpec) -> Option<&'static str> {
    if !text(&spec.service_account_name).is_empty() {
        return Some("serviceaccounts");
    }
    if uses_secrets(spec) {
        return Some("secrets");
    }
    if uses_config_maps(spec) {
        return Some("configmaps");
    }
    if !items(&spec.resource_claims).is_empty() {
        return Some("resourceclaims");
    }
    items(&spec.volumes).iter().find_map(volume)
}

fn all_containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    items(&spec.init_containers).iter().chain(&spec.containers)
}

fn uses_secrets(spec: &PodSpec) -> bool {
    let named = |name: &str| !name.is_empty();
    let in_env = all_containers(spec).any(|c| {
        items(&c.env_from).iter().filter_map(|e| e.secret_ref.as_ref()).any(|s| named(&s.name))
            || items(&c.env)
                .iter()
                .any(|e| e.value_from.as_ref().and_then(|f| f.secret_key_ref.as_ref()).is_some_and(|s| named(&s.name)))
    });
    in_env
        || items(&spec.image_pull_secrets).iter().any(|s| named(&s.name))
        || items(&spec.volumes).iter().any(|v| {
            let references = [
                v.cephfs.as_ref().and_then(|s| s.secret_ref.as_ref()),
                v.cinder.as_ref().and_then(|s| s.secret_ref.as_ref()),
                v.flex_volume.as_ref().and_then(|s| s.secret_ref.as_ref()),
                v.rbd.as_ref().and_then(|s| s.secret_ref.as_ref()),
                v.scale_io.as_ref().map(|s| &s.secret_ref),
                v.iscsi.as_ref().and_then(|s| s.secret_ref.as_ref()),
                v.storageos.as_ref().and_then(|s| s.secret_ref.as_ref()),
                v.csi.as_ref().and_then(|s| s.node_publish_secret_ref.as_ref()),
            ];
            references.into_iter().flatten().any(|r| named(&r.name))
                || v.azure_file.as_ref().is_some_and(|a| named(&a.secret_name))
                || v.secret.as_ref().is_some_and(|s| named(text(&s.secret_name)))
                || v.projected
                    .iter()
                    .flat_map(|p| items(&p.sources))
                    .any(|s| s.secret.as_ref().is_some_and(|s| named(&s.name)))
        })
}

fn uses_config_maps(spec: &PodSpec) -> bool {
    let named = |name: &str| !name.is_empty();
    all_containers(spec).any(|c| {
        items(&c.env_from).iter().filter_map(|e| e.config_map_ref.as_ref()).any(|m| named(&m.name))
            || items(&c.env).iter().any(|e| {
                e.value_from.as_ref().and_then(|f| f.config_map_key_ref.as_ref()).is_some_and(|m| named(&m.name))
            })
    }) || items(&spec.volumes).iter().any(|v| {
        v.config_map.as_ref().is_some_and(|m| named(&m.name))
            || v.projected
                .iter()
                .flat_map(|p| items(&p.sources))
                .any(|s| s.config_map.as_ref().is_some_and(|m| named(&m.name)))
    })
}

fn volume(volume: &Volume) -> Option<&'static str> {
    if volume.csi.is_some() {
        return Some("csidrivers (via CSI volumes)");
    }
    if volume.glusterfs.is_some() {
        return Some("endpoints (via glusterFS volumes)");
    }
    if volume.persistent_volume_claim.is_some() {
        return Some("persistentvolumeclaims");
    }
    if volume.ephemeral.is_some() {
        return Some("persistentvolumeclaims (via ephemeral volumes)");
    }
    volume.projected.iter().flat_map(|p| items(&p.sources)).find_map(|source| {
        if source.service_account_token.is_some() {
            Some("serviceaccounts (via projected volumes)")
        } else if source.cluster_trust_bundle.is_some() {
            Some("clustertrustbundles")
        } else if source.pod_certificate.is_some() {
            Some("podcertificates")
        } else if source.downward_api.is_none() && source.secret.is_none() && source.config_map.is_none() {
            // Upstream knows no such source either and refuses it.
            Some("an unknown projected volume source")
        } else {
            None
        }
    })
}
