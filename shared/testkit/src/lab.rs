//! One laboratory: a number, a folder, a network namespace, a containerd. All names follow from the number, and the
//! number is claimed with a lock that dies with the process: what a killed test left behind is found and removed by
//! the next lab of the machine.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal;

use crate::containerd::Containerd;
use crate::netns::{self, NetNs};
use crate::node::{self, NodeBuilder};
use crate::release::{Programs, Release};
use crate::{cgroups, containerd, loops, machine, mounts, processes, systemd};

const LOCKS: &str = "/run/bulkhead-lab";
/// As many labs of tests at once as keep two cores busy: a test of a node waits more than it computes. The groups `lab` and
/// `cluster` of `.config/nextest.toml` have as many threads together: one more would only wait here.
const PLACES: [&str; 4] = ["place-1", "place-2", "place-3", "place-4"];
/// Held by whoever is next to get a place, or all of them.
const TURN: &str = "turn";
/// Between two looks for a free place: small against a lab's start.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const MACHINE: &str = "machine";
const VIRTUAL_MACHINE: &str = "virtual-machine";
/// Below /var/lib rather than /tmp: the node refuses configuration that lies in folders which others may write.
pub(crate) const FOLDERS: &str = "/var/lib/bulkhead-lab";

/// A laboratory; clones share it, the last one to go tears it down.
#[derive(Debug, Clone)]
pub struct Lab {
    inner: Arc<Inner>,
}

/// A lock on a file that goes away with it.
#[derive(Debug)]
pub struct Claim {
    path: PathBuf,
    _held: Flock<File>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Removed while the lock is still held: whoever waits for it finds that and takes a new file.
        let _ = std::fs::remove_file(&self.path);
        let _ = std::fs::remove_dir(LOCKS);
    }
}

#[derive(Debug)]
struct Inner {
    number: u8,
    // Order of fields is order of drop: the number is given back last.
    containerd: Containerd,
    netns: NetNs,
    _places: Vec<Claim>,
    _claim: Claim,
}

impl Lab {
    /// A lab for a test, which waits until one of the places for labs is free. Its containerd is that which the environment
    /// names ([`Release::from_environment`]).
    ///
    /// # Errors
    /// Not root, something cannot be installed, or containerd did not come up.
    pub fn start() -> Result<Self> {
        Self::start_on(Release::from_environment()?)
    }

    /// The same with a certain containerd, for what not all of them can do.
    ///
    /// # Errors
    /// As [`Lab::start`].
    pub fn start_on(release: Release) -> Result<Self> {
        Self::start_with(vec![one_place(&PLACES, TURN)?], release)
    }

    /// A lab for what measures: waits until no other test has one, because timings mean nothing otherwise.
    ///
    /// # Errors
    /// As [`Lab::start`].
    pub fn start_alone() -> Result<Self> {
        Self::start_alone_on(Release::from_environment()?)
    }

    /// The same with a certain containerd.
    ///
    /// # Errors
    /// As [`Lab::start`].
    pub fn start_alone_on(release: Release) -> Result<Self> {
        Self::start_with(all_places(&PLACES, TURN)?, release)
    }

    /// A lab beside others: a second node of the same test, the demo.
    ///
    /// # Errors
    /// As [`Lab::start`].
    pub fn start_beside() -> Result<Self> {
        Self::start_beside_on(Release::from_environment()?)
    }

    /// The same with a certain containerd.
    ///
    /// # Errors
    /// As [`Lab::start`].
    pub fn start_beside_on(release: Release) -> Result<Self> {
        Self::start_with(Vec::new(), release)
    }

    fn start_with(places: Vec<Claim>, release: Release) -> Result<Self> {
        if !machine::is_root() {
            bail!("a lab needs root: it makes network namespaces, cgroups and mounts");
        }
        let say = |line: &str| eprintln!("{line}");
        machine::ensure_installed(&say)?;
        let programs = release.programs(&say)?;
        eprintln!("runtime of this lab: {}", programs.versions());
        let (number, claim) = claim_number()?;
        match build(number, programs) {
            Ok((netns, containerd)) => {
                Ok(Self { inner: Arc::new(Inner { number, containerd, netns, _places: places, _claim: claim }) })
            }
            Err(error) => {
                tear_down(number);
                Err(error)
            }
        }
    }

    /// A node named `name` in this lab, to be configured and started.
    pub fn node(&self, name: &str) -> NodeBuilder {
        NodeBuilder::new(self.clone(), name)
    }

    pub fn containerd(&self) -> &Containerd {
        &self.inner.containerd
    }

    pub fn netns(&self) -> &NetNs {
        &self.inner.netns
    }

    /// Everything of this lab on disk.
    pub fn folder(&self) -> PathBuf {
        folder(self.inner.number)
    }

    /// Files of CDI that this lab's runtime reads, where it is of 2.x.
    pub fn cdi_folder(&self) -> PathBuf {
        self.folder().join("containerd/state/cdi")
    }

    /// A cgroup that exists in all hierarchies: the nodes' `cgroupRoot`, or a parent for it.
    pub fn cgroup(&self) -> String {
        cgroup(self.inner.number)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        tear_down_processes(self.number);
        self.containerd.tear_down();
        tear_down(self.number);
    }
}

/// Waits for one of these places. Whoever has the turn is served before those who come later, so that one who wants all
/// places gets them.
///
/// # Errors
/// A lock file cannot be made.
fn one_place(places: &[&str], turn: &str) -> Result<Claim> {
    let _turn = lock(turn, FlockArg::LockExclusive)?.context("the turn was not given")?;
    loop {
        for place in places {
            if let Some(claim) = lock(place, FlockArg::LockExclusiveNonblock)? {
                return Ok(claim);
            }
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Waits for all of these places.
///
/// # Errors
/// A lock file cannot be made.
fn all_places(places: &[&str], turn: &str) -> Result<Vec<Claim>> {
    let _turn = lock(turn, FlockArg::LockExclusive)?.context("the turn was not given")?;
    places.iter().map(|place| lock(place, FlockArg::LockExclusive)?.context("the place was not given")).collect()
}

/// Waits until this is the only test with a container with systemd. They stand beside a lab, as they assert on no times; beside each
/// other they would be slow for their own watchdogs.
///
/// # Errors
/// The lock file cannot be made.
pub fn only_machine() -> Result<Claim> {
    lock(MACHINE, FlockArg::LockExclusive)?.context("the lock was not given")
}

/// Waits until this is the only test with a virtual machine, which takes most of two processors.
///
/// # Errors
/// As for [`only_machine`].
pub fn only_virtual_machine() -> Result<Claim> {
    lock(VIRTUAL_MACHINE, FlockArg::LockExclusive)?.context("the lock was not given")
}

pub(crate) fn lock(name: &str, how: FlockArg) -> Result<Option<Claim>> {
    let path = Path::new(LOCKS).join(name);
    loop {
        std::fs::create_dir_all(LOCKS).with_context(|| format!("creating {LOCKS}"))?;
        let file = match File::options().create(true).truncate(false).write(true).open(&path) {
            Ok(file) => file,
            // The last lab of the machine removes the folder, perhaps just now.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| format!("opening {}", path.display())),
        };
        match Flock::lock(file, how) {
            // A lock on a file that its last owner has removed meanwhile excludes nobody.
            Ok(held) if held.metadata().is_ok_and(|file| file.nlink() == 0) => continue,
            Ok(held) => return Ok(Some(Claim { path, _held: held })),
            Err((_, nix::errno::Errno::EWOULDBLOCK)) => return Ok(None),
            Err((_, error)) => return Err(error).with_context(|| format!("locking {}", path.display())),
        }
    }
}

/// Claims a number that nobody uses, with all removed that an earlier owner of it, or of any other, has left.
pub(crate) fn claim_number() -> Result<(u8, Claim)> {
    let (number, claim) = claim()?;
    tear_down(number);
    tear_down_abandoned();
    Ok((number, claim))
}

fn claim() -> Result<(u8, Claim)> {
    // Pods have 198.19.(4 n).0/22.
    for number in 1..=63 {
        if let Some(held) = lock(&number.to_string(), FlockArg::LockExclusiveNonblock)? {
            return Ok((number, held));
        }
    }
    bail!("63 labs are running already")
}

/// Removes labs whose test was killed: their folders are there, and nobody holds their numbers.
fn tear_down_abandoned() {
    let Ok(entries) = std::fs::read_dir(FOLDERS) else { return };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u8>().ok());
    for number in numbers {
        if let Ok(Some(_held)) = lock(&number.to_string(), FlockArg::LockExclusiveNonblock) {
            tear_down(number);
        }
    }
}

/// Everything of a lab or a machine of this number on disk.
pub(crate) fn folder(number: u8) -> PathBuf {
    Path::new(FOLDERS).join(number.to_string())
}

/// The cgroup, in all hierarchies, that everything of this number runs in.
pub(crate) fn cgroup(number: u8) -> String {
    format!("/bulkhead-lab-{number}")
}

/// Makes a lab's folder. The end of another lab may remove the parent between the two steps of that.
fn create_folder(folder: &Path) -> Result<()> {
    const TRIES: usize = 10;
    let mut made = std::fs::create_dir_all(folder);
    for _ in 1..TRIES {
        if !made.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            break;
        }
        made = std::fs::create_dir_all(folder);
    }
    made.with_context(|| format!("creating {}", folder.display()))
}

fn build(number: u8, programs: Programs) -> Result<(NetNs, Containerd)> {
    let folder = folder(number);
    create_folder(&folder)?;
    cgroups::create(&cgroup(number))?;
    let netns = NetNs::create(number)?;
    let containerd = Containerd::start(folder.join("containerd"), &netns, programs)?;
    Ok((netns, containerd))
}

/// Ends the nodes first: a launcher that still lives would start again what is killed.
fn tear_down_processes(number: u8) {
    for place in node::places(&folder(number)) {
        node::kill_all_of(&place.root_dir);
    }
}

/// Removes all that a lab of this number has made, whoever made it. Best effort: the leak check is what judges.
pub(crate) fn tear_down(number: u8) {
    let folder = folder(number);
    // First: who waits for what is frozen does not end.
    mounts::thaw_below(&folder);
    tear_down_processes(number);
    // The daemon first, or it goes on with what it has begun; the shims last, they know what there was.
    for pid in processes::with_argument_below(&folder.join("containerd/config.toml")) {
        processes::signal(pid, Signal::SIGKILL);
    }
    containerd::remove_traces_of(&folder.join("containerd"));
    let _ = cgroups::kill_and_remove(&cgroup(number));
    for pid in processes::with_argument_below(&folder) {
        processes::signal(pid, Signal::SIGKILL);
    }
    for place in node::places(&folder) {
        node::remove_traces_of(&place);
    }
    mounts::detach_below(&folder);
    loops::detach_below(&folder);
    netns::remove(number);
    systemd::remove_traces(number);
    if folder.exists()
        && let Err(error) = std::fs::remove_dir_all(&folder)
    {
        eprintln!("could not remove {}: {error}", folder.display());
    }
    // Succeeds for the last lab of the machine.
    let _ = std::fs::remove_dir(FOLDERS);
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{TryRecvError, channel};

    use super::*;

    /// Locks below /run are root's.
    fn names(test: &str) -> Option<(Vec<String>, String)> {
        let name = |what: &str| format!("{test}-{}-{what}", std::process::id());
        machine::is_root().then(|| (vec![name("1"), name("2")], name("turn")))
    }

    #[test]
    fn two_have_a_place_and_the_third_waits() {
        let Some((places, turn)) = names("two") else { return };
        let places: Vec<&str> = places.iter().map(String::as_str).collect();
        let first = one_place(&places, &turn).unwrap();
        let second = one_place(&places, &turn).unwrap();
        assert_ne!(first.path, second.path);
        std::thread::scope(|scope| {
            let (sender, receiver) = channel();
            let (places, turn) = (&places, &turn);
            scope.spawn(move || sender.send(one_place(places, turn).unwrap()));
            // It has the turn, so it has looked, and goes on looking.
            while lock(turn, FlockArg::LockExclusiveNonblock).unwrap().is_some() {}
            assert!(matches!(receiver.try_recv(), Err(TryRecvError::Empty)));
            let freed = first.path.clone();
            drop(first);
            assert_eq!(receiver.recv().unwrap().path, freed);
        });
    }

    #[test]
    fn who_wants_all_places_is_not_passed() {
        let Some((places, turn)) = names("all") else { return };
        let places: Vec<&str> = places.iter().map(String::as_str).collect();
        let first = one_place(&places, &turn).unwrap();
        std::thread::scope(|scope| {
            let (sender, receiver) = channel();
            let (places, turn) = (&places, &turn);
            let all = sender.clone();
            scope.spawn(move || {
                let claims = all_places(places, turn).unwrap();
                all.send("all").unwrap();
                drop(claims);
            });
            while lock(turn, FlockArg::LockExclusiveNonblock).unwrap().is_some() {}
            scope.spawn(move || {
                let _claim = one_place(places, turn).unwrap();
                sender.send("one").unwrap();
            });
            // A place is free, and yet nobody gets it.
            assert!(matches!(receiver.try_recv(), Err(TryRecvError::Empty)));
            drop(first);
            assert_eq!(receiver.iter().collect::<Vec<_>>(), ["all", "one"]);
        });
    }
}
