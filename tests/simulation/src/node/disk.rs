//! The disk under the state folders of the node's processes: when it is full, slow or fails; and a power cut, after which each folder is
//! in one of the states that what was synced allows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bulkhead_simulation_kernel as kernel;
use parking_lot::Mutex;

use super::{Node, listen, registrar_socket};
use crate::dice::Dice;
use crate::disk::{Image, after_power_cut};
use crate::disk_schedule::DiskDeed;
use crate::root_dir::{JOURNALS, RootDir};
use crate::schedule::Program;
use crate::world::{Command, Shared};

/// Programs that come up after a power cut do so within this time, milliseconds.
const BOOTING: u64 = 2_000;

/// A power cut that is to come.
#[derive(Debug, Clone, Copy)]
struct Cut {
    down: u64,
    pick: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Disk {
    full: Option<Duration>,
    /// Until when, and how long a sync takes.
    slow: Option<(Duration, Duration)>,
    cut: Option<Cut>,
    /// What is in the folder of a process that has not begun since the last power cut.
    images: BTreeMap<&'static str, Image>,
    /// Who waits for the disk, and for how long.
    waiting: Vec<(Program, Duration)>,
    /// When faults end that are left over.
    calm: Option<Duration>,
}

impl Disk {
    pub(super) fn new(calm: Duration) -> Self {
        Disk { full: None, slow: None, cut: None, images: BTreeMap::new(), waiting: Vec::new(), calm: Some(calm) }
    }

    /// When something is to be done that nobody else does.
    pub(super) fn next(&self) -> impl Iterator<Item = Option<Duration>> {
        [self.full, self.slow.map(|(until, _)| until), self.calm].into_iter()
    }

    /// The state folder for another life of a process: of its own, as the last one may hold the lock of its folder for as long as this
    /// program runs. It has what the last one has left; after a power cut, what that has left.
    pub(super) fn next_state(
        &mut self,
        program: Program,
        folder: &Path,
        life: u64,
        state: &Mutex<PathBuf>,
    ) -> Result<()> {
        let path = folder.join(format!("{}-{life}", program.name()));
        std::fs::create_dir(&path).context("making the state folder")?;
        let mut state = state.lock();
        let is_first = state.as_os_str().is_empty();
        let image = self.images.remove(program.name());
        let is_new = is_first || image.is_some();
        for (name, content) in image.iter().flatten() {
            std::fs::write(path.join(name), content).context("writing state")?;
        }
        if !is_new {
            for entry in std::fs::read_dir(&*state).context("reading the state folder")? {
                let entry = entry?;
                std::fs::rename(entry.path(), path.join(entry.file_name())).context("moving state")?;
            }
        }
        let kept = if is_new { kernel::keep(program.name(), &path) } else { kernel::moved(program.name(), &path) };
        kept.context("looking at the state folder")?;
        *state = path;
        Ok(())
    }

    /// After a turn of a process. Whether the power goes now.
    pub(super) fn look(&mut self, world: &Shared, program: Program) -> bool {
        if program == Program::Volnetd {
            let is_quiet = JOURNALS.map(|journal| kernel::doings(journal) == kernel::Doings::default());
            return is_quiet.contains(&false) && self.is_cut(world);
        }
        let doings = kernel::doings(program.name());
        if doings == kernel::Doings::default() {
            return false;
        }
        if self.is_cut(world) {
            return true;
        }
        let mut world = world.lock();
        if let Some((_, by)) = self.slow.filter(|_| doings.syncs > 0) {
            self.waiting.push((program, by.saturating_mul(u32::try_from(doings.syncs).unwrap_or(u32::MAX))));
        }
        if doings.failed {
            world.resources.disturb();
        }
        if program == Program::Syncd {
            for (name, content) in kernel::take_refused(program.name()) {
                world.could_not_write(&name, &content);
            }
        }
        world.check_state(program.name(), &kernel::moment(program.name()), doings);
        false
    }

    /// Whether the power has gone in a step that was just taken.
    fn is_cut(&mut self, world: &Shared) -> bool {
        let kept = kernel::take_kept();
        kept.into_iter().map(|kept| self.lay_out(world, kept)).count() > 0
    }

    /// The journals of another life of kubelet-volnetd: as the last one has left them, or as a power cut has.
    pub(super) fn next_journals(&mut self, root_dir: &RootDir) -> Result<()> {
        for journal in JOURNALS {
            if let Some(image) = self.images.remove(journal) {
                // The run's own writes have room.
                kernel::forget(journal);
                root_dir.lay_out(journal, &image)?;
            }
        }
        Ok(())
    }

    /// What is to be in each folder when its process begins anew.
    fn lay_out(&mut self, world: &Shared, moments: BTreeMap<&'static str, kernel::Moment>) {
        let Some(cut) = self.cut else { return };
        let mut dice = Dice::of(cut.pick, "power");
        for (owner, moment) in moments {
            let mut told = Vec::new();
            // A second cut before it began: what the first one has left is there.
            if !self.images.contains_key(owner) {
                self.images.insert(owner, after_power_cut(&moment, &mut dice, &mut told));
            }
            for line in told {
                world.lock().tell("disk", format!("of {owner}: {line}"));
            }
        }
    }
}

impl Node {
    pub(super) fn do_disk_step(&mut self, deed: &DiskDeed) -> Result<()> {
        let now = kernel::now();
        self.world.lock().resources.disturb();
        match deed {
            DiskDeed::PowerCut { after, down, pick } => {
                self.disk.cut = Some(Cut { down: *down, pick: *pick });
                match after {
                    Some(after) => kernel::keep_before(Some(*after)),
                    None => {
                        self.disk.lay_out(&self.world, kernel::moments());
                        self.cut_power()?;
                    }
                }
            }
            DiskDeed::Full { lasts } => {
                kernel::fill(true);
                self.disk.full = Some(now + Duration::from_millis(*lasts));
                let mut world = self.world.lock();
                (world.disk_is_full, world.memory.disk_was_full) = (true, true);
            }
            DiskDeed::Slow { lasts, by } => {
                self.disk.slow = Some((now + Duration::from_millis(*lasts), Duration::from_millis(*by)));
            }
            DiskDeed::Fails { what } => kernel::fail((*what).into()),
        }
        Ok(())
    }

    /// What lasts ends, and who waits for the disk does.
    pub(super) fn end_disk_faults(&mut self) {
        let now = kernel::now();
        let is_calm = self.disk.calm.is_some_and(|at| at <= now);
        if is_calm {
            (self.disk.calm, self.disk.cut) = (None, None);
            kernel::keep_before(None);
            kernel::heal();
            self.end_versions();
        }
        if self.disk.full.is_some_and(|until| is_calm || until <= now) {
            self.disk.full = None;
            kernel::fill(false);
            let mut world = self.world.lock();
            world.disk_is_full = false;
            world.tell("disk", "has room again");
            world.resources.disturb();
        }
        if self.disk.slow.is_some_and(|(until, _)| is_calm || until <= now) {
            self.disk.slow = None;
            self.world.lock().tell("disk", "is as quick as ever");
        }
    }

    /// Who waits for the disk does nothing else.
    pub(super) fn wait_for_disk(&mut self) {
        let now = kernel::now();
        for (program, time) in std::mem::take(&mut self.disk.waiting) {
            if let Some(seat) = self.seat(program).filter(|seat| seat.process.is_some()) {
                seat.stopped = seat.stopped.max(Some(now + time));
                let mut world = self.world.lock();
                world.tell(program.name(), format!("waits {} ms for the disk", time.as_millis()));
                world.resources.disturb();
                world.pressure.disturb();
            }
        }
    }

    /// Everything on the node ends at once, with all that was under way; what its folders have then is laid out already.
    pub(super) fn cut_power(&mut self) -> Result<()> {
        let Some(Cut { down, pick }) = self.disk.cut.take() else { return Ok(()) };
        kernel::keep_before(None);
        self.world.lock().tell("machine", "has no power");
        let mut dice = Dice::of(pick, "boot");
        for program in Program::ALL {
            let down = down + dice.below(BOOTING);
            let command = match program {
                Program::Syncd => Command::KillSyncd { down },
                Program::Statusd => Command::KillStatusd { down },
                Program::Volnetd => Command::RestartVolnetd { down },
                Program::Runtime => Command::RestartRuntime { down },
                Program::Driver => Command::KillDriver { down },
                Program::Plugin => Command::KillPlugin { down },
                Program::Evictiond => Command::KillEvictiond { down },
                Program::Dra(driver) => Command::KillDra { driver, down },
            };
            self.command(command);
            // Who was away comes no sooner.
            let back = kernel::now() + Duration::from_millis(down);
            if let Some(seat) = self.seat(program).filter(|seat| seat.back.is_some()) {
                seat.back = seat.back.max(Some(back));
            }
        }
        // The API server lives on elsewhere. Connections to it are gone, with what it has not read.
        self.command(Command::RestartApi { down: 0 });
        let mut world = self.world.lock();
        world.lose_power();
        let boot = world.boot_id();
        drop(world);
        self.registrar = Arc::new(listen(&registrar_socket(&self.folder))?.into());
        let cluster = self.cluster.iter_mut().map(|cluster| &mut cluster.config);
        let evictiond = self.evictiond.iter_mut().map(|evictiond| &mut evictiond.config);
        for config in cluster.chain(evictiond).chain([&mut self.config]) {
            boot.clone_into(&mut config.boot_id);
            boot.clone_into(&mut config.start_id);
        }
        Ok(())
    }
}
