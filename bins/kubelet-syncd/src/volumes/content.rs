//! Volumes whose files come from the API: configMap, secret, downwardAPI, and projected, which is any number of those
//! and tokens. What one is made of, as the pod says it.

use bulkhead_ipc::volnetd::ContentPlugin;
use k8s_openapi::api::core::v1::{
    ClusterTrustBundleProjection, DownwardAPIVolumeFile, KeyToPath, PodCertificateProjection, ProjectedVolumeSource,
    ServiceAccountTokenProjection, VolumeProjection,
};
use kubelet_model::v1::{Pod, Volume};

use super::paths::{PathError, nested_mount_points};
use kubelet_model::objects::TokenWanted;
use kubelet_model::objects::certificates::{Anchors, CertificateWanted, TrustBundleWanted};
use kubelet_model::objects::named_objects::ObjectReferences;

/// Lifetime that a token gets which says none, seconds (the API's default).
const TOKEN_SECONDS: i64 = 3600;

/// A volume with files from the API.
#[derive(Debug, Clone, PartialEq)]
pub struct Content {
    pub plugin: ContentPlugin,
    /// Permission bits of files that say none.
    pub default_mode: Option<i32>,
    /// Later ones win where they name the same file.
    pub sources: Vec<Source>,
    /// Group that gets to read the files.
    pub fs_group: Option<i64>,
    /// The user that all containers run as, who owns tokens; None when they differ or one does not say.
    pub fs_user: Option<i64>,
    /// Folders for the mounts below the volume.
    pub nested: Result<Vec<String>, PathError>,
    /// Bytes; 0 is no limit.
    pub size_limit: u64,
}

/// One of the things that a volume shows.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    ConfigMap(Keys),
    Secret(Keys),
    DownwardApi(Vec<DownwardAPIVolumeFile>),
    Token { wanted: TokenWanted, path: String },
    TrustBundle { wanted: TrustBundleWanted, path: String },
    Certificate { wanted: CertificateWanted, paths: CertificatePaths },
}

/// Where a pod's key and certificates are shown; empty: nowhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificatePaths {
    /// The key, then the chain.
    pub bundle: String,
    pub key: String,
    pub chain: String,
}

/// Keys of an object as files: those that are named, or all.
#[derive(Debug, Clone, PartialEq)]
pub struct Keys {
    pub name: String,
    pub items: Vec<KeyToPath>,
    pub optional: bool,
}

impl Keys {
    fn new(name: &str, items: Option<&Vec<KeyToPath>>, optional: Option<bool>) -> Self {
        let (name, items) = (name.to_owned(), items.cloned().unwrap_or_default());
        Keys { name, items, optional: optional == Some(true) }
    }
}

impl Content {
    /// What the volume is made of; None when it is of another kind. `memory`: bytes, bounds what is kept in memory.
    pub fn of(pod: &Pod, volume: &Volume, memory: u64) -> Option<Self> {
        let (plugin, default_mode, sources) = if let Some(v) = &volume.config_map {
            let keys = Keys::new(&v.name, v.items.as_ref(), v.optional);
            (ContentPlugin::ConfigMap, v.default_mode, vec![Source::ConfigMap(keys)])
        } else if let Some(v) = &volume.secret {
            let keys = Keys::new(v.secret_name.as_deref().unwrap_or_default(), v.items.as_ref(), v.optional);
            (ContentPlugin::Secret, v.default_mode, vec![Source::Secret(keys)])
        } else if let Some(v) = &volume.downward_api {
            let items = v.items.clone().unwrap_or_default();
            (ContentPlugin::DownwardApi, v.default_mode, vec![Source::DownwardApi(items)])
        } else if let Some(v) = &volume.projected {
            (ContentPlugin::Projected, v.default_mode, projected(pod, &volume.name, v))
        } else {
            return None;
        };
        Some(Content {
            plugin,
            default_mode,
            sources,
            fs_group: fs_group(pod),
            fs_user: fs_user(pod),
            nested: nested_mount_points(pod, &volume.name),
            // The only one that lies on the disk.
            size_limit: if plugin == ContentPlugin::ConfigMap { 0 } else { memory },
        })
    }

    /// The name of upstream's plugin.
    pub fn plugin_name(&self) -> &'static str {
        match self.plugin {
            ContentPlugin::ConfigMap => "kubernetes.io/configmap",
            ContentPlugin::Secret => "kubernetes.io/secret",
            ContentPlugin::DownwardApi => "kubernetes.io/downward-api",
            ContentPlugin::Projected | ContentPlugin::Unspecified => "kubernetes.io/projected",
        }
    }

    /// The API's name of the kind.
    pub fn kind(&self) -> &'static str {
        match self.plugin {
            ContentPlugin::ConfigMap => "configMap",
            ContentPlugin::Secret => "secret",
            ContentPlugin::DownwardApi => "downwardAPI",
            ContentPlugin::Projected | ContentPlugin::Unspecified => "projected",
        }
    }

    /// Adds what has to be asked for before the files can be made.
    pub fn add_wanted(&self, wanted: &mut ObjectReferences) {
        for source in &self.sources {
            match source {
                Source::ConfigMap(keys) => {
                    wanted.config_maps.insert(keys.name.clone());
                }
                Source::Secret(keys) => {
                    wanted.secrets.insert(keys.name.clone());
                }
                Source::Token { wanted: token, .. } => {
                    wanted.tokens.insert(token.clone());
                }
                Source::TrustBundle { wanted: bundle, .. } => {
                    wanted.trust_bundles.insert(bundle.key(), bundle.clone());
                }
                Source::Certificate { wanted: certificate, .. } => {
                    wanted.certificates.insert(certificate.clone());
                }
                Source::DownwardApi(_) => {}
            }
        }
    }
}

fn projected(pod: &Pod, name: &str, volume: &ProjectedVolumeSource) -> Vec<Source> {
    let sources = volume.sources.iter().flatten().enumerate();
    sources.filter_map(|(index, source)| projection(pod, (name, index), source)).collect()
}

fn projection(pod: &Pod, place: (&str, usize), source: &VolumeProjection) -> Option<Source> {
    Some(if let Some(s) = &source.secret {
        Source::Secret(Keys::new(&s.name, s.items.as_ref(), s.optional))
    } else if let Some(c) = &source.config_map {
        Source::ConfigMap(Keys::new(&c.name, c.items.as_ref(), c.optional))
    } else if let Some(d) = &source.downward_api {
        Source::DownwardApi(d.items.clone().unwrap_or_default())
    } else if let Some(token) = &source.service_account_token {
        Source::Token { wanted: token_wanted(pod, token), path: token.path.clone() }
    } else if let Some(bundle) = &source.cluster_trust_bundle {
        Source::TrustBundle { wanted: trust_bundle_wanted(bundle), path: bundle.path.clone() }
    } else if let Some(certificate) = &source.pod_certificate {
        let path = |path: &Option<String>| path.clone().unwrap_or_default();
        let paths = CertificatePaths {
            bundle: path(&certificate.credential_bundle_path),
            key: path(&certificate.key_path),
            chain: path(&certificate.certificate_chain_path),
        };
        Source::Certificate { wanted: certificate_wanted(pod, place, certificate), paths }
    } else {
        return None;
    })
}

fn token_wanted(pod: &Pod, token: &ServiceAccountTokenProjection) -> TokenWanted {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    TokenWanted {
        namespace: text(&pod.metadata.namespace),
        service_account: pod.spec.as_ref().map(|s| text(&s.service_account_name)).unwrap_or_default(),
        service_account_uid: None,
        audiences: token.audience.clone().filter(|a| !a.is_empty()).into_iter().collect(),
        expiration_seconds: token.expiration_seconds.unwrap_or(TOKEN_SECONDS),
        pod_name: text(&pod.metadata.name),
        pod_uid: text(&pod.metadata.uid),
    }
}

fn trust_bundle_wanted(bundle: &ClusterTrustBundleProjection) -> TrustBundleWanted {
    let anchors = match &bundle.name {
        Some(name) => Anchors::Named(name.clone()),
        None => Anchors::OfSigner {
            signer: bundle.signer_name.clone().unwrap_or_default(),
            selector: bundle.label_selector.clone(),
        },
    };
    TrustBundleWanted { anchors, optional: bundle.optional == Some(true) }
}

fn certificate_wanted(
    pod: &Pod,
    (volume, index): (&str, usize),
    certificate: &PodCertificateProjection,
) -> CertificateWanted {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    CertificateWanted {
        namespace: text(&pod.metadata.namespace),
        pod_name: text(&pod.metadata.name),
        pod_uid: text(&pod.metadata.uid),
        volume: volume.to_owned(),
        index,
        service_account: pod.spec.as_ref().map(|spec| text(&spec.service_account_name)).unwrap_or_default(),
        signer: certificate.signer_name.clone(),
        key_type: certificate.key_type.clone(),
        max_expiration_seconds: certificate.max_expiration_seconds,
        annotations: certificate.user_annotations.clone().unwrap_or_default(),
    }
}

/// The pod's group for volumes.
pub fn fs_group(pod: &Pod) -> Option<i64> {
    pod.spec.as_ref()?.security_context.as_ref()?.fs_group
}

/// The one user of all containers, of every kind (upstream `pkg/volume/util` FsUserFrom).
fn fs_user(pod: &Pod) -> Option<i64> {
    let spec = pod.spec.as_ref()?;
    let of_pod = spec.security_context.as_ref().and_then(|c| c.run_as_user);
    let regular = spec.init_containers.iter().flatten().chain(&spec.containers).map(|c| c.security_context.as_deref());
    let all = regular.chain(spec.ephemeral_containers.iter().flatten().map(|c| c.security_context.as_ref()));
    let mut one = None;
    for context in all {
        let user = context.and_then(|c| c.run_as_user).or(of_pod)?;
        if *one.get_or_insert(user) != user {
            return None;
        }
    }
    one
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_tokens() {
        let user = |pod: Option<i64>, containers: &[Option<i64>]| {
            let containers: Vec<_> = containers
                .iter()
                .map(|user| serde_json::json!({"name": "c", "securityContext": {"runAsUser": user}}))
                .collect();
            let pod: Pod = serde_json::from_value(
                serde_json::json!({"spec": {"securityContext": {"runAsUser": pod}, "containers": containers}}),
            )
            .unwrap();
            fs_user(&pod)
        };
        assert_eq!(user(None, &[None]), None);
        assert_eq!(user(Some(1), &[None, None]), Some(1));
        assert_eq!(user(Some(1), &[Some(2), None]), None);
        assert_eq!(user(None, &[Some(2), Some(2)]), Some(2));
        assert_eq!(user(None, &[Some(2), None]), None);
        assert_eq!(user(Some(0), &[Some(0)]), Some(0));
    }
}
