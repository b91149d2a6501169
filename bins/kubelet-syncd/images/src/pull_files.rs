//! Upstream's files of image pulls: their form, and what is done about one that differs from our own records (upstream
//! `pkg/kubelet/images/pullmanager/fs_pullrecords.go`). Pure; [`super::export`] reads and writes them.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::file_id::{FileId, Folder};
use super::pull_records::{Access, Owner, PullRecords, Record, Secret};

const API_GROUP: &str = "kubelet.config.k8s.io";
const VERSION: &str = "v1beta1";
/// What upstream reads as well.
const OLDER_VERSION: &str = "v1alpha1";
/// Of one file, as kubelet-volnetd takes them. A record that is larger is in our own state alone.
const MAX_FILE_BYTES: usize = 1 << 20;

/// Files as they stand there. No content: one that cannot be read.
pub type Files = BTreeMap<FileId, Option<Vec<u8>>>;

/// `ImagePullIntent`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct IntentFile {
    kind: String,
    #[serde(rename = "apiVersion")]
    api_version: String,
    image: String,
}

/// `ImagePulledRecord`. Fields in the order of upstream's.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PulledFile {
    kind: String,
    api_version: String,
    last_updated_time: Option<Timestamp>,
    image_ref: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    credential_mapping: BTreeMap<String, CredentialsFile>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CredentialsFile {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    kubernetes_secrets: Vec<SecretFile>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    kubernetes_service_accounts: Vec<AccountFile>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    node_pods_accessible: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SecretFile {
    uid: String,
    namespace: String,
    name: String,
    credential_hash: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AccountFile {
    uid: String,
    namespace: String,
    name: String,
}

/// A pull that has begun; None: it has no place in a file.
fn intent(image: &str) -> Option<Vec<u8>> {
    encode(&IntentFile { kind: "ImagePullIntent".into(), api_version: version(VERSION), image: image.to_owned() })
}

/// A record; None: it has no place in a file.
fn pulled(id: &str, record: &Record) -> Option<Vec<u8>> {
    // Sorted, as upstream's are.
    let credentials = |access: &Access| {
        let mut secrets = access.kubernetes_secrets.clone();
        secrets.sort();
        let mut accounts = access.kubernetes_service_accounts.clone();
        accounts.sort();
        CredentialsFile {
            kubernetes_secrets: secrets.into_iter().map(SecretFile::from).collect(),
            kubernetes_service_accounts: accounts.into_iter().map(AccountFile::from).collect(),
            node_pods_accessible: access.node_pods_accessible,
        }
    };
    let mapping = record.credential_mapping.iter();
    encode(&PulledFile {
        kind: "ImagePulledRecord".into(),
        api_version: version(VERSION),
        last_updated_time: Timestamp::from_second(record.last_updated_time.as_second()).ok(),
        image_ref: id.to_owned(),
        credential_mapping: mapping.map(|(name, access)| (name.clone(), credentials(access))).collect(),
    })
}

fn version(version: &str) -> String {
    format!("{API_GROUP}/{version}")
}

/// One line, as Go's encoder ends it.
fn encode(file: &impl Serialize) -> Option<Vec<u8>> {
    let mut bytes = serde_json::to_vec(file).ok()?;
    bytes.push(b'\n');
    (bytes.len() <= MAX_FILE_BYTES).then_some(bytes)
}

/// What a file says.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    /// The image as a container names it.
    Pulling(String),
    /// The runtime's id of the image.
    Pulled(String, Record),
}

/// None: it is not understood, or of an image that its name is not made of, where upstream would not look for it.
fn said(id: &FileId, content: &[u8]) -> Option<Said> {
    let known = |api: &str| [VERSION, OLDER_VERSION].iter().any(|one| api == version(one));
    match id.folder {
        Folder::Pulling => {
            let file: IntentFile = serde_json::from_slice(content).ok()?;
            let right = file.kind == "ImagePullIntent" && known(&file.api_version);
            (right && FileId::pulling(&file.image) == *id).then_some(Said::Pulling(file.image))
        }
        Folder::Pulled => {
            let file: PulledFile = serde_json::from_slice(content).ok()?;
            let right = file.kind == "ImagePulledRecord" && known(&file.api_version);
            if !right || FileId::pulled(&file.image_ref) != *id {
                return None;
            }
            let access = |file: CredentialsFile| Access {
                node_pods_accessible: file.node_pods_accessible,
                kubernetes_secrets: file.kubernetes_secrets.into_iter().map(Secret::from).collect(),
                kubernetes_service_accounts: file.kubernetes_service_accounts.into_iter().map(Owner::from).collect(),
            };
            let record = Record {
                last_updated_time: file.last_updated_time.unwrap_or(Timestamp::UNIX_EPOCH),
                last_pulled_time: Timestamp::UNIX_EPOCH,
                credential_mapping: file
                    .credential_mapping
                    .into_iter()
                    .map(|(name, file)| (name, access(file)))
                    .collect(),
            };
            Some(Said::Pulled(file.image_ref, record))
        }
    }
}

impl From<Secret> for SecretFile {
    fn from(secret: Secret) -> Self {
        let Owner { namespace, name, uid } = secret.owner;
        SecretFile { uid, namespace, name, credential_hash: secret.hash }
    }
}

impl From<SecretFile> for Secret {
    fn from(file: SecretFile) -> Self {
        let owner = Owner { namespace: file.namespace, name: file.name, uid: file.uid };
        Secret { owner, hash: file.credential_hash }
    }
}

impl From<Owner> for AccountFile {
    fn from(owner: Owner) -> Self {
        AccountFile { uid: owner.uid, namespace: owner.namespace, name: owner.name }
    }
}

impl From<AccountFile> for Owner {
    fn from(file: AccountFile) -> Self {
        Owner { namespace: file.namespace, name: file.name, uid: file.uid }
    }
}

/// Pulls that have begun have none.
const NO_TIME: i64 = 0;

/// How a file was found. Times are in seconds, as upstream writes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Absent,
    NotUnderstood,
    Of(i64),
}

/// What becomes of our own record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// As it is, also where there is none.
    Keep,
    /// Somebody has taken its file away.
    Forget,
    /// The file's is ours from here on.
    Take,
    /// There is none, and a file that says nobody knows what: the image was pulled by a kubelet, with nobody knows whose
    /// credentials.
    DoNotTrust,
}

/// `own`: when our own record was updated last, None: there is none. `written`: the file stood there when it was last
/// looked after.
fn fate(own: Option<i64>, written: bool, found: Found) -> Fate {
    match (own, found) {
        (Some(_), Found::Absent) if written => Fate::Forget,
        (Some(own), Found::Of(theirs)) if theirs > own => Fate::Take,
        (Some(_), _) | (None, Found::Absent) => Fate::Keep,
        (None, Found::Of(_)) => Fate::Take,
        (None, Found::NotUnderstood) => Fate::DoNotTrust,
    }
}

impl PullRecords {
    /// Compares the records with the files as they were found. Answers which files are not understood: they stay as they are.
    pub fn take_files(&mut self, files: &Files) -> BTreeSet<FileId> {
        let own = self.times();
        let written = std::mem::take(&mut self.written);
        let mut not_understood = BTreeSet::new();
        for id in own.keys().chain(files.keys()).collect::<BTreeSet<_>>() {
            let content = files.get(id);
            let said = content.and_then(|content| said(id, content.as_deref()?));
            let found = match &said {
                Some(Said::Pulling(_)) => Found::Of(NO_TIME),
                Some(Said::Pulled(_, record)) => Found::Of(record.last_updated_time.as_second()),
                None if content.is_some() => Found::NotUnderstood,
                None => Found::Absent,
            };
            match (fate(own.get(id).copied(), written.contains(id), found), said) {
                (Fate::Forget, _) => {
                    tracing::info!(digest = id.digest, "dropped image pull record: its file was removed");
                    self.forget(id);
                }
                (Fate::Take, Some(Said::Pulling(image))) => {
                    self.pulling.insert(image);
                }
                (Fate::Take, Some(Said::Pulled(image, record))) => {
                    self.pulled.insert(image, record);
                }
                (Fate::DoNotTrust, _) => {
                    not_understood.insert(id.clone());
                }
                _ => {}
            }
        }
        self.bound();
        self.written = written.into_iter().filter(|id| files.contains_key(id)).collect();
        self.doubtful.clone_from(&not_understood);
        not_understood
    }

    /// The files as they are to be.
    pub fn files(&self) -> Files {
        let pulling = self.pulling.iter().filter_map(|image| Some((FileId::pulling(image), Some(intent(image)?))));
        let pulled =
            self.pulled.iter().filter_map(|(id, record)| Some((FileId::pulled(id), Some(pulled(id, record)?))));
        pulling.chain(pulled).collect()
    }

    /// When each was updated last, in seconds.
    fn times(&self) -> BTreeMap<FileId, i64> {
        let pulling = self.pulling.iter().map(|image| (FileId::pulling(image), NO_TIME));
        let pulled = self.pulled.iter().map(|(id, record)| (FileId::pulled(id), record.last_updated_time.as_second()));
        pulling.chain(pulled).collect()
    }

    fn forget(&mut self, id: &FileId) {
        let running = &self.running;
        match id.folder {
            Folder::Pulling => {
                self.pulling.retain(|image| running.contains_key(image) || FileId::pulling(image) != *id);
            }
            Folder::Pulled => self.pulled.retain(|image, _| FileId::pulled(image) != *id),
        }
    }
}

/// What tells one content from another.
pub type Checksum = [u8; 32];

pub fn checksum(content: &[u8]) -> Checksum {
    Sha256::digest(content).into()
}

/// Files that are to be written, and without content those that are to go: what is wanted and not there, and what is there
/// and neither wanted nor to be left alone.
pub fn changes(there: &BTreeMap<FileId, Option<Checksum>>, wanted: &Files, leave: &BTreeSet<FileId>) -> Files {
    let written = wanted.iter().filter_map(|(id, content)| {
        let content = content.as_deref()?;
        (there.get(id) != Some(&Some(checksum(content)))).then(|| (id.clone(), Some(content.to_vec())))
    });
    let gone = there.keys().filter(|id| !wanted.contains_key(id) && !leave.contains(id));
    written.chain(gone.map(|id| (id.clone(), None))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pull_records::{Policy, PullDecision, Source};

    /// As upstream's kubelet 1.36 writes it.
    const PULLED: &str = "{\"kind\":\"ImagePulledRecord\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\
        \"lastUpdatedTime\":\"2024-10-21T12:26:40Z\",\"imageRef\":\"testimageref\",\"credentialMapping\":\
        {\"docker.io/testing/test\":{\"kubernetesSecrets\":[{\"uid\":\"testsecretuid\",\"namespace\":\"default\",\
        \"name\":\"pull-secret\",\"credentialHash\":\"testsecrethash\"}]},\
        \"r.test/robot\":{\"kubernetesServiceAccounts\":[{\"uid\":\"u\",\"namespace\":\"ns\",\"name\":\"robot\"}]},\
        \"r.test/open\":{\"nodePodsAccessible\":true}}}\n";

    /// Go's encoder sorts keys of maps.
    fn sorted() -> String {
        let (open, robot) = (",\"r.test/open\":{\"nodePodsAccessible\":true}", "\"r.test/robot\":");
        PULLED.replace(open, "").replace(robot, &format!("{},{robot}", &open[1..]))
    }

    #[test]
    fn files_are_read_and_written_as_upstream_does() {
        let id = FileId::pulled("testimageref");
        let Some(Said::Pulled(image, record)) = said(&id, PULLED.as_bytes()) else { panic!("not understood") };
        assert_eq!(image, "testimageref");
        assert_eq!(record.credential_mapping["docker.io/testing/test"].kubernetes_secrets[0].owner.name, "pull-secret");
        assert_eq!(String::from_utf8(pulled(&image, &record).unwrap()).unwrap(), sorted());
        let fraction = Record { last_updated_time: "2024-10-21T12:26:40.9Z".parse().unwrap(), ..record.clone() };
        assert_eq!(pulled(&image, &fraction), pulled(&image, &record), "whole seconds");
        let begun =
            "{\"kind\":\"ImagePullIntent\",\"apiVersion\":\"kubelet.config.k8s.io/v1beta1\",\"image\":\"a:1\"}\n";
        assert_eq!(intent("a:1").unwrap(), begun.as_bytes());
        assert_eq!(said(&FileId::pulling("a:1"), begun.as_bytes()), Some(Said::Pulling("a:1".into())));
        let older = PULLED.replace("v1beta1", "v1alpha1");
        assert_eq!(said(&id, older.as_bytes()), Some(Said::Pulled(image, record)));
    }

    #[test]
    fn a_file_says_who_may_use_an_image_and_nothing_of_further_pulls() {
        let secret = |name: &str| {
            Source::Secret(Secret {
                owner: Owner { namespace: "ns".into(), name: name.into(), uid: "u".into() },
                hash: "h".into(),
            })
        };
        let mut records = PullRecords::default();
        let mut files_after = |name: &str, second: i64| {
            let at = Timestamp::from_second(second).unwrap();
            records.ended(IMAGE, Some(("sha256:a", Some(&secret(name)))), at);
            records.files()
        };
        files_after("b", 1);
        let both = files_after("a", 2);
        let file: PulledFile = serde_json::from_slice(both.values().next().unwrap().as_ref().unwrap()).unwrap();
        let names: Vec<_> = file.credential_mapping["r.test/app"].kubernetes_secrets.iter().map(|s| &s.name).collect();
        assert_eq!(names, ["a", "b"], "upstream sorts them");
        assert_eq!(files_after("b", 3), both, "upstream writes a record when it says something new");
    }

    #[test]
    fn what_is_not_understood() {
        let id = FileId::pulled("testimageref");
        for content in [
            String::new(),
            PULLED[..PULLED.len() / 2].to_owned(),
            PULLED.replace("v1beta1", "v2"),
            PULLED.replace("ImagePulledRecord", "ImagePullIntent"),
            PULLED.replace("testimageref", "another"),
            PULLED.replace("\"imageRef\"", "\"later\":1,\"imageRef\""),
        ] {
            assert_eq!(said(&id, content.as_bytes()), None, "{content}");
        }
        assert_eq!(said(&FileId::pulling("testimageref"), PULLED.as_bytes()), None);
        let large = "a".repeat(MAX_FILE_BYTES);
        assert_eq!(intent(&large), None);
    }

    #[test]
    fn whose_word_counts() {
        use Fate::{DoNotTrust, Forget, Keep, Take};
        use Found::{Absent, NotUnderstood, Of};
        for (own, written, found, expected) in [
            (None, false, Absent, Keep),
            (None, true, Absent, Keep),
            (None, false, Of(1), Take),
            // Removed by us, and there again: by somebody else, or we did not get to it. Garbage collection has the last word.
            (None, true, Of(1), Take),
            (None, false, NotUnderstood, DoNotTrust),
            (Some(2), false, Absent, Keep),
            (Some(2), true, Absent, Forget),
            (Some(2), true, NotUnderstood, Keep),
            (Some(2), true, Of(1), Keep),
            (Some(2), true, Of(2), Keep),
            (Some(2), true, Of(3), Take),
            (Some(2), false, Of(3), Take),
        ] {
            assert_eq!(fate(own, written, found), expected, "{own:?} {written} {found:?}");
        }
    }

    const IMAGE: &str = "r.test/app:1";

    fn look(records: &mut PullRecords, image: &str, id: &str) -> PullDecision {
        records.look(&Policy::NeverVerifyPreloadedImages, image, id, Some(&[]), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn records_of_another_kubelet_are_ours() {
        let mut records = PullRecords::default();
        let id = FileId::pulled("testimageref");
        let begun = FileId::pulling(IMAGE);
        let files: Files = [(id, Some(PULLED.into())), (begun.clone(), intent(IMAGE))].into();
        assert_eq!(records.take_files(&files), BTreeSet::new());
        assert_eq!(records.counts(), (1, 1));
        for (image, decision) in [
            ("r.test/open:2", PullDecision::Known { changed: false }),
            ("docker.io/testing/test:1", PullDecision::MustPull),
            ("r.test/never-heard-of:1", PullDecision::MustPull),
        ] {
            assert_eq!(look(&mut records, image, "testimageref"), decision, "{image}");
        }
        assert_eq!(look(&mut records, IMAGE, "sha256:b"), PullDecision::MustPull, "a pull that was cut off");
        assert_eq!(look(&mut records, "busybox:1", "sha256:c"), PullDecision::Allowed);
        // Read once more, they say nothing new.
        let before = records.clone();
        records.take_files(&files);
        assert_eq!(records, before);
        // One pull that runs now is not forgotten, whoever has removed its file.
        records.intend(IMAGE);
        records.written.insert(begun);
        records.take_files(&Files::new());
        assert_eq!(records.counts(), (1, 1));
    }

    #[test]
    fn an_image_of_a_file_that_says_nobody_knows_what_is_nobodys() {
        let files: Files = [
            (FileId::pulled("sha256:a"), Some(Vec::new())),
            (FileId::pulled("sha256:gone"), None),
            (FileId::pulling(IMAGE), Some(b"{".to_vec())),
        ]
        .into();
        let mut records = PullRecords::default();
        assert_eq!(records.take_files(&files).len(), 3);
        for _ in 0..2 {
            assert_eq!(look(&mut records, "busybox:1", "sha256:a"), PullDecision::MustPull);
            assert_eq!(look(&mut records, IMAGE, "sha256:b"), PullDecision::MustPull);
            assert_eq!(look(&mut records, "busybox:1", "sha256:c"), PullDecision::Allowed);
            let images = [("sha256:a", vec!["busybox:1"]), ("sha256:b", vec![IMAGE]), ("sha256:c", vec!["c:1"])];
            records.take_stock(images.into_iter(), Timestamp::UNIX_EPOCH);
        }
        assert_eq!(records.counts(), (0, 2));
    }

    #[test]
    fn what_differs_is_written_and_what_is_not_wanted_goes() {
        let id = |name: &str| FileId::pulled(name);
        let there = ["same", "old", "gone", "left"].map(|name| (id(name), Some(checksum(b"1"))));
        let there: BTreeMap<_, _> = there.into_iter().chain([(id("unread"), None)]).collect();
        let wanted = [("same", "1"), ("old", "2"), ("new", "1"), ("unread", "1")];
        let wanted = wanted.map(|(name, content)| (id(name), Some(content.into()))).into_iter().collect();
        let expected = [("old", Some("2")), ("new", Some("1")), ("unread", Some("1")), ("gone", None)];
        let expected: Files = expected.map(|(name, content)| (id(name), content.map(Into::into))).into_iter().collect();
        assert_eq!(changes(&there, &wanted, &BTreeSet::from([id("left")])), expected);
    }
}
