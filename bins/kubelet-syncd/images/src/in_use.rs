//! Images that starts and pulls use, beside those that containers use: what garbage collection must not take away from a start
//! that is under way, and which start waits until a removal is over. No I/O.
//!
//! A start names its image from before it looks whether that is there, and holds the runtime's id from when it knows it until
//! its container is created. A removal claims the id and all names of its image first and looks at containers then: whichever
//! comes second sees the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use kubelet_model::pod::image_reference::ImageName;

/// Milliseconds since boot.
type Clock = fn() -> u64;

#[derive(Debug, Default)]
struct State {
    /// Names, in full, that somebody looks for or pulls.
    names: BTreeMap<String, usize>,
    /// The runtime's ids that starts hold.
    ids: BTreeMap<String, usize>,
    /// What is being removed: its id and its names in full.
    removing: BTreeMap<u64, (String, Vec<String>)>,
    /// Counts removals.
    removals: u64,
    /// Looks that are under way, and what was removed meanwhile, with the number of its removal.
    looks: usize,
    removed: BTreeMap<String, u64>,
    /// When a start or a pull used an image last.
    last_used: BTreeMap<String, u64>,
}

impl State {
    /// `name`: an id, or a name in full.
    fn is_being_removed(&self, name: &str) -> bool {
        self.removing.values().any(|(id, names)| id == name || names.iter().any(|one| one == name))
    }
}

fn take_one(counts: &mut BTreeMap<String, usize>, key: &str) {
    match counts.get_mut(key) {
        Some(count) if *count > 1 => *count -= 1,
        _ => drop(counts.remove(key)),
    }
}

/// A name as the runtime lists it, so that two spellings of one image meet. What is no name stays as it is.
fn in_full(name: &str) -> String {
    let Ok(parsed) = ImageName::parse(name) else { return name.to_owned() };
    match (parsed.digest, parsed.tag) {
        (Some(digest), _) => format!("{}@{digest}", parsed.repository),
        (None, Some(tag)) => format!("{}:{tag}", parsed.repository),
        (None, None) => parsed.repository,
    }
}

/// See the module. Clones are the same.
#[derive(Debug, Clone)]
pub struct ImagesInUse {
    state: Arc<Mutex<State>>,
    /// A removal has ended.
    ended: Arc<Notify>,
    clock: Clock,
}

impl ImagesInUse {
    /// `clock`: milliseconds since boot.
    pub fn new(clock: Clock) -> Self {
        ImagesInUse { state: Arc::default(), ended: Arc::default(), clock }
    }

    /// Milliseconds since boot.
    pub fn now(&self) -> u64 {
        (self.clock)()
    }

    /// Somebody is going to look for an image, and to pull it perhaps. Waits for the end of a removal of it.
    pub async fn look(&self, name: &str) -> Look {
        let name = in_full(name);
        loop {
            let ended = self.ended.notified();
            {
                let mut state = self.state.lock();
                if !state.is_being_removed(&name) {
                    *state.names.entry(name.clone()).or_default() += 1;
                    state.looks += 1;
                    let since = state.removals;
                    drop(state);
                    return Look { images: self.clone(), name, since };
                }
            }
            ended.await;
        }
    }

    /// Claims an image that is to be removed: from now on who looks for it waits. `None`: a start or a pull uses it.
    pub fn remove<'a>(&self, id: &'a str, names: impl Iterator<Item = &'a str>) -> Option<Removal> {
        // A pod may name an image by its id, too.
        let names: Vec<String> = names.chain([id]).map(in_full).collect();
        let mut state = self.state.lock();
        let is_used = state.ids.contains_key(id) || names.iter().any(|name| state.names.contains_key(name));
        if is_used {
            return None;
        }
        state.removals += 1;
        let number = state.removals;
        state.removing.insert(number, (id.to_owned(), names));
        Some(Removal { images: self.clone(), number })
    }

    /// Whether a start or a pull uses it.
    pub fn is_used<'a>(&self, id: &'a str, names: impl Iterator<Item = &'a str>) -> bool {
        let state = self.state.lock();
        state.ids.contains_key(id) || names.chain([id]).any(|name| state.names.contains_key(&in_full(name)))
    }

    /// When a start or a pull used it last, milliseconds since boot; 0: not in the life of this process.
    pub fn last_used(&self, id: &str) -> u64 {
        self.state.lock().last_used.get(id).copied().unwrap_or(0)
    }

    /// Images that are not there any more are forgotten.
    pub fn retain(&self, is_there: impl Fn(&str) -> bool) {
        let mut state = self.state.lock();
        let State { last_used, ids, .. } = &mut *state;
        last_used.retain(|id, _| is_there(id) || ids.contains_key(id));
    }

    fn note_use(&self, id: &str) {
        let now = (self.clock)();
        self.state.lock().last_used.insert(id.to_owned(), now);
    }
}

/// Why an image is not held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed;

/// While it lives nobody removes an image of this name.
#[derive(Debug)]
pub struct Look {
    images: ImagesInUse,
    name: String,
    /// Removals that had begun before.
    since: u64,
}

impl Look {
    /// The image was found, or pulled: it is held from now on.
    ///
    /// # Errors
    /// It was removed since, or is being removed, under a name that this look did not have: look again.
    pub fn hold(&self, id: &str) -> Result<ImageHold, Removed> {
        {
            let mut state = self.images.state.lock();
            if state.is_being_removed(id) || state.removed.get(id).is_some_and(|number| *number > self.since) {
                return Err(Removed);
            }
            *state.ids.entry(id.to_owned()).or_default() += 1;
        }
        self.images.note_use(id);
        Ok(ImageHold { images: self.images.clone(), id: id.to_owned() })
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        let mut state = self.images.state.lock();
        take_one(&mut state.names, &self.name);
        state.looks = state.looks.saturating_sub(1);
        if state.looks == 0 {
            state.removed.clear();
        }
    }
}

/// While it lives nobody removes this image.
#[derive(Debug)]
pub struct ImageHold {
    images: ImagesInUse,
    id: String,
}

impl Drop for ImageHold {
    fn drop(&mut self) {
        take_one(&mut self.images.state.lock().ids, &self.id);
        self.images.note_use(&self.id);
    }
}

/// While it lives nobody begins to use the image.
#[derive(Debug)]
pub struct Removal {
    images: ImagesInUse,
    number: u64,
}

impl Drop for Removal {
    fn drop(&mut self) {
        {
            let mut state = self.images.state.lock();
            if let Some((id, _)) = state.removing.remove(&self.number) {
                state.last_used.remove(&id);
                if state.looks > 0 {
                    // Whoever looked before this moment may have seen it.
                    state.removals += 1;
                    let number = state.removals;
                    state.removed.insert(id, number);
                }
            }
        }
        self.images.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ID: &str = "sha256:aaaa";

    fn images() -> ImagesInUse {
        ImagesInUse::new(|| 7)
    }

    fn names() -> std::vec::IntoIter<&'static str> {
        vec!["docker.io/library/busybox:1", "docker.io/library/busybox@sha256:bbbb"].into_iter()
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_keeps_its_image_from_its_first_look_on() {
        let images = images();
        let look = images.look("busybox:1").await;
        assert!(images.remove(ID, names()).is_none() && images.is_used(ID, names()));
        let hold = look.hold(ID).unwrap();
        drop(look);
        assert!(images.remove(ID, names()).is_none(), "the id is held");
        drop(hold);
        assert_eq!(images.last_used(ID), 7);
        let removal = images.remove(ID, names()).unwrap();
        let waits = tokio::time::timeout(Duration::from_secs(1), images.look("docker.io/library/busybox:1")).await;
        assert!(waits.is_err(), "who comes second waits");
        let other = images.look("busybox:2").await;
        drop(removal);
        assert_eq!(images.last_used(ID), 0, "what is gone was used by nobody");
        assert_eq!(other.hold(ID).unwrap_err(), Removed, "it may have seen what is gone now");
        assert!(images.look("busybox:1").await.hold(ID).is_ok(), "who looks now sees what is there now");
    }

    #[tokio::test]
    async fn what_came_back_may_be_held() {
        let images = images();
        drop(images.remove(ID, names()));
        assert!(images.look("busybox:1").await.hold(ID).is_ok());
        let look = images.look("else").await;
        drop(images.remove(ID, names()));
        // Looked after the removal: it saw a new one.
        let after = images.look("busybox:1").await;
        assert!(after.hold(ID).is_ok() && look.hold(ID).is_err());
        images.retain(|_| false);
        assert_eq!(images.last_used(ID), 0);
    }
}
