//! One call of a driver: its environment, its time, what is kept of what it says; and how many of one driver there are at once.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_sys::spawn::Spec;
use bulkhead_types::FlexDriver;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;
use tokio::process::{Child, Command};

use crate::verdict::Said;

/// Most of what a driver says that is kept, bytes; the rest of it is read and dropped.
const OUTPUT_MAX: usize = 64 * 1024;
/// Calls of one driver that have not ended, those that hang included. Others have their places.
const OF_ONE_DRIVER: usize = 32;
/// What was killed ends within this time, unless the kernel does not let it.
const AFTER_KILL: Duration = Duration::from_secs(5);
/// Where shells look for programs.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// What a pipe holds, in reads of this size.
const READ: usize = 8 * 1024;

/// The calls of each driver.
#[derive(Debug, Clone, Default)]
pub struct Calls(Arc<Mutex<HashMap<FlexDriver, usize>>>);

/// The place of one call.
#[derive(Debug)]
pub struct Place {
    calls: Calls,
    driver: FlexDriver,
}

impl Calls {
    /// `None`: too many of this driver have not ended.
    pub fn place(&self, driver: &FlexDriver) -> Option<Place> {
        let mut all = self.0.lock();
        let count = all.entry(driver.clone()).or_default();
        if *count >= OF_ONE_DRIVER {
            return None;
        }
        *count += 1;
        Some(Place { calls: self.clone(), driver: driver.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.calls.0.lock();
        if let Some(count) = all.get_mut(&self.driver) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.driver);
            }
        }
    }
}

/// How a call came out.
#[derive(Debug)]
pub enum Outcome {
    Said(Said),
    /// It took too long, and was killed.
    Killed,
    /// It took too long, and the kernel does not let it end.
    Left(Left),
}

/// A driver that cannot be ended, with its place.
#[derive(Debug)]
pub struct Left {
    child: Child,
    _place: Place,
}

impl Left {
    /// Until it has.
    pub async fn ended(mut self) {
        let _ = self.child.wait().await;
    }
}

/// Calls a driver. What it has started and left running on purpose (a file system's server) goes on; nobody waits for it, not even where
/// it still has the driver's output open.
///
/// # Errors
/// The program cannot be started, or its output not be read.
pub async fn run(program: &Path, arguments: Vec<OsString>, deadline: Duration, place: Place) -> io::Result<Outcome> {
    let (said, writes) = io::pipe()?;
    let mut spec = Spec::new(program);
    spec.args = arguments;
    spec.env = vec![("PATH".into(), PATH.into())];
    spec.no_new_privs = true;
    spec.die_with_parent = true;
    // What it has started is killed with it when it takes too long.
    spec.own_process_group = true;
    let (mut command, slots) = spec.prepare()?.into_parts();
    command.stdout(writes.try_clone()?).stderr(writes);
    let child = Command::from(command).kill_on_drop(true).spawn();
    drop(slots);
    let mut child = child?;
    let mut said = Receiver::from_owned_fd(said.into())?;
    match tokio::time::timeout(deadline, to_its_end(&mut child, &mut said)).await {
        Ok(said) => said.map(Outcome::Said),
        Err(_) => {
            let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
            if let Some(group) = group {
                let _ = kill_process_group(group, Signal::KILL);
            }
            match tokio::time::timeout(AFTER_KILL, child.wait()).await {
                Ok(_) => Ok(Outcome::Killed),
                Err(_) => Ok(Outcome::Left(Left { child, _place: place })),
            }
        }
    }
}

async fn to_its_end(child: &mut Child, pipe: &mut Receiver) -> io::Result<Said> {
    let mut said = Said { code: None, output: Vec::new(), cut: false };
    let mut buffer = [0; READ];
    let mut is_open = true;
    let status = loop {
        tokio::select! {
            read = pipe.read(&mut buffer), if is_open => match read? {
                0 => is_open = false,
                read => keep(&mut said, &buffer[..read]),
            },
            status = child.wait() => break status?,
        }
    };
    // What is in the pipe by now, and no more: somebody else may have its other end.
    for _ in 0..OUTPUT_MAX / READ + 1 {
        match rustix::io::read(&*pipe, &mut buffer) {
            Ok(0) | Err(rustix::io::Errno::AGAIN) => break,
            Ok(read) => keep(&mut said, &buffer[..read]),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    said.code = status.code();
    Ok(said)
}

fn keep(said: &mut Said, bytes: &[u8]) {
    let room = OUTPUT_MAX.saturating_sub(said.output.len()).min(bytes.len());
    said.output.extend_from_slice(&bytes[..room]);
    said.cut |= room < bytes.len();
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn shell(script: &str, deadline: Duration) -> Outcome {
        let place = Calls::default().place(&FlexDriver::parse("a/b").unwrap()).unwrap();
        run(Path::new("/bin/sh"), vec!["-c".into(), script.into()], deadline, place).await.unwrap()
    }

    async fn said(script: &str) -> Said {
        match shell(script, Duration::from_secs(30)).await {
            Outcome::Said(said) => said,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_driver_has_path_and_nothing_else() {
        let said = said("/usr/bin/env; echo err >&2; exit 3").await;
        let text = String::from_utf8(said.output).unwrap();
        assert_eq!(said.code, Some(3));
        assert!(text.contains(&format!("PATH={PATH}\n")) && text.ends_with("err\n"), "{text}");
        assert!(!text.contains("HOME") && !text.contains("CARGO"), "{text}");
    }

    #[tokio::test]
    async fn what_it_leaves_running_is_not_waited_for_and_much_is_cut() {
        let left = said("sleep 300 & echo $!").await;
        let id: i32 = String::from_utf8(left.output).unwrap().trim().parse().unwrap();
        rustix::process::kill_process(Pid::from_raw(id).unwrap(), Signal::KILL).unwrap();
        let much = said("head -c 1048576 /dev/zero").await;
        assert_eq!((much.code, much.output.len(), much.cut), (Some(0), OUTPUT_MAX, true));
    }

    #[tokio::test]
    async fn what_hangs_is_killed_with_what_it_has_started() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("id");
        let script = format!("sleep 300 & echo $! > {}; wait", file.display());
        assert!(matches!(shell(&script, Duration::from_secs(3)).await, Outcome::Killed));
        let id: i32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        // Its end may be a moment away, and then somebody has to have asked for it: it is dead or a zombie of init's.
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
        assert!(state.is_none_or(|state| "ZXRD".contains(state)), "{stat}");
    }

    #[test]
    fn one_driver_has_so_many_places_and_others_have_theirs() {
        let calls = Calls::default();
        let (one, other) = (FlexDriver::parse("a/b").unwrap(), FlexDriver::parse("a/c").unwrap());
        let held: Vec<Place> = std::iter::from_fn(|| calls.place(&one)).collect();
        assert_eq!(held.len(), OF_ONE_DRIVER);
        assert!(calls.place(&other).is_some());
        drop(held);
        assert!(calls.place(&one).is_some());
        assert!(calls.0.lock().is_empty());
    }
}
