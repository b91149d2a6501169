//! What is staged and published, or may be: folders, `vol_data.json`, mountinfo and the journal together (upstream's
//! reconstruction reads the same files). Nothing that a driver serves is entered: a mount over the way to a file of ours is a
//! problem of that volume, told and not looked behind.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use bulkhead_sys::{open, tree};
use bulkhead_types::{PodUid, VolumeName, chain};
use rustix::fs::{FileType, OFlags};

use super::super::{
    VolumeError,
    list::{drop_contradicted as drop_of_all, pods_on_disk},
    pod_dir,
};
use super::data::{self, VolData};
use super::paths;
use super::{stage, way};
use crate::journal::{Intent, JournalError, StagedKey, StagingIntent};
use crate::node::Node;

const MAX_ENTRIES: usize = 100_000;

/// One that is staged once a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StagedVolume {
    /// Of a block volume.
    pub block: Option<String>,
    /// As the folder's name tells.
    pub driver: String,
    /// Of a file that can be read and belongs there.
    pub data: Option<VolData>,
    /// Below `plugins/kubernetes.io/csi`; holds the file.
    pub folder: PathBuf,
    /// Absolute.
    pub target: PathBuf,
    pub mounted: bool,
    pub uncertain: bool,
    /// Empty where the file can be read.
    pub problem: String,
}

/// One that is published to one pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedVolume {
    pub pod: PodUid,
    pub spec: String,
    pub block: bool,
    pub data: Option<VolData>,
    /// Absolute.
    pub target: PathBuf,
    pub mounted: bool,
    pub uncertain: bool,
    /// Empty where the file can be read.
    pub problem: String,
}

impl PublishedVolume {
    /// In words, for who wants the pod torn down.
    pub fn what(&self) -> String {
        let driver = self.data.as_ref().and_then(VolData::device).map(|device| device.driver.to_string());
        let kind = if self.block { "block volume" } else { "volume" };
        format!(
            "{kind} {} of CSI driver {} is published to the pod",
            self.spec,
            driver.as_deref().unwrap_or("(unknown)")
        )
    }
}

/// Names in a folder, sorted; a folder that is not there has none.
fn names(dir: &OwnedFd, shown: &Path, relative: &Path) -> Result<Vec<String>, VolumeError> {
    let Some(folder) = way::folder(dir.as_fd(), shown, relative)? else { return Ok(Vec::new()) };
    let entries = tree::list(folder.as_fd(), MAX_ENTRIES)
        .map_err(|source| VolumeError::List { path: shown.join(relative), source })?;
    // What is no text was made by nobody who knows the layout.
    let mut names: Vec<String> = entries.into_iter().filter_map(|entry| entry.name.into_string().ok()).collect();
    names.sort();
    Ok(names)
}

/// The file of a folder, or why it cannot be read; None: neither file nor anything else that makes a volume.
struct Found {
    data: Option<VolData>,
    problem: String,
}

fn read(dir: &OwnedFd, shown: &Path, folder: &Path, mounts: &way::Mounts) -> Found {
    let problem = |text: String| Found { data: None, problem: text };
    let file = shown.join(folder).join(data::NAME);
    if let Some(point) = mounts.over_the_way(&file) {
        return problem(format!("something is mounted over {}", point.display()));
    }
    if mounts.at(&file) {
        return problem(format!("something is mounted over {}", file.display()));
    }
    match way::folder(dir.as_fd(), shown, folder) {
        Ok(Some(open)) => match VolData::read(open.as_fd()) {
            Ok(Some(data)) => Found { data: Some(data), problem: String::new() },
            Ok(None) => problem(format!("there is no {}", file.display())),
            Err(error) => problem(format!("{}: {}", file.display(), chain(&error))),
        },
        Ok(None) => problem(format!("there is no {}", file.display())),
        Err(error) => problem(chain(&error)),
    }
}

/// Whether the file belongs into the folder; else why not.
pub fn belongs(data: &VolData, driver: &str, hash: Option<&str>) -> String {
    match data.device() {
        None => "vol_data.json names no driver or no volume".to_owned(),
        Some(device) if hash.is_some() && device.driver.as_str() != driver => {
            format!("vol_data.json is of driver {}", device.driver)
        }
        Some(device) if hash.is_some_and(|hash| hash != device.handle.hash()) => {
            "vol_data.json is of a volume whose folder has another name".to_owned()
        }
        Some(_) => String::new(),
    }
}

/// The same of a file of a volume that is published, or of a block volume: it names the volume as the folder does.
pub fn belongs_to_spec(data: &VolData, spec: &str) -> String {
    let problem = belongs(data, "", None);
    match data.spec() {
        Some(named) if problem.is_empty() && named != spec => format!("vol_data.json is of the volume {named}"),
        _ => problem,
    }
}

impl Found {
    /// What is in the file counts only where it belongs there: nobody is to ask a driver for another volume.
    fn judged(self, belongs: impl FnOnce(&VolData) -> String) -> Self {
        match self.data.as_ref().map(belongs) {
            Some(problem) if !problem.is_empty() => Found { data: None, problem },
            _ => self,
        }
    }
}

/// All that is staged.
///
/// # Errors
/// The folders cannot be listed.
pub fn staged(node: &Node) -> Result<Vec<StagedVolume>, VolumeError> {
    drop_contradicted(node);
    let shown = paths::base(&node.settings.paths);
    let mut volumes = Vec::new();
    let Some(base) = stage::base(&node.settings)? else { return Ok(volumes) };
    let mounts = way::Mounts::below(&shown)?;
    let is_uncertain = |folder: &Path| !node.staging.of(&StagedKey::of(folder)).is_empty();
    for driver in names(&base, &shown, Path::new(""))?.into_iter().filter(|name| name != paths::BLOCK) {
        // What is mounted over a driver's folder hides its volumes: they are told of by what syncd knows of them.
        if mounts.at(&shown.join(&driver)) {
            continue;
        }
        for hash in names(&base, &shown, Path::new(&driver)).unwrap_or_default() {
            let folder = Path::new(&driver).join(&hash);
            let target = folder.join("globalmount");
            let found = read(&base, &shown, &folder, &mounts);
            let mounted = mounts.at_or_below(&shown.join(&folder)).is_some();
            if found.data.is_none() && !mounted && is_bare(&base, &shown, &folder, &target) {
                continue;
            }
            let Found { data, problem } = found.judged(|data| belongs(data, &driver, Some(&hash)));
            let uncertain = is_uncertain(&folder) || (!mounted && is_missing(&base, &shown, &target));
            let target = shown.join(target);
            let driver = driver.clone();
            volumes.push(StagedVolume { block: None, driver, data, folder, target, mounted, uncertain, problem });
        }
    }
    for spec in specs(&base, &shown)? {
        let folder = Path::new(paths::BLOCK).join(&spec).join("data");
        let target = Path::new(paths::BLOCK).join("staging").join(&spec);
        let found = read(&base, &shown, &folder, &mounts);
        let Found { data, problem } = found.judged(|data| belongs_to_spec(data, &spec));
        volumes.push(StagedVolume {
            driver: String::new(),
            data,
            mounted: mounts.at_or_below(&shown.join(&target)).is_some(),
            uncertain: is_uncertain(&folder),
            target: shown.join(target),
            folder,
            problem,
            block: Some(spec),
        });
    }
    Ok(volumes)
}

/// A folder without a file and without anything where the driver would be: no volume, or no more. One whose file cannot be read is
/// a volume: upstream's kubelet, killed while it writes the file, leaves it so.
fn is_bare(base: &OwnedFd, shown: &Path, folder: &Path, target: &Path) -> bool {
    matches!(way::handle(base.as_fd(), shown, folder), Ok(Some((_, FileType::Directory))))
        && is_missing(base, shown, target)
        && is_missing(base, shown, &folder.join(data::NAME))
}

/// Whether nothing is where a driver would be.
fn is_missing(dir: &OwnedFd, shown: &Path, target: &Path) -> bool {
    matches!(way::handle(dir.as_fd(), shown, target), Ok(None))
}

/// Names of block volumes that are staged or published, or have a folder.
fn specs(base: &OwnedFd, shown: &Path) -> Result<Vec<String>, VolumeError> {
    let mut specs = names(base, shown, Path::new(paths::BLOCK))?;
    specs.retain(|name| !paths::NO_VOLUMES.contains(&name.as_str()));
    for folder in paths::NO_VOLUMES {
        specs.extend(names(base, shown, &Path::new(paths::BLOCK).join(folder))?);
    }
    specs.sort();
    specs.dedup();
    Ok(specs)
}

/// All that is published, to one pod or to all.
///
/// # Errors
/// The folders cannot be listed.
pub fn published(node: &Node, pod: Option<&PodUid>) -> Result<Vec<PublishedVolume>, VolumeError> {
    drop_of_all(node);
    let pods = match pod {
        Some(pod) => vec![pod.clone()],
        None => pods_on_disk(node)?,
    };
    let below = node.settings.paths.pods();
    let mounts = way::Mounts::when_asked(&below);
    let mut volumes = Vec::new();
    for pod in &pods {
        // A pod that goes away while we look has no volumes.
        if let Ok(dir) = pod_dir(&node.settings, pod)
            && !has_none(&dir)
        {
            volumes.extend(file_systems(node, pod, &dir, mounts.get()?));
        }
    }
    volumes.extend(blocks(node, pod)?);
    volumes.sort_by(|a, b| (&a.pod, &a.spec, a.block).cmp(&(&b.pod, &b.spec, b.block)));
    Ok(volumes)
}

fn is_uncertain(node: &Node, pod: &PodUid, spec: &str, block: bool) -> bool {
    let is_it =
        |intent: &Intent| matches!(intent, Intent::Publish { spec: s, block: b } if s.as_str() == spec && *b == block);
    node.journal.of(pod).iter().any(is_it)
}

/// Whether a pod has no folder for file systems of drivers. One that something is mounted over is no such pod, and not entered.
fn has_none(dir: &OwnedFd) -> bool {
    let folder = Path::new("volumes").join(paths::FOLDER);
    open::beneath_same_mount(dir.as_fd(), folder, OFlags::PATH).is_err_and(|error| error.is_not_found())
}

fn file_systems(node: &Node, pod: &PodUid, dir: &OwnedFd, mounts: &way::Mounts) -> Vec<PublishedVolume> {
    let shown = node.settings.paths.pod(pod);
    let plugin = Path::new("volumes").join(paths::FOLDER);
    if mounts.at(&shown) || mounts.over_the_way(&shown.join(&plugin).join("x")).is_some() {
        return Vec::new();
    }
    let mut volumes = Vec::new();
    for spec in names(dir, &shown, &plugin).unwrap_or_default() {
        let (folder, target) = (paths::pod_folder(&spec), paths::pod_mount(&spec));
        let found = read(dir, &shown, &folder, mounts);
        let mounted = mounts.at_or_below(&shown.join(&folder)).is_some();
        if found.data.is_none() && !mounted && is_bare(dir, &shown, &folder, &target) {
            continue;
        }
        let Found { data, problem } = found.judged(|data| belongs_to_spec(data, &spec));
        let there = if mounted { None } else { way::handle(dir.as_fd(), &shown, &target).ok() };
        let missing = matches!(there, Some(None));
        // A driver's link is there without a mount. It outlives a boot, and what it leads to may not: its driver is asked again.
        let linked = matches!(there, Some(Some((_, FileType::Symlink))));
        volumes.push(PublishedVolume {
            pod: pod.clone(),
            block: false,
            data,
            uncertain: linked || missing || is_uncertain(node, pod, &spec, false),
            mounted: mounted || linked,
            target: shown.join(target),
            problem,
            spec,
        });
    }
    volumes
}

/// What makes a block volume a pod's: what the driver published, its bind, its link, an intent. A part without the others was
/// left by a kubelet that was killed, and is uncertain.
#[derive(Default)]
struct Parts {
    published: bool,
    bound: bool,
    linked: bool,
    intended: bool,
}

/// By pod and specification.
type AllParts = BTreeMap<(PodUid, String), Parts>;

fn blocks(node: &Node, of: Option<&PodUid>) -> Result<Vec<PublishedVolume>, VolumeError> {
    let shown = paths::base(&node.settings.paths);
    let base = stage::base(&node.settings)?;
    let mut all = AllParts::new();
    if let Some(base) = &base {
        published_and_bound(base, &shown, &mut all)?;
    }
    linked(node, of, &mut all)?;
    intended(node, &mut all);
    all.retain(|(pod, _), _| of.is_none_or(|of| of == pod));
    let mounts = way::Mounts::when_asked(&shown);
    let judged = all.into_iter().map(|(whose, parts)| Ok(block(&shown, base.as_ref(), mounts.get()?, whose, &parts)));
    judged.collect()
}

/// What the plugin's folder tells: the names in the folders of a block volume are pods'.
fn published_and_bound(base: &OwnedFd, shown: &Path, all: &mut AllParts) -> Result<(), VolumeError> {
    for spec in specs(base, shown)? {
        let pods = |folder: &Path| names(base, shown, folder).unwrap_or_default();
        for pod in pods(&paths::publish(&spec)).iter().filter_map(|name| PodUid::parse(name).ok()) {
            all.entry((pod, spec.clone())).or_default().published = true;
        }
        for pod in pods(&paths::map(&spec)).iter().filter_map(|name| PodUid::parse(name).ok()) {
            all.entry((pod, spec.clone())).or_default().bound = true;
        }
    }
    Ok(())
}

/// What the pods' folders tell. A pod that goes away while we look has none.
fn linked(node: &Node, of: Option<&PodUid>, all: &mut AllParts) -> Result<(), VolumeError> {
    let pods = match of {
        Some(pod) => vec![pod.clone()],
        None => pods_on_disk(node)?,
    };
    for pod in pods {
        let Ok(dir) = pod_dir(&node.settings, &pod) else { continue };
        for spec in names(&dir, &node.settings.paths.pod(&pod), &paths::pod_links()).unwrap_or_default() {
            all.entry((pod.clone(), spec)).or_default().linked = true;
        }
    }
    Ok(())
}

/// What the journal tells.
fn intended(node: &Node, all: &mut AllParts) {
    for (pod, intents) in node.journal.all() {
        for intent in intents {
            if let Intent::Publish { spec, block: true } = intent {
                all.entry((pod.clone(), spec.to_string())).or_default().intended = true;
            }
        }
    }
}

/// One of them, with what its file says.
fn block(
    shown: &Path,
    base: Option<&OwnedFd>,
    mounts: &way::Mounts,
    (pod, spec): (PodUid, String),
    parts: &Parts,
) -> PublishedVolume {
    let folder = Path::new(paths::BLOCK).join(&spec).join("data");
    let found = match base {
        Some(base) => read(base, shown, &folder, mounts),
        None => Found { data: None, problem: format!("there is no {}", shown.display()) },
    };
    let Found { data, problem } = found.judged(|data| belongs_to_spec(data, &spec));
    let target = shown.join(paths::publish(&spec)).join(pod.as_str());
    PublishedVolume {
        mounted: mounts.at(&shown.join(paths::map(&spec)).join(pod.as_str())) || mounts.at(&target),
        uncertain: parts.intended || !(parts.published && parts.bound && parts.linked),
        block: true,
        pod,
        spec,
        data,
        target,
        problem,
    }
}

/// Whether the disk bears an intent out: something of the volume is there.
pub fn bears_out(node: &Node, pod: &PodUid, spec: &VolumeName, block: bool) -> bool {
    let there = |dir: &OwnedFd, shown: &Path, path: &Path| !matches!(way::handle(dir.as_fd(), shown, path), Ok(None));
    let shown = paths::base(&node.settings.paths);
    if !block {
        let folder = paths::pod_folder(spec.as_str());
        return match pod_dir(&node.settings, pod) {
            Ok(dir) => there(&dir, &node.settings.paths.pod(pod), &folder),
            Err(VolumeError::UnknownPod { .. }) => false,
            Err(_) => true,
        };
    }
    match stage::base(&node.settings) {
        // As long as it may be staged a driver may publish it.
        Ok(Some(base)) => {
            there(&base, &shown, &Path::new(paths::BLOCK).join(spec.as_str()))
                || there(&base, &shown, &paths::publish(spec.as_str()).join(pod.as_str()))
        }
        Ok(None) => false,
        Err(_) => true,
    }
}

/// Drops intents of volumes that are not staged any more.
pub fn drop_contradicted(node: &Node) {
    if node.staging.all().is_empty() {
        return;
    }
    let shown = paths::base(&node.settings.paths);
    let Ok(base) = stage::base(&node.settings) else { return };
    let lock = |key: &StagedKey| node.try_lock_staged(key);
    node.staging.retain(lock, |_, StagingIntent::Stage { folder }| {
        base.as_ref().is_some_and(|base| !matches!(way::handle(base.as_fd(), &shown, folder), Ok(None)))
    });
}

/// At the first start after a boot, or on a node that another kubelet has kept: what is found was mounted by nobody that we know
/// of, so that all of it is uncertain. Gives how many, and whether that is on the disk: in this process it is so without it.
///
/// # Errors
/// The volumes cannot be listed.
pub fn nothing_is_certain(node: &Node) -> Result<(usize, Result<(), JournalError>), VolumeError> {
    let (mut count, mut written) = (0, Ok(()));
    for volume in staged(node)? {
        let intent = StagingIntent::Stage { folder: volume.folder.clone() };
        written = written.and(node.staging.begin_here(&StagedKey::of(&volume.folder), intent));
        count += 1;
    }
    for volume in published(node, None)? {
        if let Ok(spec) = VolumeName::parse(&volume.spec) {
            let intent = Intent::Publish { spec, block: volume.block };
            written = written.and(node.journal.begin_here(&volume.pod, intent));
            count += 1;
        }
    }
    Ok((count, written))
}
