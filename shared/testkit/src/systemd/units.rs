//! What the machine's systemd says of its units, and waiting until the node's are up.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Result, ensure};

use super::Machine;
use crate::node::HEALTHZ_PORT;
use crate::wait::{LONG, eventually};

/// The services of the four daemons, in the order in which they depend on each other.
pub const SERVICES: [&str; 4] =
    ["kubelet-volnetd.service", "kubelet-syncd.service", "kubelet-evictiond.service", "kubelet-statusd.service"];

/// A unit as systemd shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// `ActiveState`: active, activating, inactive, failed...
    pub active: String,
    /// `SubState`.
    pub sub: String,
    /// `Result`: of its last run, such as success or watchdog.
    pub result: String,
    /// Its main process by its number inside; 0: none.
    pub main_pid: i32,
    /// How often systemd has started it again by itself since somebody started it.
    pub restarts: u64,
    /// Another one for each run.
    pub invocation: String,
}

impl Machine {
    /// A unit.
    ///
    /// # Errors
    /// systemd does not answer, or knows no such unit.
    pub fn unit(&self, name: &str) -> Result<Unit> {
        let properties = "LoadState,ActiveState,SubState,Result,MainPID,NRestarts,InvocationID";
        let text = self.check(&["systemctl", "show", "--property", properties, name])?;
        let unit = of_properties(&text);
        ensure!(unit.0 == "loaded", "{name} is {}", unit.0);
        Ok(unit.1)
    }

    /// Waits until a unit is active, in another run than `before`.
    ///
    /// # Errors
    /// How it is instead, and the end of its journal.
    pub fn wait_another_run(&self, name: &str, before: &Unit) -> Result<Unit> {
        eventually(&format!("{name} is up again"), LONG, || {
            let now = self.unit(name)?;
            ensure!(now.active == "active" && now.invocation != before.invocation, "{now:?}");
            Ok(now)
        })
        .map_err(|error| error.context(self.last_words(&[name], 20)))
    }

    /// Waits until the four daemons run and healthz says so.
    ///
    /// # Errors
    /// What is not as it should be, and the end of the units' journals.
    pub fn wait_healthy(&self) -> Result<()> {
        eventually("the machine's node is healthy", LONG, || {
            for service in SERVICES {
                let unit = self.unit(service)?;
                ensure!(unit.active == "active", "{service}: {unit:?}");
            }
            let (status, body) = self.netns().http_get(IpAddr::V4(Ipv4Addr::LOCALHOST), HEALTHZ_PORT, "/healthz")?;
            ensure!(status == 200, "healthz says {status}: {body}");
            Ok(())
        })
        .map_err(|error| error.context(self.last_words(&["kubelet*"], 60)))
    }

    /// Sends a signal to the main process of a unit. (What containerd has started for pods is in its unit too.)
    ///
    /// # Errors
    /// It has none.
    pub fn signal(&self, unit: &str, signal: &str) -> Result<()> {
        self.check(&["systemctl", "kill", "--kill-whom=main", "--signal", signal, unit]).map(drop)
    }
}

/// `LoadState`, and the unit.
fn of_properties(text: &str) -> (String, Unit) {
    let all: BTreeMap<&str, &str> = text.lines().filter_map(|line| line.split_once('=')).collect();
    let word = |name: &str| all.get(name).copied().unwrap_or_default().to_owned();
    let unit = Unit {
        active: word("ActiveState"),
        sub: word("SubState"),
        result: word("Result"),
        main_pid: word("MainPID").parse().unwrap_or_default(),
        restarts: word("NRestarts").parse().unwrap_or_default(),
        invocation: word("InvocationID"),
    };
    (word("LoadState"), unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_are_read_by_their_names() {
        let text = "MainPID=7\nNRestarts=2\nResult=watchdog\nLoadState=loaded\nActiveState=active\nInvocationID=ab\n";
        let (load, unit) = of_properties(text);
        assert_eq!((load.as_str(), unit.main_pid, unit.restarts, unit.result.as_str()), ("loaded", 7, 2, "watchdog"));
        assert_eq!((unit.active.as_str(), unit.sub.as_str(), unit.invocation.as_str()), ("active", "", "ab"));
    }
}
