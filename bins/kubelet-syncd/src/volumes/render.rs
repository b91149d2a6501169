//! The files of a volume, from what the pod says and the objects that it names (upstream `pkg/volume/{configmap,secret,
//! downwardapi,projected}`). Pure: the same objects give the same bytes, so that what has not changed need not be sent.

use std::collections::BTreeMap;
use std::fmt;

use bulkhead_ipc::volnetd::{VolumeContent, VolumeFile};
use k8s_openapi::api::core::v1::{ConfigMap, DownwardAPIVolumeFile, Secret};
use kubelet_model::v1::Pod;
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use super::content::{Content, Keys, Source};
use super::paths::{PathError, file_path};
use kubelet_model::node_facts::NodeFacts;
use kubelet_model::objects::certificates::Credential;
use kubelet_model::objects::named_objects::{LookupError, NamedObjects};
use kubelet_model::pod::downward::{DownwardError, file_resource, object_field};

/// Mode of tokens, trust anchors, keys and certificates that belong to a user or a group: the volume's own would show them to others.
const PRIVATE: u32 = 0o600;

/// Why there are no files; what upstream would say.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    #[error("no defaultMode used, not even the default value for it")]
    NoMode,
    #[error(transparent)]
    Object(#[from] LookupError),
    #[error("configmap references non-existent config key: {0}")]
    NoConfigKey(String),
    #[error("references non-existent secret key: {0}")]
    NoSecretKey(String),
    #[error(transparent)]
    Downward(#[from] DownwardError),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("{0:?} would be a file and a folder")]
    Clash(String),
    /// More than one.
    #[error("{}", Several(.0))]
    Many(Vec<RenderError>),
}

impl RenderError {
    /// Somebody has not answered yet: nothing is known to be wrong with the pod.
    pub fn is_transient(&self) -> bool {
        match self {
            RenderError::Object(error) => error.is_transient(),
            RenderError::Many(errors) => errors.iter().all(RenderError::is_transient),
            _ => false,
        }
    }

    fn of(mut errors: Vec<RenderError>) -> Option<Self> {
        let last = errors.pop()?;
        if errors.is_empty() {
            return Some(last);
        }
        errors.push(last);
        Some(RenderError::Many(errors))
    }
}

/// `[a, b]`, each text once; one alone stands for itself.
struct Several<'a>(&'a [RenderError]);

impl fmt::Display for Several<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut texts: Vec<String> = Vec::new();
        for text in self.0.iter().map(ToString::to_string) {
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        match texts.as_slice() {
            [one] => f.write_str(one),
            many => write!(f, "[{}]", many.join(", ")),
        }
    }
}

/// What a volume is to show, ready to be sent. `Debug` shows no contents.
#[derive(Clone, PartialEq, Eq)]
pub struct Rendered {
    /// An encoded [`VolumeContent`].
    pub bytes: Vec<u8>,
    pub hash: ContentHash,
}

/// SHA-256 of the bytes.
pub type ContentHash = [u8; 32];

impl fmt::Debug for Rendered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rendered").field("bytes", &self.bytes.len()).finish_non_exhaustive()
    }
}

/// The files and their owner as volnetd takes them.
pub fn render(volume: &Content, pod: &Pod, objects: &NamedObjects, facts: &NodeFacts) -> Result<Rendered, RenderError> {
    let content = VolumeContent { files: files(volume, pod, objects, facts)?, fs_group: volume.fs_group };
    let bytes = content.encode_to_vec();
    let hash = Sha256::digest(&bytes).into();
    Ok(Rendered { bytes, hash })
}

/// The files by path.
pub fn files(
    volume: &Content,
    pod: &Pod,
    objects: &NamedObjects,
    facts: &NodeFacts,
) -> Result<Vec<VolumeFile>, RenderError> {
    if let Err(error) = &volume.nested {
        return Err(error.clone().into());
    }
    let mut payload =
        Payload { default_mode: mode(volume.default_mode).ok_or(RenderError::NoMode)?, ..Payload::default() };
    for source in &volume.sources {
        match source {
            Source::ConfigMap(keys) => payload.config_map(keys, objects),
            Source::Secret(keys) => payload.secret(keys, objects),
            Source::DownwardApi(items) => payload.downward(items, pod, facts),
            Source::Token { wanted, path } => match objects.token(wanted) {
                Ok(token) => payload.put_private(path, token.token.into_bytes(), volume),
                Err(error) => payload.errors.push(error.into()),
            },
            Source::TrustBundle { wanted, path } => match objects.trust_anchors(wanted) {
                Ok(anchors) => payload.put_private(path, anchors.into_bytes(), volume),
                Err(error) => payload.errors.push(error.into()),
            },
            Source::Certificate { wanted, paths } => match objects.certificate(wanted) {
                Ok(Credential { key, chain }) => {
                    let bundle = format!("{key}{chain}");
                    for (path, text) in [(&paths.bundle, bundle), (&paths.key, key), (&paths.chain, chain)] {
                        if !path.is_empty() {
                            payload.put_private(path, text.into_bytes(), volume);
                        }
                    }
                }
                Err(error) => payload.errors.push(error.into()),
            },
        }
    }
    payload.finish()
}

/// Permission bits; the API has checked their range.
fn mode(mode: Option<i32>) -> Option<u32> {
    mode.map(|mode| mode.unsigned_abs() & 0o777)
}

#[derive(Default)]
struct Payload {
    default_mode: u32,
    files: BTreeMap<String, VolumeFile>,
    errors: Vec<RenderError>,
}

impl Payload {
    fn put(&mut self, path: &str, data: Vec<u8>, mode: Option<u32>, user: Option<i64>) {
        match file_path(path) {
            Ok(path) => {
                let mode = mode.unwrap_or(self.default_mode);
                self.files.insert(path.clone(), VolumeFile { path, data, mode, user });
            }
            Err(error) => self.errors.push(error.into()),
        }
    }

    /// What belongs to the containers' user or group alone, where they have one.
    fn put_private(&mut self, path: &str, data: Vec<u8>, volume: &Content) {
        let private = volume.fs_user.is_some() || volume.fs_group.is_some();
        let mode = if private { PRIVATE } else { self.default_mode };
        self.put(path, data, Some(mode), volume.fs_user);
    }

    fn config_map(&mut self, keys: &Keys, objects: &NamedObjects) {
        match objects.config_map(&keys.name) {
            Ok(map) => self.keys(keys, &config_map_data(&map), RenderError::NoConfigKey),
            Err(LookupError::NotFound { .. }) if keys.optional => {}
            Err(error) => self.errors.push(error.into()),
        }
    }

    fn secret(&mut self, keys: &Keys, objects: &NamedObjects) {
        match objects.secret(&keys.name) {
            Ok(secret) => self.keys(keys, &secret_data(&secret), RenderError::NoSecretKey),
            Err(LookupError::NotFound { .. }) if keys.optional => {}
            Err(error) => self.errors.push(error.into()),
        }
    }

    /// All keys under their own names, or those that are named. One that is missing spoils the whole source.
    fn keys(&mut self, keys: &Keys, data: &BTreeMap<&str, &[u8]>, missing: fn(String) -> RenderError) {
        if keys.items.is_empty() {
            data.iter().for_each(|(key, value)| self.put(key, value.to_vec(), None, None));
            return;
        }
        if let Some(item) = keys.items.iter().find(|item| !keys.optional && !data.contains_key(item.key.as_str())) {
            self.errors.push(missing(item.key.clone()));
            return;
        }
        for item in &keys.items {
            if let Some(value) = data.get(item.key.as_str()) {
                self.put(&item.path, value.to_vec(), mode(item.mode), None);
            }
        }
    }

    fn downward(&mut self, items: &[DownwardAPIVolumeFile], pod: &Pod, facts: &NodeFacts) {
        for item in items {
            let text = match (&item.field_ref, &item.resource_field_ref) {
                (Some(field), _) => object_field(pod, &field.field_path),
                (None, Some(resource)) => file_resource(resource, pod, facts),
                (None, None) => Ok(String::new()),
            };
            match text {
                Ok(text) => self.put(&item.path, text.into_bytes(), mode(item.mode), None),
                Err(error) => self.errors.push(error.into()),
            }
        }
    }

    fn finish(mut self) -> Result<Vec<VolumeFile>, RenderError> {
        for path in self.files.keys() {
            let folders = path.match_indices('/').map(|(at, _)| &path[..at]);
            if let Some(folder) = folders.into_iter().find(|folder| self.files.contains_key(*folder)) {
                self.errors.push(RenderError::Clash(folder.to_owned()));
            }
        }
        match RenderError::of(self.errors) {
            Some(error) => Err(error),
            None => Ok(self.files.into_values().collect()),
        }
    }
}

/// Text comes before bytes of the same key; the API lets no key be in both.
fn config_map_data(map: &ConfigMap) -> BTreeMap<&str, &[u8]> {
    let bytes = map.binary_data.iter().flatten().map(|(key, value)| (key.as_str(), value.0.as_slice()));
    let text = map.data.iter().flatten().map(|(key, value)| (key.as_str(), value.as_bytes()));
    bytes.chain(text).collect()
}

fn secret_data(secret: &Secret) -> BTreeMap<&str, &[u8]> {
    secret.data.iter().flatten().map(|(key, value)| (key.as_str(), value.0.as_slice())).collect()
}

#[cfg(test)]
#[path = "render_tests.rs"]
mod tests;
