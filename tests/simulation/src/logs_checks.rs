//! What must hold of containers' logs and their rotation (upstream `pkg/kubelet/logs/container_log_manager.go`).

use std::time::Duration;

use bulkhead_simulation_kernel as kernel;
use bulkhead_types::{LogForm, LogStamp};

use crate::logs::{Name, Place};
use crate::world::World;

/// Nothing was wrong for so long: what runs is known, and whoever looks at logs looks at them in time.
const QUIET: Duration = Duration::from_secs(120);
/// A log that is too large is seen and has a new file within this time beyond the period of looks.
const SLACK: Duration = Duration::from_secs(30);
/// A rotation is over within this time where nothing goes wrong: calls take half a second at most, of a slow runtime two.
const AT_ONCE: Duration = Duration::from_secs(8);
/// A container's end is known after this time.
const KNOWN: Duration = Duration::from_secs(150);

impl World {
    /// What a container wrote is in no file any more.
    pub(crate) fn lines_go(&mut self, what: &str) {
        if self.is_waited_for {
            self.breaks("log-kept", format!("{what} is lost"));
        }
    }

    /// Before a log is rotated.
    pub(crate) fn check_rotation(&mut self, place: &Place) {
        let Place { uid, container, number } = place;
        let own = |log: &&crate::logs::Log| log.uid == *uid && log.container == *container && log.number == *number;
        let ended = self.log_files.of.values().find(own).and_then(crate::logs::Log::has_ended);
        if self.is_waited_for && ended.is_some_and(|ended| ended + KNOWN < kernel::now()) {
            self.breaks("log-ended", format!("the log of {container} is rotated, which has ended {ended:?}"));
        }
    }

    /// After one was.
    pub(crate) fn check_count_of_logs(&mut self, place: &Place) {
        let Some(most) = self.log_files.plan.as_ref().map(|plan| plan.max_files) else { return };
        let Place { uid, container, number } = place;
        let own = |log: &&crate::logs::Log| log.uid == *uid && log.container == *container && log.number == *number;
        // The one that is to be written to comes to them.
        let files = self.log_files.of.values().find(own).map_or(0, |log| log.files.len() + 1);
        if self.is_waited_for && files > most {
            self.breaks("log-files", format!("{container} has {files} files of its log, and {most} are allowed"));
        }
    }

    /// Before a rotated log is removed.
    pub(crate) fn check_removal_of_log(&mut self, place: &Place, stamp: LogStamp) {
        let Some(most) = self.log_files.plan.as_ref().map(|plan| plan.max_files) else { return };
        let Place { uid, container, number } = place;
        let own = |log: &&crate::logs::Log| log.uid == *uid && log.container == *container && log.number == *number;
        let Some(log) = self.log_files.of.values().find(own) else { return };
        let stamps = log.stamps();
        let is_written = log
            .files
            .iter()
            .any(|file| file.to.is_none() && matches!(file.name, Name::Rotated(own, _) if own == stamp));
        let text = if stamps.first() != Some(&stamp) {
            "there is an older one"
        } else if stamps.len() + 1 < most {
            "there are fewer than are allowed"
        } else if is_written && log.writes_lines() {
            "the runtime still writes into it"
        } else {
            return;
        };
        self.lines_go(&format!("log {stamp} of {container} goes, and {text}: what it holds"));
    }

    /// From time to time.
    pub(crate) fn check_logs(&mut self) {
        let Some(plan) = self.log_files.plan.clone() else { return };
        let now = kernel::now();
        let interval = Duration::from_secs(plan.interval);
        let mut wrong = Vec::new();
        for (id, log) in &self.log_files.of {
            // Of pods that nobody wants only what is left is known.
            let is_known = self.containers.contains_key(id) && self.wanted_by(&log.uid).is_some();
            if log.has_ended().is_some() || !is_known {
                continue;
            }
            let name = &log.container;
            let Some(file) = log.files.iter().find(|file| file.to.is_none()) else { continue };
            let too_large = log.reached(file.from + plan.max_size);
            if too_large.is_some_and(|since| since + interval + SLACK < now)
                && self.pressure.is_quiet_for(interval + QUIET)
            {
                let text = format!("the log of {name} has {} bytes, and is too large for long", log.size(file));
                wrong.push(("log-size", text));
            }
            let Some(astray) = log.astray.filter(|astray| *astray + AT_ONCE < now) else { continue };
            // What the runtime has refused is taken back at once, by who is there and is not kept from it.
            let is_refused = log.refused.is_some_and(|at| self.pressure.disturbed <= at && at + AT_ONCE / 2 < now);
            if is_refused || self.pressure.is_quiet_for(QUIET) {
                let text = format!("the runtime has written the log of {name} elsewhere since {astray:?}");
                wrong.push(("log-place", text));
            }
        }
        for (check, text) in wrong {
            self.breaks(check, text);
        }
    }

    /// Once nothing has happened from outside for long.
    pub(crate) fn check_logs_end(&mut self) {
        if self.log_files.plan.is_none() {
            return;
        }
        let mut wrong = Vec::new();
        for (id, log) in &self.log_files.of {
            if !self.containers.contains_key(id) || self.wanted_by(&log.uid).is_none() {
                continue;
            }
            let (name, stamps) = (&log.container, log.stamps());
            let is_plain =
                |stamp: &LogStamp| log.files.iter().any(|file| file.name == Name::Rotated(*stamp, LogForm::Plain));
            if log.astray.is_some() {
                wrong.push(("log-place", format!("at the end the runtime writes the log of {name} elsewhere")));
            }
            if !log.has_current() && stamps.last().is_some_and(is_plain) {
                wrong.push(("log-place", format!("at the end the newest log of {name} does not have its name back")));
            }
            if stamps.iter().rev().skip(1).any(is_plain) {
                wrong.push(("log-compressed", format!("at the end an older log of {name} is not compressed")));
            }
        }
        for (check, text) in wrong {
            self.breaks(check, text);
        }
    }
}
