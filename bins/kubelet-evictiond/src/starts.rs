//! When containers started, finer than a second: a container that begins again at once must be seen as another one.
//!
//! The pod's status has whole seconds; the container's cgroup was made in the same moment, and the kernel knows that
//! more exactly. Its word counts if it agrees, and stays what was said first.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};

/// A cgroup is made a moment before its container runs, and the runtime's clock is read some time after.
const BEFORE: SignedDuration = SignedDuration::from_secs(2);

/// What was said of each container that is still there.
#[derive(Debug, Default)]
pub struct Starts {
    said: HashMap<Box<str>, (String, u64)>,
    round: u64,
}

impl Starts {
    /// Starts a sample; [`Self::end`] drops what it did not see.
    pub fn begin(&mut self) {
        self.round += 1;
    }

    /// RFC 3339. `told`: of the status. `made`: of the cgroup's folder.
    pub fn of(&mut self, container: &str, told: &str, made: impl FnOnce() -> Option<Timestamp>) -> String {
        if let Some((said, round)) = self.said.get_mut(container) {
            *round = self.round;
            return said.clone();
        }
        let said = finer(told, made());
        if !said.is_empty() {
            self.said.insert(container.into(), (said.clone(), self.round));
        }
        said
    }

    /// Forgets containers that the sample did not name.
    pub fn end(&mut self) {
        let round = self.round;
        self.said.retain(|_, (_, seen)| *seen == round);
    }
}

fn finer(told: &str, made: Option<Timestamp>) -> String {
    let (Ok(told_at), Some(made)) = (told.parse::<Timestamp>(), made) else { return told.to_owned() };
    let apart = told_at.duration_since(made);
    // The status cuts the second off, so it may say up to one earlier than it was.
    if apart <= BEFORE && apart > -SignedDuration::from_secs(1) { made.to_string() } else { told.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_believed_when_it_agrees() {
        let made = |text: &str| Some(text.parse().unwrap());
        for (told, at, said) in [
            ("2026-11-21T00:46:32Z", made("2026-11-21T00:46:32.678950512Z"), "2026-11-21T00:46:32.678950512Z"),
            ("2026-11-21T00:46:32Z", made("2026-11-21T00:46:31.9Z"), "2026-11-21T00:46:31.9Z"),
            ("2026-11-21T00:46:32Z", made("2026-11-21T00:46:33.1Z"), "2026-11-21T00:46:32Z"),
            ("2026-11-21T00:46:32Z", made("2026-11-21T00:40:00Z"), "2026-11-21T00:46:32Z"),
            ("2026-11-21T00:46:32Z", None, "2026-11-21T00:46:32Z"),
            ("", made("2026-11-21T00:46:33.1Z"), ""),
        ] {
            assert_eq!(finer(told, at), said, "{told} {at:?}");
        }
    }

    #[test]
    fn a_reported_start_time_stays() {
        let mut starts = Starts::default();
        starts.begin();
        let first = starts.of("c1", "2026-11-21T00:46:32Z", || "2026-11-21T00:46:32.5Z".parse().ok());
        starts.end();
        starts.begin();
        assert_eq!(starts.of("c1", "2026-11-21T00:46:32Z", || "2026-11-21T00:46:32.9Z".parse().ok()), first);
        starts.end();
        starts.begin();
        starts.end();
        assert!(starts.said.is_empty());
    }
}
