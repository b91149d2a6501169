//! What the manifest folder means at every moment: which file gives which pod, which to read again and when. Pure but
//! for the uid record: observations and the time go in, names to read and complete sets come out.
//!
//! ```text
//!            valid, no pod yet                         valid, other content, seen twice SETTLE apart
//!  (absent) ------------------> good ----------------------------------------------------> good
//!      ^                         |  ^ unreadable, invalid, half-written: the pod stays, `problem` is set
//!      +-------------------------+--+
//!        gone for REMOVAL_GRACE
//! ```
//!
//! A file that is back sooner with the same pod was away for a moment, and how it went says what that means ([`Absence`]).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_types::PodUid;
use bulkhead_types::hash::fnv1a_128;
use kubelet_model::v1::Pod;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::store::{Content, Entry, EntryKind, Listing, StoreError};
use crate::sources::static_pod::{self, ForNode, Origin, StaticPod};
use crate::sources::uids::Uids;
use kubelet_model::decode;
use kubelet_model::pod::source::SourceKind;
use kubelet_model::validation::field::text;

/// A changed manifest of a running pod is taken when it reads the same twice, this far apart: a writer that has got
/// half-way must not restart the pod twice.
const SETTLE: Duration = Duration::from_millis(100);
/// Who saves or replaces a file takes the old one away and writes a new one at once; a file is gone when it stays away.
const REMOVAL_GRACE: Duration = Duration::from_millis(25);
/// What could not be read or taken is tried again after this, then left to the watch and the re-scan.
const RETRY: Duration = Duration::from_secs(1);
/// More entries than this are not looked at: a node runs a few hundred pods at most.
const FILES_MAX: usize = 4096;
/// Problems reported at a time, and the length of each.
const ERRORS_MAX: usize = 100;
const ERROR_CHARS_MAX: usize = 1000;

/// How a file went that is back within [`REMOVAL_GRACE`] with the same pod in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Absence {
    /// Editors save like this, and `kubeadm upgrade` exchanges manifests like this: it changes no pod that runs.
    MovedAway,
    /// Somebody removed it and wrote it again: the pod is removed, and then added (upstream `pkg/kubelet/config/file_linux.go`
    /// consumeWatchEvent, which takes a file that was moved away for removed as well).
    Removed,
}

/// The state of the folder.
#[derive(Debug)]
pub struct Folder {
    path: String,
    node: ForNode,
    uids: Arc<Mutex<Uids>>,
    /// By name; the single file has the empty name.
    files: BTreeMap<String, File>,
    /// Which file gives the pod of that namespace and name now.
    winners: BTreeMap<(String, String), String>,
    single_file: bool,
    /// Device of the folder when it last held manifests, or was last seen empty while it gave no pods.
    device: Option<u64>,
    /// There are more entries than are looked at.
    too_many: bool,
    /// What [`Folder::untaken`] said with the last set.
    untaken: Vec<String>,
    /// The path has been looked at with success; before that there is no set to deliver.
    seen: bool,
    delivered: bool,
    changed: bool,
    /// Files that were away for a moment and are back with the same pod.
    again: BTreeMap<String, Absence>,
    errors_changed: bool,
    /// Trouble with the path itself.
    problem: Option<String>,
    /// The path was found missing then; it is believed when it still is after `RETRY`.
    missing_since: Option<Instant>,
    relist_at: Option<Instant>,
}

#[derive(Debug, Default)]
struct File {
    good: Option<Good>,
    problem: Option<String>,
    problem_logged: bool,
    /// Could not be read the first time: nothing is known of it until it has been tried again.
    unread: bool,
    /// It gives no pod, and upstream's kubelet may have taken it: a pod that runs may be its.
    untaken: Option<Untaken>,
    /// Content that has been refused, so that it is not tried on and on.
    refused: Option<u128>,
    /// Content that will be taken if it is still the same `SETTLE` after it was first seen then.
    settling: Option<(u128, Instant)>,
    read_at: Option<Instant>,
    gone_at: Option<Instant>,
    /// It was seen to be gone since it was last read.
    absence: Option<Absence>,
    is_link: bool,
}

/// Why a file gives no pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Untaken {
    /// What stands in it is not known: once it can be read it may be what runs.
    Unread,
    /// What stands in it is refused: it has to be edited, and then it is another pod.
    Refused,
}

#[derive(Debug)]
struct Good {
    bytes: u128,
    built: StaticPod,
}

impl Folder {
    pub fn new(path: &Path, node: ForNode, uids: Arc<Mutex<Uids>>) -> Self {
        let path = path.to_string_lossy();
        let trimmed = path.trim_end_matches('/');
        Folder {
            path: if trimmed.is_empty() { "/".to_owned() } else { trimmed.to_owned() },
            node,
            uids,
            files: BTreeMap::new(),
            winners: BTreeMap::new(),
            single_file: false,
            device: None,
            too_many: false,
            untaken: Vec::new(),
            seen: false,
            delivered: false,
            changed: false,
            again: BTreeMap::new(),
            errors_changed: false,
            problem: None,
            missing_since: None,
            relist_at: None,
        }
    }

    fn full_path(&self, name: &str) -> String {
        if name.is_empty() { self.path.clone() } else { format!("{}/{name}", self.path) }
    }

    fn has_pods(&self) -> bool {
        self.files.values().any(|f| f.good.is_some())
    }

    fn path_problem(&mut self, problem: Option<String>) {
        if self.problem != problem {
            if let Some(problem) = &problem {
                tracing::error!(path = %self.path, "{problem}");
            }
            self.problem = problem;
            self.errors_changed = true;
        }
    }

    /// The path was listed. Returns the names to read now.
    pub fn listed(&mut self, listing: Result<Listing, StoreError>, now: Instant) -> Vec<String> {
        self.relist_at = None;
        if !matches!(listing, Ok(Listing::Missing)) {
            self.missing_since = None;
        }
        let entries = match listing {
            Err(error) => {
                self.path_problem(Some(format!("{error}; keeping the pods as they are")));
                // Whoever opens the folder for us may only be restarting.
                self.relist_at = Some(now + RETRY);
                return Vec::new();
            }
            Ok(Listing::Other) => {
                self.path_problem(Some(format!("{} is not a directory or file", self.path)));
                return Vec::new();
            }
            Ok(Listing::Missing) => {
                let since = *self.missing_since.get_or_insert(now);
                if self.has_pods() && now < since + RETRY {
                    // A folder that is being exchanged is away for a moment only.
                    self.relist_at = Some(since + RETRY);
                    return Vec::new();
                }
                self.path_problem(Some(format!("{} does not exist, ignoring", self.path)));
                Vec::new()
            }
            Ok(Listing::File) => {
                self.path_problem(None);
                self.single_file = true;
                vec![Entry { name: String::new(), kind: EntryKind::Regular }]
            }
            Ok(Listing::Folder { device, entries }) => match self.folder_entries(device, entries) {
                Some(entries) => entries,
                None => return Vec::new(),
            },
        };
        self.seen = true;
        let mut names = Vec::new();
        for entry in &entries {
            let full_path = self.full_path(&entry.name);
            let file = self.files.entry(entry.name.clone()).or_default();
            file.is_link = entry.kind == EntryKind::Link;
            if !file.is_link {
                // That a link stands there does not mean that it leads anywhere: reading it shows.
                file.gone_at = None;
            }
            match entry.kind {
                EntryKind::Regular | EntryKind::Link => names.push(entry.name.clone()),
                EntryKind::Folder => {
                    let why = format!("{full_path}: a directory; manifests in it are not read");
                    self.errors_changed |= file.forget(Some(why), &mut self.changed);
                }
                EntryKind::Unnamable => {
                    let why = format!("{full_path}: the file's name is not UTF-8; it is not read");
                    self.errors_changed |= file.forget(Some(why), &mut self.changed);
                    // Upstream's kubelet takes it.
                    file.untaken = Some(Untaken::Unread);
                }
                EntryKind::Other => {
                    let why = format!("{full_path}: not a directory or file");
                    self.errors_changed |= file.forget(Some(why), &mut self.changed);
                }
            }
        }
        let gone: Vec<String> =
            self.files.keys().filter(|name| !entries.iter().any(|e| e.name == **name)).cloned().collect();
        for name in gone {
            self.drop_file(&name);
        }
        names
    }

    /// Manifests among the entries; `None` when the folder looks as if its file system were gone.
    fn folder_entries(&mut self, device: u64, mut entries: Vec<Entry>) -> Option<Vec<Entry>> {
        if self.single_file {
            self.single_file = false;
            self.drop_file("");
        }
        entries.retain(|e| !e.name.is_empty() && !e.name.starts_with('.'));
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        if entries.is_empty() && self.has_pods() && self.device.is_some_and(|before| before != device) {
            let why = "empty, and on another file system than before; keeping the pods as they are";
            self.path_problem(Some(format!("{}: {why}", self.path)));
            return None;
        }
        // Of an empty folder without pods too: its first manifests come by the watch, before any other listing.
        if !entries.is_empty() || !self.has_pods() {
            self.device = Some(device);
        }
        self.too_many = entries.len() > FILES_MAX;
        entries.truncate(FILES_MAX);
        self.path_problem(self.too_many.then(|| format!("{}: only the first {FILES_MAX} entries are read", self.path)));
        Some(entries)
    }

    /// The watch says that a file is new or written.
    pub fn touched(&mut self, name: &str, now: Instant) {
        if !self.seen || self.missing_since.is_some() {
            self.relist_at = Some(now);
            return;
        }
        let name = if self.single_file { "" } else { name };
        if name.starts_with('.') || (name.is_empty() && !self.single_file) {
            return;
        }
        if self.files.len() >= FILES_MAX && !self.files.contains_key(name) {
            return;
        }
        let file = self.files.entry(name.to_owned()).or_default();
        file.gone_at = None;
        file.refused = None;
        file.read_at = Some(now);
    }

    /// The watch says that a file is gone.
    pub fn gone(&mut self, name: &str, absence: Absence, now: Instant) {
        if self.single_file || !self.seen {
            self.relist_at = Some(now + REMOVAL_GRACE);
            return;
        }
        if let Some(file) = self.files.get_mut(name) {
            file.read_at = None;
            file.gone_at = Some(now + REMOVAL_GRACE);
            file.absence = file.absence.max(Some(absence));
        }
    }

    /// Names to read again now. Files that stayed away are dropped on the way.
    pub fn due(&mut self, now: Instant) -> Vec<String> {
        let gone: Vec<String> =
            self.files.iter().filter(|(_, f)| f.gone_at.is_some_and(|at| at <= now)).map(|(n, _)| n.clone()).collect();
        for name in gone {
            self.drop_file(&name);
        }
        let mut due = Vec::new();
        for (name, file) in &mut self.files {
            if file.read_at.is_some_and(|at| at <= now) {
                file.read_at = None;
                due.push(name.clone());
            }
        }
        due
    }

    pub fn relist_due(&self, now: Instant) -> bool {
        self.relist_at.is_some_and(|at| at <= now)
    }

    /// When there is something to do without any word from the watch.
    pub fn next_due(&self) -> Option<Instant> {
        let files = self.files.values().flat_map(|f| [f.read_at, f.gone_at]).flatten();
        files.chain(self.relist_at).min()
    }

    fn drop_file(&mut self, name: &str) {
        if let Some(file) = self.files.remove(name) {
            self.changed |= file.good.is_some();
            self.errors_changed |= file.problem.is_some();
        }
    }

    /// A file was read.
    pub fn read(&mut self, name: &str, content: Result<Content, StoreError>, now: Instant) {
        if self.single_file && matches!(content, Ok(Content::Folder | Content::NotRegular)) {
            // The path itself has become something else. A look at it decides: a pipe keeps the pod, as upstream.
            self.relist_at = Some(now + REMOVAL_GRACE);
            return;
        }
        let full_path = self.full_path(name);
        let bytes = {
            let Some(file) = self.files.get_mut(name) else { return };
            match content {
                Ok(Content::Bytes(bytes)) => bytes,
                Ok(Content::Missing) => {
                    // It may be under exchange: an editor moved it away, or a link's target is being replaced.
                    if file.good.is_none() {
                        self.drop_file(name);
                    } else if file.gone_at.is_none() {
                        file.gone_at = Some(now + if file.is_link { RETRY } else { REMOVAL_GRACE });
                        file.absence = file.absence.max(Some(Absence::MovedAway));
                    }
                    return;
                }
                Ok(Content::Folder) => {
                    let why = format!("{full_path}: a directory; manifests in it are not read");
                    self.errors_changed |= file.forget(Some(why), &mut self.changed);
                    return;
                }
                Ok(Content::NotRegular) => {
                    let why = format!("{full_path}: not a directory or file");
                    self.errors_changed |= file.forget(Some(why), &mut self.changed);
                    return;
                }
                Err(error) => return self.trouble(name, &error.to_string(), None, now),
            }
        };
        let digest = fnv1a_128(&bytes);
        let Some(file) = self.files.get_mut(name) else { return };
        file.gone_at = None;
        if file.good.as_ref().is_some_and(|good| good.bytes == digest) {
            file.settling = None;
            file.refused = None;
            self.errors_changed |= file.problem.take().is_some();
            if let Some(absence) = file.absence.take() {
                self.again.insert(name.to_owned(), absence);
            }
            return;
        }
        if file.refused == Some(digest) {
            return;
        }
        let built = decode::pod(&bytes).map_err(|e| format!("couldn't parse as pod: {e}")).and_then(|(pod, more)| {
            let uids = self.uids.lock();
            let built = static_pod::build(pod, Origin::File(&full_path), &self.node, &uids);
            built.map(|built| (built, more)).map_err(|e| e.to_string())
        });
        match built {
            Err(why) => {
                file.settling = None;
                self.trouble(name, &why, Some(digest), now);
            }
            Ok(_) if file.good.is_some() && !file.has_settled(digest, now) => {}
            Ok((built, more)) => {
                if more {
                    tracing::warn!(path = %full_path, "only the first of several YAML documents is used");
                }
                let same_pod = file.good.as_ref().is_some_and(|good| good.built.pod == built.pod);
                self.changed |= !same_pod;
                if let Some(absence) = file.absence.filter(|_| same_pod) {
                    self.again.insert(name.to_owned(), absence);
                }
                self.errors_changed |= file.problem.take().is_some();
                *file = File { good: Some(Good { bytes: digest, built }), is_link: file.is_link, ..File::default() };
            }
        }
    }

    /// Cannot be read or taken at the moment: the last good pod stays, over a restart too. Logged once, when it fails
    /// for the second time: a file that is being written fails once as a matter of course.
    fn trouble(&mut self, name: &str, why: &str, content: Option<u128>, now: Instant) {
        let full_path = self.full_path(name);
        let Some(file) = self.files.get_mut(name) else { return };
        if file.good.is_none() {
            let uids = self.uids.lock();
            let origin = static_pod::choice_key(Origin::File(&full_path), "", "");
            let restored = uids.recorded(&origin).and_then(|c| StaticPod::from_record(&origin, c, &self.node.name));
            self.changed |= restored.is_some();
            // No bytes have that digest, so whatever the file holds next is looked at.
            file.good = restored.map(|built| Good { bytes: u128::MAX, built });
        }
        let untaken = if content.is_none() { Untaken::Unread } else { Untaken::Refused };
        file.untaken = file.good.is_none().then_some(untaken);
        let kept = if file.good.is_some() { "; the pod stays as it was" } else { "" };
        let problem = format!("{full_path}: {why}{kept}");
        if file.problem.as_ref() != Some(&problem) {
            file.problem = Some(problem);
            file.problem_logged = false;
            file.unread = content.is_none() && file.good.is_none();
            file.read_at = Some(now + RETRY);
            self.errors_changed = true;
        } else {
            if !file.problem_logged {
                tracing::error!("{problem}");
            }
            file.problem_logged = true;
            file.unread = false;
            file.refused = content;
        }
    }

    /// The complete set, when it or what [`Folder::untaken`] says has changed, or when it has never been delivered.
    pub fn take_set(&mut self, now: Instant) -> Option<Vec<Pod>> {
        // A set that lacks a file because it has not been read yet would end that file's running pod.
        let first = !self.delivered;
        let reading = self.files.values().any(|f| f.read_at.is_some_and(|at| at <= now) || (first && f.unread));
        if !self.seen || reading {
            return None;
        }
        // Not by `errors_changed`: that is told, and forgotten, while a set waits for a file to be read.
        let untaken = self.find_untaken();
        if self.delivered && !self.changed && self.untaken == untaken {
            return None;
        }
        self.untaken = untaken;
        self.changed = false;
        self.delivered = true;
        let chosen = self.choose_winners();
        let mut uids = self.uids.lock();
        let built = chosen.iter().filter_map(|name| Some(&self.files.get(name)?.good.as_ref()?.built));
        uids.commit("file:", built.map(|b| (b.origin.clone(), b.choice())).collect());
        if self.too_many || self.files.values().any(|f| f.untaken == Some(Untaken::Unread)) {
            // Once such a file can be read, its pod goes on.
            uids.narrow_adoption(SourceKind::File);
        } else {
            uids.close_adoption(SourceKind::File);
        }
        drop(uids);
        let pods = chosen.iter().filter_map(|name| Some(self.files.get(name)?.good.as_ref()?.built.pod.clone()));
        Some(pods.collect())
    }

    /// Files that upstream's kubelet may have taken, that give no pod here and of which there is no record, each with the reason, as
    /// they were when the last set was taken. A pod that runs and that no manifest wants may be one of theirs.
    pub fn untaken(&self) -> Vec<String> {
        self.untaken.clone()
    }

    fn find_untaken(&self) -> Vec<String> {
        let files = self.files.values().filter(|f| f.untaken.is_some()).filter_map(|f| f.problem.clone());
        shown(self.problem.iter().filter(|_| self.too_many).cloned().chain(files))
    }

    /// Pods whose file was away and is back with the same pod in it, before it was taken for gone.
    pub fn take_again(&mut self) -> Vec<(PodUid, Absence)> {
        let again = std::mem::take(&mut self.again);
        let names = again.into_iter().filter(|(name, _)| self.winners.values().any(|winner| winner == name));
        let pods = names.filter_map(|(name, absence)| {
            let pod = &self.files.get(&name)?.good.as_ref()?.built.pod;
            Some((PodUid::parse(text(&pod.metadata.uid)).ok()?, absence))
        });
        pods.collect()
    }

    /// One file for each namespace and name: the one that has it already, else the recorded one, else the last by name
    /// (upstream's store keeps the last). So an editor's backup copy never takes a running pod over.
    fn choose_winners(&mut self) -> Vec<String> {
        let mut claims: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
        for (name, file) in &self.files {
            if let Some(good) = &file.good {
                let meta = &good.built.pod.metadata;
                let key = (text(&meta.namespace).to_owned(), text(&meta.name).to_owned());
                claims.entry(key).or_default().push(name.clone());
            }
        }
        let uids = self.uids.lock();
        let mut winners = BTreeMap::new();
        for (pod, names) in claims {
            let incumbent = self.winners.get(&pod).filter(|name| names.contains(name));
            let recorded = || {
                names.iter().find(|name| {
                    let key = static_pod::choice_key(Origin::File(&self.full_path(name)), &pod.0, &pod.1);
                    uids.recorded(&key).is_some()
                })
            };
            let winner = incumbent.or_else(recorded).or(names.last()).cloned().unwrap_or_default();
            for shadowed in names.iter().filter(|name| **name != winner) {
                tracing::warn!(pod = %pod.1, file = %shadowed, used = %winner, "two manifests for one pod");
            }
            winners.insert(pod, winner);
        }
        drop(uids);
        self.winners = winners;
        self.errors_changed = true;
        let mut chosen: Vec<String> = self.winners.values().cloned().collect();
        chosen.sort();
        chosen
    }

    /// True once after the list of errors has changed.
    pub fn take_errors_changed(&mut self) -> bool {
        std::mem::take(&mut self.errors_changed)
    }

    /// What is wrong now, for whoever asks.
    pub fn errors(&self) -> Vec<String> {
        let shadowed = self.files.iter().filter_map(|(name, file)| {
            let meta = &file.good.as_ref()?.built.pod.metadata;
            let pod = (text(&meta.namespace).to_owned(), text(&meta.name).to_owned());
            let winner = self.winners.get(&pod).filter(|winner| *winner != name)?;
            let (path, used) = (self.full_path(name), self.full_path(winner));
            Some(format!("{path}: ignored, {used} has a pod of the same name {}/{}", pod.0, pod.1))
        });
        let problems = self.files.values().filter_map(|f| f.problem.clone());
        shown(self.problem.iter().cloned().chain(problems).chain(shadowed))
    }
}

fn shown(problems: impl Iterator<Item = String>) -> Vec<String> {
    problems.take(ERRORS_MAX).map(|e| e.chars().take(ERROR_CHARS_MAX).collect()).collect()
}

impl File {
    /// Whether this content has stood long enough; if not, when to look again is noted.
    fn has_settled(&mut self, digest: u128, now: Instant) -> bool {
        let since = match self.settling {
            Some((content, since)) if content == digest => since,
            _ => now,
        };
        self.settling = Some((digest, since));
        let at = since + SETTLE;
        if now < at {
            self.read_at = Some(at);
        }
        now >= at
    }

    /// What is here now can never be a manifest: its pod goes. True when the problem is a new one.
    fn forget(&mut self, problem: Option<String>, changed: &mut bool) -> bool {
        *changed |= self.good.take().is_some();
        let news = self.problem != problem;
        if let Some(problem) = problem.as_ref().filter(|_| news) {
            tracing::error!("{problem}");
        }
        *self = File { problem, ..File::default() };
        news
    }
}
