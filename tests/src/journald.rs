//! A journal as the real journald writes it, with lines of a service that there is not: journald runs for a moment under a
//! name of its own, hears of a process that lies in that service's cgroup, and what it has written is put where the machine's
//! journal is.

use std::os::unix::fs::chown;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::processes::status_line;
use bulkhead_testkit::skip::{Lack, skip_this_test};
use bulkhead_testkit::{LONG, eventually};

const JOURNALD: &str = "/lib/systemd/systemd-journald";
const FOLDER: &str = "/var/log/journal";
/// Where journald looks for the cgroup of who sends a line, on a machine whose hierarchies are of both versions.
const HIERARCHIES: [&str; 2] = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd"];

/// Lines of a service in the machine's journal, until this is dropped.
#[derive(Debug)]
pub struct Journal {
    pub service: String,
    file: PathBuf,
    /// Was made for it.
    folder: Option<PathBuf>,
}

impl Drop for Journal {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
        if let Some(folder) = &self.folder {
            let _ = std::fs::remove_dir(folder);
        }
    }
}

/// journald under another name, with the folders that it has made.
struct Journald {
    child: Child,
    written: PathBuf,
    run: PathBuf,
}

impl Drop for Journald {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.written);
        let _ = std::fs::remove_dir_all(&self.run);
    }
}

/// Writes `lines` into the journal as those of a service; `None` (said loudly) on a machine without journald or without the
/// cgroups that it asks.
///
/// # Errors
/// journald did not start, or did not take the lines.
pub fn write(lines: &[&str]) -> Result<Option<Journal>> {
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default().trim().to_owned();
    let there = |path: &&str| Path::new(path).is_dir();
    if !Path::new(JOURNALD).is_file()
        || !Path::new(FOLDER).is_dir()
        || machine.is_empty()
        || !HIERARCHIES.iter().all(there)
    {
        skip_this_test(Lack::Journald)?;
        return Ok(None);
    }
    let name = format!("bulkhead-{}", std::process::id());
    let service = format!("{name}-service");
    let written = Path::new(FOLDER).join(format!("{machine}.{name}"));
    std::fs::create_dir_all(&written)?;
    let child = Command::new(JOURNALD).arg(&name).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let journald = Journald { child, written, run: Path::new("/run/systemd").join(format!("journal.{name}")) };
    eventually("journald listens", LONG, || {
        UnixDatagram::unbound()?.connect(journald.run.join("socket")).context("not yet")
    })?;
    in_cgroup_of(&service, || {
        let socket = UnixDatagram::unbound()?;
        socket.connect(journald.run.join("socket"))?;
        for line in lines {
            socket.send(format!("MESSAGE={line}\nPRIORITY=6\nSYSLOG_IDENTIFIER=demo\n").as_bytes())?;
        }
        // It looks at who has sent them, who must still be there.
        eventually("journald has the lines", LONG, || {
            let unit = format!("--unit={service}");
            let shown = Command::new("journalctl")
                .args(["--namespace", &name, "--no-pager", "--output=cat", &unit])
                .output()?;
            let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
            ensure!(lines.iter().all(|line| shown.contains(line)), "{shown}");
            Ok(())
        })
    })?;
    let folder = Path::new(FOLDER).join(&machine);
    let made = !folder.is_dir();
    std::fs::create_dir_all(&folder)?;
    let group = std::os::unix::fs::MetadataExt::gid(&std::fs::metadata(FOLDER)?);
    let file = folder.join(format!("{name}.journal"));
    std::fs::copy(journald.written.join("system.journal"), &file)?;
    let journal = Journal { service, file, folder: made.then_some(folder.clone()) };
    for path in [&journal.file, &folder] {
        chown(path, None, Some(group))?;
    }
    Ok(Some(journal))
}

/// Runs something while this very process lies in the cgroup that a unit of systemd's would have.
fn in_cgroup_of<T>(service: &str, what: impl FnOnce() -> Result<T>) -> Result<T> {
    let slice = |hierarchy: &str| Path::new(hierarchy).join("system.slice");
    let join = |cgroup: &Path| std::fs::write(cgroup.join("cgroup.procs"), std::process::id().to_string());
    let result = HIERARCHIES.iter().try_for_each(|hierarchy| {
        let cgroup = slice(hierarchy).join(format!("{service}.service"));
        std::fs::create_dir_all(&cgroup)?;
        join(&cgroup).with_context(|| format!("entering {}", cgroup.display()))
    });
    let result = result.and_then(|()| what());
    for hierarchy in HIERARCHIES {
        join(Path::new(hierarchy)).with_context(|| format!("leaving {hierarchy}"))?;
        let _ = std::fs::remove_dir(slice(hierarchy).join(format!("{service}.service")));
        let _ = std::fs::remove_dir(slice(hierarchy));
    }
    result
}

/// The process that reads the journal for this launcher.
///
/// # Errors
/// It does not run.
pub fn reader_of(launcher: i32) -> Result<i32> {
    helper_of(launcher, "kubelet-journal")
}

/// The process of this name that this launcher has started.
///
/// # Errors
/// It does not run.
pub fn helper_of(launcher: i32, name: &str) -> Result<i32> {
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        let comm = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        // The kernel keeps 15 bytes of a name.
        if comm.trim_end() == &name[..name.len().min(15)]
            && status_line(pid, "PPid").is_ok_and(|parent| parent == launcher.to_string())
        {
            return Ok(pid);
        }
    }
    anyhow::bail!("{name} does not run")
}
