//! Files of containers' logs: which of them the runtime writes into, how far, and what kubelet-volnetd has done with them; what must
//! hold is in [`crate::logs_checks`].
//!
//! What a container has written is counted in bytes since its start. A file holds all of that from one number to another, so what was
//! lost is what no file holds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bulkhead_ipc::common::{ContainerLogFiles, ContainerLogId, RotatedLogFigures};
use bulkhead_ipc::volnetd as api;
use bulkhead_simulation_kernel as kernel;
use bulkhead_types::{LogForm, LogStamp};
use serde::{Deserialize, Serialize};
use tonic::Status;

use crate::dice::Dice;
use crate::pressure_schedule::PressureDeed;
use crate::schedule::{CALM, CallFault, Deed, Peer, Step};
use crate::world::{State, World};

/// From then on containers write nothing, so that the node comes to rest.
const WRITES_UNTIL: Duration = Duration::from_secs(CALM.as_secs() + 120);

/// A rename and the call after it, of a slow runtime.
const ROTATION: Duration = Duration::from_secs(4);

/// How much containers write, and what the configuration says of their logs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPlan {
    /// `containerLogMaxSize`, bytes.
    pub max_size: u64,
    /// `containerLogMaxFiles`.
    pub max_files: usize,
    /// `containerLogMonitorInterval`, seconds.
    pub interval: u64,
    /// The runtime that is asked for a file that is there makes a new one in its place, as CRI-O's conmon does; else it writes on, as
    /// containerd does.
    pub replaces: bool,
    /// Bytes a second that containers write, in turn.
    pub rates: Vec<u64>,
}

impl LogPlan {
    fn of(dice: &mut Dice) -> Self {
        LogPlan {
            max_size: dice.one_of(16 << 10, &[4 << 10, 64 << 10]),
            max_files: dice.one_of(3, &[2, 5]),
            interval: dice.one_of(10, &[20]),
            replaces: dice.percent(50),
            rates: (0..3).map(|_| dice.one_of(500, &[0, 50, 2_000])).collect(),
        }
    }
}

/// In two of three runs containers write so much that logs are rotated, and in most of these something goes wrong with it.
pub(crate) fn workload(dice: &mut Dice, steps: &mut Vec<Step>) -> Option<LogPlan> {
    if !dice.percent(66) {
        return None;
    }
    let plan = LogPlan::of(dice);
    // Steps are shrunk one by one; a plan stays.
    if dice.percent(70) {
        let calm = u64::try_from(CALM.as_millis()).unwrap_or(u64::MAX);
        for _ in 0..dice.between(1, 4) {
            let peer = if dice.percent(75) { Peer::Runtime } else { Peer::Volnetd };
            let fault = match dice.below(8) {
                0..=2 => CallFault::Refused,
                3 | 4 => CallFault::AnswerLost,
                5 => CallFault::DeathBefore,
                6 => CallFault::DeathAfter,
                _ => CallFault::Late(dice.one_of(2_000, &[9_000, 20_000])),
            };
            let deed = Deed::Pressure { deed: PressureDeed::Rotation { peer, fault } };
            steps.push(Step { at: dice.between(10_000, calm - 1), deed });
        }
    }
    Some(plan)
}

/// What a file is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// `<n>.log`.
    Current,
    /// `<n>.log.<stamp>`, compressed or not.
    Rotated(LogStamp, LogForm),
}

/// A file, and which of a container's bytes it holds.
#[derive(Debug, Clone)]
pub struct LogFile {
    pub name: Name,
    pub from: u64,
    /// None: the runtime writes into it.
    pub to: Option<u64>,
    /// It was made when nobody waited for that any more: whoever asks for the next one cannot know of it.
    pub is_ghost: bool,
}

/// The log of one container.
#[derive(Debug, Clone)]
pub struct Log {
    pub uid: String,
    pub container: String,
    /// `<n>` of its files.
    pub number: u32,
    /// Bytes a second.
    rate: u64,
    began: Duration,
    ended: Option<Duration>,
    pub files: Vec<LogFile>,
    /// Since when the runtime writes into a file that is not `<n>.log`.
    pub astray: Option<Duration>,
    /// In which life of kubelet-syncd its current file got another name last.
    renamed_in: u64,
    /// When the runtime has refused to make another one in that life's rotation.
    pub refused: Option<Duration>,
}

impl Log {
    fn is_at(&self, uid: &str, container: &str, number: u32) -> bool {
        self.uid == uid && self.container == container && self.number == number
    }

    /// Bytes that the container has written.
    pub fn written(&self) -> u64 {
        let until = self.ended.unwrap_or_else(kernel::now).min(WRITES_UNTIL);
        let millis = u64::try_from(until.saturating_sub(self.began).as_millis()).unwrap_or(0);
        self.rate * millis / 1_000
    }

    /// When it had written so many.
    pub fn reached(&self, bytes: u64) -> Option<Duration> {
        let millis = (bytes * 1_000).checked_div(self.rate)?;
        (self.written() >= bytes).then(|| self.began + Duration::from_millis(millis))
    }

    pub fn size(&self, file: &LogFile) -> u64 {
        file.to.unwrap_or_else(|| self.written()).saturating_sub(file.from)
    }

    pub fn has_ended(&self) -> Option<Duration> {
        self.ended
    }

    pub fn writes_lines(&self) -> bool {
        self.rate > 0
    }

    fn named(&self, name: Name) -> Option<usize> {
        self.files.iter().position(|file| file.name == name)
    }

    pub fn has_current(&self) -> bool {
        self.named(Name::Current).is_some()
    }

    pub fn stamps(&self) -> BTreeSet<LogStamp> {
        let stamp = |file: &LogFile| match file.name {
            Name::Current => None,
            Name::Rotated(stamp, _) => Some(stamp),
        };
        self.files.iter().filter_map(stamp).collect()
    }

    /// Notes where the runtime writes, after something has changed.
    fn settle(&mut self) {
        let is_astray =
            self.ended.is_none() && !self.files.iter().any(|file| file.to.is_none() && file.name == Name::Current);
        self.astray = is_astray.then(|| self.astray.unwrap_or_else(kernel::now));
        if !is_astray {
            self.refused = None;
        }
    }
}

/// Logs of all containers.
#[derive(Debug, Default)]
pub struct Logs {
    /// None: nobody writes anything.
    pub plan: Option<LogPlan>,
    /// By container's id.
    pub of: BTreeMap<String, Log>,
    /// Faults of the next call that gives a log another file.
    faults: Vec<(Peer, CallFault)>,
}

impl Logs {
    fn rate(&self, id: &str) -> u64 {
        let Some(plan) = &self.plan else { return 0 };
        let number: usize = id.trim_start_matches(|letter: char| !letter.is_ascii_digit()).parse().unwrap_or(0);
        number.checked_rem(plan.rates.len()).and_then(|place| plan.rates.get(place)).copied().unwrap_or(0)
    }

    fn at(&mut self, uid: &str, container: &str, number: u32) -> Option<&mut Log> {
        self.of.values_mut().find(|log| log.is_at(uid, container, number))
    }
}

/// Whose log a call is about.
#[derive(Debug, Clone)]
pub struct Place {
    pub uid: String,
    pub container: String,
    pub number: u32,
}

impl Place {
    /// # Errors
    /// It names no pod.
    pub fn of(pod: Option<api::PodLogId>, container: String, number: u32) -> Result<Self, Status> {
        let uid = pod.ok_or_else(|| Status::invalid_argument("no pod"))?.uid;
        crate::volnetd::is_pod(&uid)?;
        Ok(Place { uid, container, number })
    }
}

fn none(what: &str) -> Status {
    Status::not_found(format!("there is no {what}"))
}

/// The machine's clock as it stands in names.
fn stamp() -> Option<LogStamp> {
    let second = kernel::now().as_secs();
    let [hour, minute, second] =
        [second / 3_600 % 24, second / 60 % 60, second % 60].map(|n| u8::try_from(n).unwrap_or(0));
    LogStamp::new(2026, 1, 1, hour, minute, second)
}

impl World {
    /// The next call of this peer that gives a log another file goes wrong.
    pub fn rotation_fails(&mut self, peer: Peer, fault: CallFault) {
        self.log_files.faults.push((peer, fault));
    }

    /// Before such a call.
    pub(crate) fn aim_fault(&mut self, peer: Peer) {
        let faults = &mut self.log_files.faults;
        if let Some(place) = faults.iter().position(|(of, _)| *of == peer) {
            let (peer, fault) = faults.remove(place);
            self.call_faults.insert(0, (peer, fault));
        }
    }

    /// A container starts, and the runtime writes into a new file, or on into one that is there.
    pub(crate) fn log_begins(&mut self, id: &str) {
        let Some(container) = self.containers.get(id) else { return };
        let (uid, name, number) = (container.uid().to_owned(), container.name().to_owned(), container.restart_count());
        // Who starts under a number that was there writes on; of which lines the files then are nobody knows.
        self.log_files.of.retain(|_, log| !log.is_at(&uid, &name, number));
        let log = Log {
            uid,
            container: name,
            number,
            rate: self.log_files.rate(id),
            began: kernel::now(),
            ended: None,
            files: vec![LogFile { name: Name::Current, from: 0, to: None, is_ghost: false }],
            astray: None,
            renamed_in: 0,
            refused: None,
        };
        self.log_files.of.insert(id.to_owned(), log);
    }

    /// A file into which nobody writes, for whoever asks without a runtime.
    pub fn log_comes(&mut self, place: &Place) {
        let Place { uid, container, number } = place.clone();
        let file = LogFile { name: Name::Current, from: 0, to: Some(0), is_ghost: false };
        if let Some(log) = self.log_files.at(&uid, &container, number) {
            return log.files.push(file);
        }
        let (began, ended) = (kernel::now(), Some(kernel::now()));
        let log = Log {
            uid,
            container,
            number,
            rate: 0,
            began,
            ended,
            files: vec![file],
            astray: None,
            renamed_in: 0,
            refused: None,
        };
        self.log_files.of.insert(format!("of {}", place.uid), log);
    }

    pub(crate) fn log_ends(&mut self, id: &str) {
        if let Some(log) = self.log_files.of.get_mut(id) {
            let written = log.written();
            log.ended.get_or_insert_with(kernel::now);
            log.files.iter_mut().filter(|file| file.to.is_none()).for_each(|file| file.to = Some(written));
            log.settle();
        }
    }

    /// As containerd, which writes logs itself and opens them anew when it comes back.
    pub(crate) fn logs_are_opened_again(&mut self) {
        let running: Vec<String> =
            self.containers.values().filter(|c| c.state == State::Running).map(|c| c.id.clone()).collect();
        for id in running {
            self.write_into_current(&id, false);
        }
    }

    /// `replaces`: also where there is one.
    fn write_into_current(&mut self, id: &str, replaces: bool) {
        let Some(log) = self.log_files.of.get_mut(id) else { return };
        let written = log.written();
        let before = log.named(Name::Current);
        if let Some(place) = before.filter(|_| replaces) {
            let lost = log.files.remove(place);
            if log.size(&lost) > 0 && !lost.is_ghost {
                let (size, container) = (log.size(&lost), log.container.clone());
                self.lines_go(&format!(
                    "{size} bytes of the log of {container}, in place of which the runtime makes a file"
                ));
            }
        }
        let Some(log) = self.log_files.of.get_mut(id) else { return };
        if !log.has_current() {
            log.files.iter_mut().filter(|file| file.to.is_none()).for_each(|file| file.to = Some(written));
            log.files.push(LogFile { name: Name::Current, from: written, to: None, is_ghost: !self.is_waited_for });
        }
        log.settle();
    }

    /// The runtime is asked for a new file.
    pub(crate) fn reopen_log(&mut self, id: &str) -> Result<(), Status> {
        let container = self.containers.get(id).ok_or_else(|| none(&format!("container {id:?}")))?;
        if container.state != State::Running {
            return Err(Status::unknown("container is not running"));
        }
        if !self.logs.contains_key(container.uid()) {
            return Err(Status::unknown("failed to create and open log file: no such file or directory"));
        }
        self.coverage.call("ReopenContainerLog");
        let replaces = self.log_files.plan.as_ref().is_some_and(|plan| plan.replaces);
        self.write_into_current(id, replaces);
        Ok(())
    }

    /// It has said that it makes none. Where that is long after the rename, a file was missing: there is nothing to take back.
    pub(crate) fn reopen_was_refused(&mut self, id: &str) {
        let (life, now) = (self.life, kernel::now());
        let log = self.log_files.of.get_mut(id);
        if let Some(log) = log.filter(|log| log.renamed_in == life && log.astray.is_some_and(|at| at + ROTATION > now))
        {
            log.refused = Some(now);
        }
    }

    pub fn has_current_log(&self, place: &Place) -> bool {
        let Place { uid, container, number } = place;
        self.log_files.of.values().any(|log| log.is_at(uid, container, *number) && log.has_current())
    }

    /// Bytes of a rotated log as the runtime wrote it.
    pub(crate) fn plain_log(&self, place: &Place, stamp: &str) -> Result<u64, Status> {
        let Place { uid, container, number } = place;
        let log = self.log_files.of.values().find(|log| log.is_at(uid, container, *number));
        let name = Name::Rotated(parse(stamp)?, LogForm::Plain);
        let found = log.and_then(|log| Some(log.size(log.files.get(log.named(name)?)?)));
        found.ok_or_else(|| none(&format!("log {stamp}")))
    }

    /// The current file gets another name; its stamp.
    ///
    /// # Errors
    /// There is none.
    pub fn rotate_log(&mut self, place: &Place) -> Result<String, Status> {
        self.check_rotation(place);
        let (Place { uid, container, number }, life) = (place, self.life);
        let log = self.log_files.at(uid, container, *number).ok_or_else(|| none("log"))?;
        let current = log.named(Name::Current).ok_or_else(|| none("current log"))?;
        let newest = log.stamps().last().copied();
        let (now, next) = (stamp(), newest.and_then(LogStamp::next));
        let stamp = now.max(next).ok_or_else(|| Status::internal("no stamp"))?;
        if let Some(file) = log.files.get_mut(current) {
            file.name = Name::Rotated(stamp, LogForm::Plain);
        }
        log.renamed_in = life;
        log.settle();
        self.coverage.call("RotateContainerLog");
        self.check_count_of_logs(place);
        Ok(stamp.to_string())
    }

    /// It gets its name back. False: there is a current one.
    pub(crate) fn restore_log(&mut self, place: &Place, stamp: &str) -> Result<bool, Status> {
        let stamp = parse(stamp)?;
        let Place { uid, container, number } = place;
        let log = self.log_files.at(uid, container, *number).ok_or_else(|| none("log"))?;
        let found = log.named(Name::Rotated(stamp, LogForm::Plain)).ok_or_else(|| none("such log"))?;
        if log.stamps().last() != Some(&stamp) {
            return Err(Status::failed_precondition("it is not the newest one"));
        }
        if log.has_current() {
            return Ok(false);
        }
        if let Some(file) = log.files.get_mut(found) {
            file.name = Name::Current;
        }
        log.settle();
        self.coverage.call("RestoreContainerLog");
        Ok(true)
    }

    /// Removes rotated logs in this order; what is not there is gone.
    pub(crate) fn remove_rotated(&mut self, place: &Place, files: &[api::RotatedLogFile]) -> Result<(), Status> {
        for file in files {
            let form = match file.form() {
                api::LogForm::Plain => LogForm::Plain,
                api::LogForm::Compressed => LogForm::Compressed,
                api::LogForm::Unfinished => LogForm::Unfinished,
                api::LogForm::Unspecified => return Err(Status::invalid_argument("no form")),
            };
            let stamp = parse(&file.stamp)?;
            let Place { uid, container, number } = place;
            let Some(log) = self.log_files.at(uid, container, *number) else { continue };
            let Some(found) = log.named(Name::Rotated(stamp, form)) else { continue };
            if file.is_double {
                // Both forms are there at no time here.
                return Err(Status::failed_precondition("it is the only form"));
            }
            self.check_removal_of_log(place, stamp);
            let Some(log) = self.log_files.at(uid, container, *number) else { continue };
            log.files.remove(found);
            log.settle();
            self.coverage.call("RemoveRotatedLogs");
        }
        Ok(())
    }

    /// A compressed file takes the plain one's place.
    pub(crate) fn link_compressed(&mut self, place: &Place, stamp: &str, plain_bytes: u64) -> Result<(), Status> {
        if self.plain_log(place, stamp)? != plain_bytes {
            return Err(Status::failed_precondition("it has another size"));
        }
        let stamp = parse(stamp)?;
        let Place { uid, container, number } = place;
        let log = self.log_files.at(uid, container, *number).ok_or_else(|| none("log"))?;
        let found = log.named(Name::Rotated(stamp, LogForm::Plain)).ok_or_else(|| none("such log"))?;
        let mut grows = false;
        if let Some(file) = log.files.get_mut(found) {
            grows = file.to.is_none() && log.rate > 0;
            file.name = Name::Rotated(stamp, LogForm::Compressed);
        }
        log.settle();
        self.coverage.call("LinkCompressedLog");
        if grows {
            self.lines_go(&format!("what {container} still writes into the log that was compressed"));
        }
        Ok(())
    }

    /// All files of one container's log.
    pub(crate) fn remove_log(&mut self, place: &Place, id: &str) {
        let Place { uid, container, number } = place;
        if self.log_files.of.get(id).is_some_and(|log| log.ended.is_none()) {
            self.breaks("log-kept", format!("the log of {container} is removed, which runs"));
        }
        self.log_files.of.retain(|_, log| !log.is_at(uid, container, *number));
    }

    /// As kubelet-walker finds them.
    pub(crate) fn log_figures(&self, asked: &ContainerLogId) -> ContainerLogFiles {
        if !self.logs.contains_key(&asked.pod_uid) {
            return ContainerLogFiles::default();
        }
        let mut found = ContainerLogFiles { known: true, ..ContainerLogFiles::default() };
        let all = self.log_files.of.values();
        for log in all.filter(|log| log.is_at(&asked.pod_uid, &asked.container, asked.restart_count)) {
            for file in &log.files {
                match file.name {
                    Name::Current => found.current_bytes = Some(log.size(file)),
                    Name::Rotated(stamp, form) => found.rotated.push(RotatedLogFigures {
                        stamp: stamp.to_string(),
                        suffix: form.suffix().to_owned(),
                        bytes: log.size(file),
                    }),
                }
            }
        }
        found
    }
}

fn parse(stamp: &str) -> Result<LogStamp, Status> {
    LogStamp::parse(stamp).map_err(|error| Status::invalid_argument(error.to_string()))
}
