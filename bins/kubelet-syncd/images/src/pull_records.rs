//! Whose credentials opened which image: who may use an image that is on the node already, and who has to show that he
//! could pull it (upstream `pkg/kubelet/images/pullmanager`). Pure; [`super::manager`] asks and notes, and what is noted is
//! kept in the private state.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::file_id::{FileId, Folder};
use kubelet_model::pod::image_reference::ImageName;

/// More images than a node keeps; the oldest records go first, and their images are asked for anew. So many pulls that ended
/// nobody knows how are noted, too.
const MAX_RECORDS: usize = 10_000;
/// Secrets that were only seen to fit are noted up to so many for one image (upstream writeRecordWhileMatchingLimit).
const MAX_NOTED_WHILE_LOOKING: usize = 100;
/// Secrets, and as many service accounts, that are noted for one name of an image: the newest. Who is not noted any more has to pull
/// again.
const MAX_NOTED: usize = 500;
/// Names, secrets and service accounts of one image. Beyond it the image is noted under its newest name alone.
const MAX_ENTRIES_OF_IMAGE: usize = 2_000;
/// The same of all images: some 10 MB on the disk, far from what a state file may have. Beyond it the oldest records are nobody's.
const MAX_ENTRIES: usize = 20_000;

/// `imagePullCredentialsVerificationPolicy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Policy {
    /// The gate KubeletEnsureSecretPulledImages is off: nothing is asked and nothing noted.
    Off,
    NeverVerify,
    NeverVerifyPreloadedImages,
    /// Names without tag, or what they begin with where they end in `/*`.
    NeverVerifyAllowlistedImages(Vec<String>),
    AlwaysVerify,
}

impl Policy {
    /// From the configuration, which has been checked. `gate`: KubeletEnsureSecretPulledImages.
    pub fn of(gate: bool, policy: &str, allowed: &[String]) -> Self {
        match policy {
            _ if !gate => Policy::Off,
            "NeverVerify" => Policy::NeverVerify,
            "NeverVerifyAllowlistedImages" => Policy::NeverVerifyAllowlistedImages(allowed.to_vec()),
            "AlwaysVerify" => Policy::AlwaysVerify,
            _ => Policy::NeverVerifyPreloadedImages,
        }
    }

    /// Whether somebody has to show credentials for an image that is there. `ours`: this node pulled it.
    fn verifies(&self, image: &str, ours: bool) -> bool {
        match self {
            Policy::Off | Policy::NeverVerify => false,
            Policy::NeverVerifyPreloadedImages => ours,
            Policy::NeverVerifyAllowlistedImages(allowed) => {
                let name = without_tag(image).unwrap_or(image);
                !allowed.iter().any(|pattern| match pattern.strip_suffix('*') {
                    Some(start) => name.starts_with(start),
                    None => name == pattern,
                })
            }
            Policy::AlwaysVerify => true,
        }
    }
}

/// The name as the pod gives it, without tag and digest; `None`: it is no name.
fn without_tag(image: &str) -> Option<&str> {
    let name = ImageName::parse(image).ok()?;
    let image = match &name.digest {
        Some(digest) => image.strip_suffix(digest.as_str())?.strip_suffix('@')?,
        None => image,
    };
    // A default tag is not part of the text.
    let tagged = name.tag.as_deref().and_then(|tag| image.strip_suffix(tag)?.strip_suffix(':'));
    Some(tagged.unwrap_or(image))
}

/// Where credentials of a pod come from. Those of the node itself have no such source.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    Secret(Secret),
    ServiceAccount(Owner),
}

/// An object, known over its deletion.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Owner {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// A pull secret, and what of it was used.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Secret {
    #[serde(flatten)]
    pub owner: Owner,
    /// SHA-256 of the credential, hexadecimal.
    #[serde(rename = "credentialHash")]
    pub hash: String,
}

/// Who may use an image under one name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Access {
    /// The node's own credentials opened it, or none were needed.
    pub node_pods_accessible: bool,
    /// In the order in which they were noted last.
    pub kubernetes_secrets: Vec<Secret>,
    /// In the same order.
    pub kubernetes_service_accounts: Vec<Owner>,
}

impl Access {
    /// Adds what is new, and forgets the oldest where there is too much. Answers whether there was something new.
    fn add(&mut self, new: Access) -> bool {
        if self.node_pods_accessible {
            return false;
        }
        if new.node_pods_accessible {
            *self = new;
            return true;
        }
        let mut changed = false;
        for secret in new.kubernetes_secrets {
            changed |= !self.kubernetes_secrets.contains(&secret);
            self.kubernetes_secrets.retain(|other| other.owner != secret.owner);
            self.kubernetes_secrets.push(secret);
        }
        for owner in new.kubernetes_service_accounts {
            changed |= !self.kubernetes_service_accounts.contains(&owner);
            self.kubernetes_service_accounts.retain(|other| *other != owner);
            self.kubernetes_service_accounts.push(owner);
        }
        keep_newest(&mut self.kubernetes_secrets);
        keep_newest(&mut self.kubernetes_service_accounts);
        changed
    }
}

fn keep_newest<T>(noted: &mut Vec<T>) {
    noted.drain(..noted.len().saturating_sub(MAX_NOTED));
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    /// When it last became known who may use the image.
    pub last_updated_time: Timestamp,
    /// When it was pulled last, though that said nothing new. Not in upstream's files, which stay as they are then.
    #[serde(default)]
    pub last_pulled_time: Timestamp,
    /// By name without tag.
    pub credential_mapping: BTreeMap<String, Access>,
}

impl Record {
    /// Of an image that was pulled with nobody knows whose credentials.
    fn nobodys(now: Timestamp) -> Self {
        Record { last_updated_time: now, last_pulled_time: Timestamp::UNIX_EPOCH, credential_mapping: BTreeMap::new() }
    }

    fn last_noted(&self) -> Timestamp {
        self.last_updated_time.max(self.last_pulled_time)
    }

    fn entries(&self) -> usize {
        let of = |access: &Access| 1 + access.kubernetes_secrets.len() + access.kubernetes_service_accounts.len();
        self.credential_mapping.values().map(of).sum()
    }
}

/// An image of which it is not understood whose credentials opened it is nobody's, and not one that was there before us.
fn pulled_by_us<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Record>, D::Error> {
    let all = BTreeMap::<String, serde_json::Value>::deserialize(deserializer)?;
    let record = |value| serde_json::from_value(value).unwrap_or_else(|_| Record::nobodys(Timestamp::UNIX_EPOCH));
    Ok(all.into_iter().map(|(id, value)| (id, record(value))).collect())
}

/// What is to be done about an image that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullDecision {
    /// The policy asks for nothing.
    Allowed,
    /// Somebody with these credentials has pulled it; `true`: that is news, to be kept.
    Known { changed: bool },
    /// It has to be pulled by this pod, or is as good as absent.
    MustPull,
    /// First the pod's credentials have to be found.
    AskCredentials,
}

/// Of the form in which everything is kept.
pub const VERSION: u64 = 1;

/// Everything that is noted.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PullRecords {
    /// Names that are being pulled, or were when this process ended.
    pub(crate) pulling: BTreeSet<String>,
    /// By the runtime's id of the image.
    #[serde(deserialize_with = "pulled_by_us")]
    pub(crate) pulled: BTreeMap<String, Record>,
    /// Upstream's files that stand there with what we have written: where one of them is missing, somebody has removed it.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) written: BTreeSet<FileId>,
    /// Pulls of each name that run now.
    #[serde(skip)]
    pub(crate) running: BTreeMap<String, usize>,
    /// Upstream's files of which it is not understood what they say, until it is known which images are there.
    #[serde(skip)]
    pub(crate) doubtful: BTreeSet<FileId>,
}

impl PullRecords {
    /// How many pulls and how many images are noted.
    pub fn counts(&self) -> (usize, usize) {
        (self.pulling.len(), self.pulled.len())
    }

    /// A pull begins.
    pub fn intend(&mut self, image: &str) {
        self.pulling.insert(image.to_owned());
        *self.running.entry(image.to_owned()).or_default() += 1;
    }

    /// A pull has ended: `pulled` is the runtime's id of the image, and whose credentials opened it.
    pub fn ended(&mut self, image: &str, pulled: Option<(&str, Option<&Source>)>, now: Timestamp) {
        if let Some((id, source)) = pulled
            && let Some(name) = without_tag(image)
        {
            let new = match source {
                None => Access { node_pods_accessible: true, ..Access::default() },
                Some(Source::Secret(secret)) => {
                    Access { kubernetes_secrets: vec![secret.clone()], ..Access::default() }
                }
                Some(Source::ServiceAccount(owner)) => {
                    Access { kubernetes_service_accounts: vec![owner.clone()], ..Access::default() }
                }
            };
            self.note(id, name, new, now);
            // A list of images that was asked for before is no reason to forget it, though it adds nothing to the record.
            if let Some(record) = self.pulled.get_mut(id) {
                record.last_pulled_time = now;
            }
        }
        let left = self.running.get(image).copied().unwrap_or(0).saturating_sub(1);
        if left == 0 {
            self.running.remove(image);
            self.pulling.remove(image);
            self.written.remove(&FileId::pulling(image));
        } else {
            self.running.insert(image.to_owned(), left);
        }
    }

    /// Nobody waits for a pull any more: how it ends is not known.
    pub fn abandoned(&mut self, image: &str) {
        match self.running.get_mut(image) {
            Some(running) if *running > 1 => *running -= 1,
            _ => {
                self.running.remove(image);
            }
        }
    }

    /// What the runtime has: a pull of which nobody knows how it ended, and whose image is there, was ours, by nobody knows
    /// whose credentials. One whose image is not there stays noted, as the image may have come since the list was asked for, or
    /// may come yet; [`PullRecords::prune`] alone takes records away (upstream `pullmanager/image_pull_manager.go`, initialize).
    /// Each image: its id and all of its names.
    pub fn take_stock<'a>(&mut self, images: impl Iterator<Item = (&'a str, Vec<&'a str>)>, now: Timestamp) {
        let nobodys = || Record::nobodys(now);
        let doubtful = std::mem::take(&mut self.doubtful);
        let is_doubtful = |file: FileId| doubtful.contains(&file);
        for (id, names) in images {
            if !doubtful.is_empty()
                && (is_doubtful(FileId::pulled(id)) || names.iter().any(|name| is_doubtful(FileId::pulling(name))))
            {
                self.pulled.entry(id.to_owned()).or_insert_with(nobodys);
            }
            for name in names {
                if self.running.contains_key(name) || without_tag(name).is_none() || !self.pulling.remove(name) {
                    continue;
                }
                self.written.remove(&FileId::pulling(name));
                self.pulled.entry(id.to_owned()).or_insert_with(nobodys);
            }
        }
        if self.pulling.len() > MAX_RECORDS {
            let running = &self.running;
            self.pulling.retain(|image| running.contains_key(image));
        }
    }

    /// Images that are gone: their records go, but for those that were written since `until`, when the list of images was asked
    /// for (upstream PruneUnknownRecords). True: there were some.
    pub fn prune(&mut self, is_there: impl Fn(&str) -> bool, until: Timestamp) -> bool {
        let before = self.pulled.len();
        let written = &mut self.written;
        self.pulled.retain(|id, record| {
            let stays = is_there(id) || record.last_noted() >= until;
            if !stays {
                written.remove(&FileId::pulled(id));
            }
            stays
        });
        self.pulled.len() != before
    }

    /// May a pod use an image that is there? `credentials`: the sources of what it could pull with, `None` while nobody
    /// has asked for them.
    pub fn look(
        &mut self,
        policy: &Policy,
        image: &str,
        id: &str,
        credentials: Option<&[Source]>,
        now: Timestamp,
    ) -> PullDecision {
        let record = self.pulled.get(id);
        let is_doubtful = |file: FileId| self.doubtful.contains(&file);
        let ours = record.is_some()
            || self.pulling.contains(image)
            || (!self.doubtful.is_empty() && (is_doubtful(FileId::pulled(id)) || is_doubtful(FileId::pulling(image))));
        if !policy.verifies(image, ours) {
            return PullDecision::Allowed;
        }
        let name = without_tag(image);
        let Some((name, access)) = name.and_then(|name| Some((name, record?.credential_mapping.get(name)?))) else {
            return PullDecision::MustPull;
        };
        if access.node_pods_accessible {
            return PullDecision::Known { changed: false };
        }
        if access.kubernetes_secrets.is_empty() && access.kubernetes_service_accounts.is_empty() {
            return PullDecision::MustPull;
        }
        let Some(credentials) = credentials else { return PullDecision::AskCredentials };
        let may_note = access.kubernetes_secrets.len() < MAX_NOTED_WHILE_LOOKING;
        let mut fitting = None;
        for secret in credentials.iter().filter_map(|source| match source {
            Source::Secret(secret) => Some(secret),
            Source::ServiceAccount(_) => None,
        }) {
            let hash = |known: &Secret| !known.hash.is_empty() && known.hash == secret.hash;
            let same = |known: &Secret| known.owner == secret.owner;
            if access.kubernetes_secrets.iter().any(|known| hash(known) && same(known)) {
                return PullDecision::Known { changed: false };
            }
            // The same credential in another secret, or a secret with another credential by now: what is noted is
            // brought up to date, if it is not too much.
            let known = &access.kubernetes_secrets;
            if known.iter().any(hash) || (may_note && known.iter().any(same)) {
                fitting = Some(secret.clone());
                break;
            }
        }
        if let Some(secret) = fitting {
            let name = name.to_owned();
            let access = Access { kubernetes_secrets: vec![secret], ..Access::default() };
            let changed = may_note && self.note(id, &name, access, now);
            return PullDecision::Known { changed };
        }
        let account = credentials.iter().find_map(|source| match source {
            Source::ServiceAccount(owner) => Some(owner),
            Source::Secret(_) => None,
        });
        match account.is_some_and(|account| access.kubernetes_service_accounts.contains(account)) {
            true => PullDecision::Known { changed: false },
            false => PullDecision::MustPull,
        }
    }

    /// Adds who may use an image. Answers whether that is news.
    fn note(&mut self, id: &str, name: &str, new: Access, now: Timestamp) -> bool {
        let record = self.pulled.entry(id.to_owned());
        let record = record.or_insert_with(|| Record::nobodys(Timestamp::UNIX_EPOCH));
        let changed = record.credential_mapping.entry(name.to_owned()).or_default().add(new);
        if record.entries() > MAX_ENTRIES_OF_IMAGE {
            record.credential_mapping.retain(|known, _| known == name);
        }
        if changed {
            record.last_updated_time = now;
        }
        self.bound();
        changed
    }

    /// The oldest go, where there are too many, and the oldest are nobody's, where too much is noted in them.
    pub(crate) fn bound(&mut self) {
        while self.pulled.len() > MAX_RECORDS {
            let oldest = self.pulled.iter().min_by_key(|(_, record)| record.last_noted()).map(|(id, _)| id.clone());
            match oldest {
                Some(oldest) => self.pulled.remove(&oldest),
                None => break,
            };
        }
        let mut entries: usize = self.pulled.values().map(Record::entries).sum();
        if entries > MAX_ENTRIES {
            let mut records: Vec<&mut Record> = self.pulled.values_mut().collect();
            records.sort_by_key(|record| record.last_noted());
            for record in records {
                if entries <= MAX_ENTRIES {
                    break;
                }
                entries -= record.entries();
                record.credential_mapping.clear();
            }
        }
    }

    /// Files stand there. Answers whether that has to be kept at once: of a pull that has begun its end, which is kept, is soon
    /// enough.
    pub fn files_stand(&mut self, files: &BTreeSet<FileId>) -> bool {
        let new: BTreeSet<FileId> = files.difference(&self.written).cloned().collect();
        let at_once = new.iter().any(|id| id.folder == Folder::Pulled);
        self.written.extend(new);
        at_once
    }

    /// Files may be gone from here on. Answers whether one of them was noted to stand there.
    pub fn files_go(&mut self, files: &BTreeSet<FileId>) -> bool {
        let before = self.written.len();
        self.written.retain(|id| !files.contains(id));
        self.written.len() != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "sha256:aaaa";
    const IMAGE: &str = "r.test/team/app:1";

    fn now() -> Timestamp {
        Timestamp::from_second(1000).unwrap()
    }

    fn owner(name: &str) -> Owner {
        Owner { namespace: "ns".into(), name: name.into(), uid: format!("uid-{name}") }
    }

    fn secret(name: &str, hash: &str) -> Source {
        Source::Secret(Secret { owner: owner(name), hash: hash.into() })
    }

    fn pulled(source: Option<Source>) -> PullRecords {
        let mut records = PullRecords::default();
        records.intend(IMAGE);
        records.ended(IMAGE, Some((ID, source.as_ref())), now());
        assert!(records.pulling.is_empty());
        records
    }

    #[test]
    fn who_is_asked() {
        let listed =
            Policy::of(true, "NeverVerifyAllowlistedImages", &["r.test/team/app".into(), "other.test/*".into()]);
        let preloaded = Policy::of(true, "NeverVerifyPreloadedImages", &[]);
        let of = |policy: &str| Policy::of(true, policy, &[]);
        assert_eq!((of(""), Policy::of(false, "AlwaysVerify", &[])), (preloaded.clone(), Policy::Off));
        let asked = |policy: &Policy, image: &str, ours| policy.verifies(image, ours);
        assert!(!asked(&preloaded, IMAGE, false) && asked(&preloaded, IMAGE, true));
        assert!(asked(&of("AlwaysVerify"), IMAGE, false));
        assert!(!asked(&of("NeverVerify"), IMAGE, true) && !asked(&Policy::Off, IMAGE, true));
        let digest = format!("r.test/team/app@sha256:{}", "a".repeat(64));
        for allowed in [IMAGE, "r.test/team/app", &digest, "other.test/a/b:2"] {
            assert!(!asked(&listed, allowed, true), "{allowed}");
        }
        for other in ["r.test/team/app2:1", "r.test/team", "other.tests/a"] {
            assert!(asked(&listed, other, false), "{other}");
        }
    }

    #[test]
    fn names_without_tags() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (image, name) in [
            ("busybox", "busybox"),
            ("busybox:latest", "busybox"),
            ("localhost:5000/a", "localhost:5000/a"),
            ("localhost:5000/a:1", "localhost:5000/a"),
            (&format!("r.test/a:1@{digest}"), "r.test/a"),
            (&format!("r.test/a@{digest}"), "r.test/a"),
        ] {
            assert_eq!(without_tag(image), Some(name), "{image}");
        }
        assert_eq!(without_tag("Not A Name"), None);
    }

    #[test]
    fn an_image_of_the_nodes_own_credentials_is_everybodys() {
        let policy = Policy::NeverVerifyPreloadedImages;
        let mut records = pulled(None);
        assert_eq!(records.look(&policy, IMAGE, ID, None, now()), PullDecision::Known { changed: false });
        // Under another name, nobody has shown anything.
        assert_eq!(records.look(&policy, "other.test/app:1", ID, None, now()), PullDecision::MustPull);
        // One that was there before.
        assert_eq!(records.look(&policy, "busybox:1", "sha256:bbbb", None, now()), PullDecision::Allowed);
        let mut always = PullRecords::default();
        assert_eq!(always.look(&Policy::AlwaysVerify, IMAGE, ID, None, now()), PullDecision::MustPull);
    }

    #[test]
    fn an_image_of_a_secret_is_theirs_who_have_it() {
        let policy = Policy::NeverVerifyPreloadedImages;
        let mut records = pulled(Some(secret("a", "h1")));
        let mut look = |with: Option<&[Source]>| records.look(&policy, "r.test/team/app:2", ID, with, now());
        assert_eq!(look(None), PullDecision::AskCredentials);
        assert_eq!(look(Some(&[])), PullDecision::MustPull);
        assert_eq!(look(Some(&[secret("b", "h2")])), PullDecision::MustPull);
        assert_eq!(look(Some(&[secret("b", "")])), PullDecision::MustPull);
        assert_eq!(look(Some(&[secret("x", "y"), secret("a", "h1")])), PullDecision::Known { changed: false });
        // The same credential in another secret; then that secret with another credential.
        assert_eq!(look(Some(&[secret("c", "h1")])), PullDecision::Known { changed: true });
        assert_eq!(look(Some(&[secret("c", "h1")])), PullDecision::Known { changed: false });
        assert_eq!(look(Some(&[secret("c", "h3")])), PullDecision::Known { changed: true });
        assert_eq!(look(Some(&[secret("d", "h3")])), PullDecision::Known { changed: true });
        // A service account is no secret.
        assert_eq!(look(Some(&[Source::ServiceAccount(owner("a"))])), PullDecision::MustPull);
        let mut records = pulled(Some(Source::ServiceAccount(owner("robot"))));
        let mut look = |with: &[Source]| records.look(&policy, IMAGE, ID, Some(with), now());
        assert_eq!(look(&[Source::ServiceAccount(owner("robot"))]), PullDecision::Known { changed: false });
        assert_eq!(look(&[Source::ServiceAccount(owner("other"))]), PullDecision::MustPull);
    }

    #[test]
    fn more_is_added_and_everybodys_stays_so() {
        let mut records = pulled(Some(secret("a", "h1")));
        let policy = Policy::AlwaysVerify;
        records.ended(IMAGE, Some((ID, Some(&Source::ServiceAccount(owner("robot"))))), now());
        assert_eq!(
            records.look(&policy, IMAGE, ID, Some(&[Source::ServiceAccount(owner("robot"))]), now()),
            PullDecision::Known { changed: false }
        );
        records.ended(IMAGE, Some((ID, None)), now());
        records.ended(IMAGE, Some((ID, Some(&secret("z", "z")))), now());
        assert_eq!(records.look(&policy, IMAGE, ID, None, now()), PullDecision::Known { changed: false });
    }

    #[test]
    fn pulls_that_were_cut_off() {
        let mut records = PullRecords::default();
        records.intend(IMAGE);
        records.intend(IMAGE);
        records.ended(IMAGE, None, now());
        assert!(records.pulling.contains(IMAGE), "another one still runs");
        // The next process finds what this one was at.
        let kept = serde_json::to_vec(&records).unwrap();
        let mut next: PullRecords = serde_json::from_slice(&kept).unwrap();
        assert_eq!(next.counts(), (1, 0));
        let policy = Policy::NeverVerifyPreloadedImages;
        assert_eq!(next.look(&policy, IMAGE, ID, None, now()), PullDecision::MustPull);
        let images = [(ID, vec!["r.test/team/app@sha256:1", IMAGE]), ("sha256:bbbb", vec!["busybox:1"])];
        next.take_stock(images.into_iter(), now());
        assert_eq!(next.counts(), (0, 1));
        // It was pulled by us, whatever it is called; by whose credentials nobody knows.
        for name in [IMAGE, "other.test/app:1"] {
            assert_eq!(next.look(&policy, name, ID, None, now()), PullDecision::MustPull);
        }
        assert_eq!(next.look(&policy, "busybox:1", "sha256:bbbb", None, now()), PullDecision::Allowed);
    }

    #[test]
    fn a_list_that_is_older_takes_nothing_away() {
        let policy = Policy::NeverVerifyPreloadedImages;
        let mut records = pulled(Some(secret("a", "h1")));
        records.intend("r.test/cut:1");
        records.abandoned("r.test/cut:1");
        records.intend("r.test/runs:1");
        let before = records.clone();
        records.take_stock([("sha256:cccc", vec!["r.test/runs:1"])].into_iter(), now());
        assert_eq!(records, before);
        assert_eq!(records.look(&policy, IMAGE, ID, Some(&[]), now()), PullDecision::MustPull);
        // The runtime went on with it.
        assert_eq!(records.look(&policy, "r.test/cut:1", "sha256:bbbb", None, now()), PullDecision::MustPull);
        // Pulled again while a list was under way that does not have it: the record says nothing new, and stays.
        let later = Timestamp::from_second(1001).unwrap();
        records.ended(IMAGE, Some((ID, Some(&secret("a", "h1")))), later);
        assert!(!records.prune(|_| false, later));
    }

    #[test]
    fn pulls_that_were_cut_off_are_bounded() {
        let mut records = PullRecords::default();
        for i in 0..=MAX_RECORDS {
            let image = format!("r.test/app:{i}");
            records.intend(&image);
            records.abandoned(&image);
        }
        records.intend(IMAGE);
        records.take_stock(std::iter::empty(), now());
        assert_eq!(records.pulling, BTreeSet::from([IMAGE.to_owned()]));
    }

    #[test]
    fn records_go_with_their_images() {
        let mut records = pulled(None);
        let later = Timestamp::from_second(1001).unwrap();
        assert!(!records.prune(|id| id == ID, later), "it is there");
        assert!(!records.prune(|_| false, now()), "written since the list was asked for");
        assert!(records.prune(|_| false, later));
        assert_eq!(records, PullRecords::default());
    }

    #[test]
    fn what_is_kept_is_bounded_and_read_again() {
        let mut records = PullRecords::default();
        for i in 0..MAX_RECORDS {
            let at = Timestamp::from_second(i64::try_from(i).unwrap() + 1).unwrap();
            records.pulled.insert(format!("sha256:{i}"), Record::nobodys(at));
        }
        // Pulled again, it is not the oldest any more.
        records.ended(IMAGE, Some(("sha256:0", None)), now());
        records.ended(IMAGE, Some((ID, None)), now());
        assert_eq!(records.pulled.len(), MAX_RECORDS);
        assert!(records.pulled.contains_key("sha256:0") && !records.pulled.contains_key("sha256:1"));
        let records = pulled(Some(secret("a", "h1")));
        let kept = serde_json::to_string(&records).unwrap();
        assert!(
            kept.contains(r#""kubernetesSecrets":[{"namespace":"ns","name":"a","uid":"uid-a","credentialHash":"h1"}]"#)
        );
        assert_eq!(serde_json::from_str::<PullRecords>(&kept).unwrap(), records);
    }

    #[test]
    fn whose_credentials_are_noted_is_bounded() {
        let policy = Policy::NeverVerifyPreloadedImages;
        let source = |i: usize, hash: &str| match i % 2 {
            0 => secret(&format!("s{i}"), hash),
            _ => Source::ServiceAccount(owner(&format!("a{i}"))),
        };
        let mut records = PullRecords::default();
        for i in 0..2 * MAX_NOTED {
            records.ended(IMAGE, Some((ID, Some(&source(i, &format!("h{i}"))))), now());
        }
        let look = |i: usize, records: &mut PullRecords| {
            records.look(&policy, IMAGE, ID, Some(&[source(i, &format!("h{i}"))]), now())
        };
        for i in [0, 1, 2 * MAX_NOTED - 1] {
            assert_eq!(look(i, &mut records), PullDecision::Known { changed: false }, "{i}");
        }
        // Who pulls again is the newest.
        for i in [0, 1, 2 * MAX_NOTED, 2 * MAX_NOTED + 1] {
            records.ended(IMAGE, Some((ID, Some(&source(i, &format!("h{i}"))))), now());
        }
        for (i, decision) in [
            (0, PullDecision::Known { changed: false }),
            (1, PullDecision::Known { changed: false }),
            (2, PullDecision::MustPull),
            (3, PullDecision::MustPull),
            (2 * MAX_NOTED, PullDecision::Known { changed: false }),
        ] {
            assert_eq!(look(i, &mut records), decision, "{i}");
        }
        // Under many names.
        for i in 0..=MAX_ENTRIES_OF_IMAGE {
            records.ended(&format!("r.test/{i}"), Some((ID, None)), now());
            assert!(records.pulled[ID].entries() <= MAX_ENTRIES_OF_IMAGE);
        }
        assert_eq!(look(0, &mut records), PullDecision::MustPull);
        let newest = format!("r.test/{MAX_ENTRIES_OF_IMAGE}:2");
        assert_eq!(records.look(&policy, &newest, ID, None, now()), PullDecision::Known { changed: false });
    }

    /// With names as long as they may be: a state file of 64 MiB or more is not written.
    #[test]
    fn all_that_is_noted_has_its_place_on_the_disk() {
        let long = |i: usize| Owner {
            namespace: "n".repeat(63),
            name: format!("{i:0>253}"),
            uid: "45bbbc9d-d0f2-4f05-b523-456180a33b77".into(),
        };
        let secrets = (0..MAX_NOTED).map(|i| Secret { owner: long(i), hash: "h".repeat(64) }).collect();
        let access = Access { kubernetes_secrets: secrets, ..Access::default() };
        let mut records = PullRecords::default();
        for i in 0..=MAX_ENTRIES / MAX_NOTED {
            let mut record = Record::nobodys(Timestamp::from_second(i64::try_from(i).unwrap() + 1).unwrap());
            record.credential_mapping.insert("r.test/team/app".into(), access.clone());
            records.pulled.insert(format!("sha256:{i}"), record);
        }
        records.ended(IMAGE, Some((ID, None)), now());
        let all: usize = records.pulled.values().map(Record::entries).sum();
        assert!((MAX_ENTRIES - 2 * MAX_NOTED..=MAX_ENTRIES).contains(&all), "{all}");
        assert!(serde_json::to_vec(&records).unwrap().len() < 11 << 20);
        let policy = Policy::NeverVerifyPreloadedImages;
        let with = [Source::Secret(Secret { owner: long(0), hash: "h".repeat(64) })];
        assert_eq!(records.look(&policy, IMAGE, "sha256:0", Some(&with), now()), PullDecision::MustPull, "the oldest");
        let newest = format!("sha256:{}", MAX_ENTRIES / MAX_NOTED);
        let decision = records.look(&policy, IMAGE, &newest, Some(&with), now());
        assert_eq!(decision, PullDecision::Known { changed: false });
    }

    #[test]
    fn that_a_file_stands_is_noted_as_long_as_its_record_is() {
        let mut records = PullRecords::default();
        let (begun, ended) = (BTreeSet::from([FileId::pulling(IMAGE)]), BTreeSet::from([FileId::pulled(ID)]));
        records.intend(IMAGE);
        assert!(!records.files_stand(&begun), "the pull's end is kept soon");
        assert_eq!(records.written, begun);
        records.ended(IMAGE, Some((ID, None)), now());
        assert!(!records.files_go(&begun), "it went with the record");
        assert!(records.files_stand(&ended));
        assert!(!records.files_stand(&ended), "it is noted");
        assert!(records.prune(|_| false, Timestamp::from_second(1001).unwrap()));
        assert!(!records.files_go(&ended));
        records.ended(IMAGE, Some((ID, None)), now());
        records.files_stand(&ended);
        assert!(records.files_go(&ended), "its record is too large for a file by now");
        assert!(records.written.is_empty());
    }
}
