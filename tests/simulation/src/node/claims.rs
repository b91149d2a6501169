//! DRA drivers on the node of family `claims`, and what comes up there alone.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use bulkhead_simulation_kernel as kernel;

use super::{End, Node, Seat, listen};
use crate::claims_schedule::{ClaimsDeed, Dra};
use crate::dra_driver;
use crate::process::Process;
use crate::schedule::Family;
use crate::world::Command;

/// Where a driver listens.
pub(super) fn socket(folder: &Path, driver: Dra) -> PathBuf {
    folder.join(format!("{}.sock", driver.name()))
}

/// Seats of all drivers; nobody comes in other families.
pub(super) fn seats(family: Family) -> [(Dra, Seat); 2] {
    let seat = || if family == Family::Claims { Seat::empty() } else { Seat::none() };
    Dra::ALL.map(|driver| (driver, seat()))
}

impl Node {
    pub(super) fn dra_seat(&mut self, driver: Dra) -> Option<&mut Seat> {
        self.drivers.iter_mut().find(|(of, _)| *of == driver).map(|(_, seat)| seat)
    }

    /// Drivers that are due to come (back), and pods that somebody is to delete.
    pub(super) fn take_drivers(&mut self) -> Result<()> {
        let now = kernel::now();
        for (driver, seat) in self.drivers.iter_mut().filter(|(_, seat)| seat.back.is_some_and(|back| back <= now)) {
            let (driver, listener) = (*driver, listen(&socket(&self.folder, *driver))?);
            let world = self.world.clone();
            *seat = Seat::taken(Process::start(async move || dra_driver::serve(world, driver, listener).await)?);
            let mut world = self.world.lock();
            world.tell(driver.short(), "starts");
            world.claims.socket_comes(driver);
        }
        Ok(())
    }

    /// Somebody deletes the pods of a call that has just come.
    pub(super) fn delete_going(&mut self) {
        let going = std::mem::take(&mut self.world.lock().claims.going);
        let Some(cluster) = &mut self.cluster else { return };
        for (uid, force) in going {
            let pod = {
                let mut world = self.world.lock();
                let mut pods = world.wanted.iter();
                let found = pods.find(|(_, wanted)| wanted.uid.as_deref() == Some(&uid));
                let Some(pod) = found.map(|(pod, _)| pod.clone()) else { continue };
                let how = if force { "by force " } else { "" };
                world.tell("somebody", format!("deletes {pod} {how}while a driver is at it"));
                pod
            };
            cluster.delete(&pod, force.then_some(0));
        }
    }

    pub(super) fn do_claims_step(&mut self, deed: &ClaimsDeed) {
        let now = kernel::now();
        match deed {
            ClaimsDeed::Kill { driver, down, leaves } => {
                let was_there = self.dra_seat(*driver).is_some_and(|seat| seat.process.is_some());
                self.command(Command::KillDra { driver: *driver, down: *down });
                if *leaves && was_there {
                    self.world.lock().claims.socket_goes(*driver);
                }
            }
            ClaimsDeed::Fault { driver, fault } => self.world.lock().claims.faults.push((*driver, *fault)),
            ClaimsDeed::NoControllers { lasts } => {
                self.world.lock().claims.idle_until = now + Duration::from_millis(*lasts);
            }
            ClaimsDeed::Renew { claim } => {
                self.world.lock().claims.renewed.insert(*claim);
                if let Some(cluster) = &mut self.cluster {
                    cluster.ends.push((now, End::Controllers));
                }
            }
        }
    }
}
