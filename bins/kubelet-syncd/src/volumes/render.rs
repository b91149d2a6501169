//! The files of a volume, from what the pod says and the objects that it names (upstream `pkg/volume/{configmap,secret,
//! downwardapi,projected}`). Pure: the same objects give the same bytes, so that what has not changed need not be sent.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use bulkhead_ipc::volnetd::{VolumeContent, VolumeFile};
use bulkhead_ipc::{MAX_CONTENT_BYTES, MAX_CONTENT_FILES};
use bulkhead_types::go_aggregate;
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

/// How often as many files and bytes may be put as there may be: where sources name the same file, the last one's stays.
const REPLACED: usize = 8;

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
    /// What kubelet-volnetd would refuse is not made.
    #[error("with {0:?} the volume has more than {MAX_CONTENT_FILES} files")]
    TooManyFiles(String),
    #[error("with {0:?} the volume's files have more than {MAX_CONTENT_BYTES} bytes")]
    TooLarge(String),
    #[error("with {0:?} the volume's sources name the same files too often")]
    ReplacedTooOften(String),
    /// More than one.
    #[error("{}", go_aggregate(.0.iter().map(ToString::to_string)).unwrap_or_default())]
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
    let payload = payload(volume, pod, objects, facts)?;
    let group = VolumeContent { files: Vec::new(), fs_group: volume.fs_group }.encode_to_vec();
    // One by one, so that not all of them are there twice: parts of a message one after another are the message.
    let mut bytes = Vec::with_capacity(payload.size + payload.files.len() * FRAMING);
    for (path, File { data, mode, user }) in payload.files {
        let file = VolumeFile { path, data: data.into_owned(), mode, user };
        let mut part = VolumeContent { files: vec![file], fs_group: None };
        bytes.extend(part.encode_to_vec());
        if bytes.len() + group.len() > MAX_CONTENT_BYTES {
            return Err(RenderError::TooLarge(part.files.swap_remove(0).path));
        }
    }
    bytes.extend(group);
    let hash = Sha256::digest(&bytes).into();
    Ok(Rendered { bytes, hash })
}

/// The files by path.
fn payload<'a>(
    volume: &Content,
    pod: &Pod,
    objects: &'a NamedObjects,
    facts: &NodeFacts,
) -> Result<Payload<'a>, RenderError> {
    if let Err(error) = &volume.nested {
        return Err(error.clone().into());
    }
    let mut payload =
        Payload { default_mode: mode(volume.default_mode).ok_or(RenderError::NoMode)?, ..Payload::default() };
    for source in &volume.sources {
        match source {
            Source::ConfigMap(keys) => payload.config_map(keys, objects)?,
            Source::Secret(keys) => payload.secret(keys, objects)?,
            Source::DownwardApi(items) => payload.downward(items, pod, facts)?,
            Source::Token { wanted, path } => match objects.token(wanted) {
                Ok(token) => payload.put_private(path, token.token.into_bytes(), volume)?,
                Err(error) => payload.errors.push(error.into()),
            },
            Source::TrustBundle { wanted, path } => match objects.trust_anchors(wanted) {
                Ok(anchors) => payload.put_private(path, anchors.into_bytes(), volume)?,
                Err(error) => payload.errors.push(error.into()),
            },
            Source::Certificate { wanted, paths } => match objects.certificate(wanted) {
                Ok(Credential { key, chain }) => {
                    let bundle = format!("{key}{chain}");
                    for (path, text) in [(&paths.bundle, bundle), (&paths.key, key), (&paths.chain, chain)] {
                        if !path.is_empty() {
                            payload.put_private(path, text.into_bytes(), volume)?;
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

/// Bytes that a file takes in the encoded message beside its path and its data.
const FRAMING: usize = 40;

struct File<'a> {
    /// What an object holds is not copied before it is sent: it may be shown under many paths.
    data: Cow<'a, [u8]>,
    mode: u32,
    user: Option<i64>,
}

#[derive(Default)]
struct Payload<'a> {
    default_mode: u32,
    files: BTreeMap<String, File<'a>>,
    /// Bytes of the paths and the data.
    size: usize,
    /// How much was put, with what was replaced.
    puts: usize,
    put_bytes: usize,
    errors: Vec<RenderError>,
}

impl<'a> Payload<'a> {
    /// An error is one that ends the work; what is wrong with one file is kept for the end.
    fn put(
        &mut self,
        path: &str,
        data: Cow<'a, [u8]>,
        mode: Option<u32>,
        user: Option<i64>,
    ) -> Result<(), RenderError> {
        self.puts += 1;
        self.put_bytes += path.len() + data.len();
        if self.puts > REPLACED * MAX_CONTENT_FILES || self.put_bytes > REPLACED * MAX_CONTENT_BYTES {
            return Err(RenderError::ReplacedTooOften(path.to_owned()));
        }
        let path = match file_path(path) {
            Ok(path) => path,
            Err(error) => {
                self.errors.push(error.into());
                return Ok(());
            }
        };
        let replaced = self.files.get(&path).map_or(0, |old| path.len() + old.data.len());
        self.size = self.size - replaced + path.len() + data.len();
        if self.size > MAX_CONTENT_BYTES {
            return Err(RenderError::TooLarge(path));
        }
        if replaced == 0 && self.files.len() == MAX_CONTENT_FILES {
            return Err(RenderError::TooManyFiles(path));
        }
        self.files.insert(path, File { data, mode: mode.unwrap_or(self.default_mode), user });
        Ok(())
    }

    /// What belongs to the containers' user or group alone, where they have one.
    fn put_private(&mut self, path: &str, data: Vec<u8>, volume: &Content) -> Result<(), RenderError> {
        let private = volume.fs_user.is_some() || volume.fs_group.is_some();
        let mode = if private { PRIVATE } else { self.default_mode };
        self.put(path, data.into(), Some(mode), volume.fs_user)
    }

    fn config_map(&mut self, keys: &Keys, objects: &'a NamedObjects) -> Result<(), RenderError> {
        match objects.config_map(&keys.name) {
            Ok(map) => self.keys(keys, map, RenderError::NoConfigKey)?,
            Err(LookupError::NotFound { .. }) if keys.optional => {}
            Err(error) => self.errors.push(error.into()),
        }
        Ok(())
    }

    fn secret(&mut self, keys: &Keys, objects: &'a NamedObjects) -> Result<(), RenderError> {
        match objects.secret(&keys.name) {
            Ok(secret) => self.keys(keys, secret, RenderError::NoSecretKey)?,
            Err(LookupError::NotFound { .. }) if keys.optional => {}
            Err(error) => self.errors.push(error.into()),
        }
        Ok(())
    }

    /// All keys under their own names, or those that are named. One that is missing spoils the whole source.
    fn keys(
        &mut self,
        keys: &Keys,
        data: &'a impl ObjectData,
        missing: fn(String) -> RenderError,
    ) -> Result<(), RenderError> {
        if keys.items.is_empty() {
            return data.all().try_for_each(|(key, value)| self.put(key, value.into(), None, None));
        }
        if let Some(item) = keys.items.iter().find(|item| !keys.optional && data.value(&item.key).is_none()) {
            self.errors.push(missing(item.key.clone()));
            return Ok(());
        }
        for item in &keys.items {
            if let Some(value) = data.value(&item.key) {
                self.put(&item.path, value.into(), mode(item.mode), None)?;
            }
        }
        Ok(())
    }

    fn downward(&mut self, items: &[DownwardAPIVolumeFile], pod: &Pod, facts: &NodeFacts) -> Result<(), RenderError> {
        for item in items {
            let text = match (&item.field_ref, &item.resource_field_ref) {
                (Some(field), _) => object_field(pod, &field.field_path),
                (None, Some(resource)) => file_resource(resource, pod, facts),
                (None, None) => Ok(String::new()),
            };
            match text {
                Ok(text) => self.put(&item.path, text.into_bytes().into(), mode(item.mode), None)?,
                Err(error) => self.errors.push(error.into()),
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Self, RenderError> {
        for path in self.files.keys() {
            let folders = path.match_indices('/').map(|(at, _)| &path[..at]);
            if let Some(folder) = folders.into_iter().find(|folder| self.files.contains_key(*folder)) {
                self.errors.push(RenderError::Clash(folder.to_owned()));
            }
        }
        match RenderError::of(std::mem::take(&mut self.errors)) {
            Some(error) => Err(error),
            None => Ok(self),
        }
    }
}

/// What an object holds.
trait ObjectData {
    /// Keys and values; of those with the same key the last counts.
    fn all(&self) -> impl Iterator<Item = (&str, &[u8])>;
    fn value(&self, key: &str) -> Option<&[u8]>;
}

/// Text comes before bytes of the same key; the API lets no key be in both.
impl ObjectData for ConfigMap {
    fn all(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let bytes = self.binary_data.iter().flatten().map(|(key, value)| (key.as_str(), value.0.as_slice()));
        let text = self.data.iter().flatten().map(|(key, value)| (key.as_str(), value.as_bytes()));
        bytes.chain(text)
    }

    fn value(&self, key: &str) -> Option<&[u8]> {
        let text = self.data.as_ref().and_then(|data| data.get(key)).map(String::as_bytes);
        text.or_else(|| Some(self.binary_data.as_ref()?.get(key)?.0.as_slice()))
    }
}

impl ObjectData for Secret {
    fn all(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.data.iter().flatten().map(|(key, value)| (key.as_str(), value.0.as_slice()))
    }

    fn value(&self, key: &str) -> Option<&[u8]> {
        Some(self.data.as_ref()?.get(key)?.0.as_slice())
    }
}

#[cfg(test)]
#[path = "render_tests.rs"]
mod tests;
