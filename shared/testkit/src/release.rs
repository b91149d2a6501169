//! Which containerd a lab runs: the machine's own, or one of a newer Debian, unpacked beside it and run from there.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use crate::debian::{self, Debootstrap};
use crate::{cache, machine};

/// Names the release of all labs that do not ask for one themselves.
pub const VARIABLE: &str = "BULKHEAD_RUNTIME";

/// What is unpacked, besides what these depend on.
const PACKAGES: &[&str] = &["containerd", "runc", "crun", "criu"];
/// Those of their programs that are run. The shim, the OCI runtimes, and criu for checkpoints, are found by containerd on its
/// PATH.
const PROGRAMS: &[&str] = &[
    "usr/bin/containerd",
    "usr/bin/containerd-shim-runc-v2",
    "usr/bin/ctr",
    "usr/sbin/runc",
    "usr/bin/crun",
    "usr/sbin/criu",
];

/// A release of containerd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Release {
    /// The machine's own: 1.6 of Debian bookworm, the oldest that the project promises to work with.
    #[default]
    Installed,
    /// That of Debian trixie: 1.7, with a CRI event stream for one listener alone.
    V1_7,
    /// That of Debian sid: 2.1 or newer, with user namespaces, image volumes, users and resources in statuses.
    V2_1,
}

impl Release {
    /// From the environment.
    ///
    /// # Errors
    /// It names none.
    pub fn from_environment() -> Result<Self> {
        match std::env::var(VARIABLE) {
            Ok(text) => Self::parse(&text),
            Err(std::env::VarError::NotPresent) => Ok(Self::default()),
            Err(error) => Err(error).context(VARIABLE),
        }
    }

    fn parse(text: &str) -> Result<Self> {
        match text {
            "" | "1.6" => Ok(Self::Installed),
            "1.7" => Ok(Self::V1_7),
            "2.1" => Ok(Self::V2_1),
            other => bail!("{VARIABLE} is {other:?}; it may be 1.6 (the machine's own), 1.7 or 2.1"),
        }
    }

    /// As the variable names it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Installed => "1.6",
            Self::V1_7 => "1.7",
            Self::V2_1 => "2.1",
        }
    }

    const fn suite(self) -> Option<&'static str> {
        match self {
            Self::Installed => None,
            Self::V1_7 => Some("trixie"),
            Self::V2_1 => Some("sid"),
        }
    }

    /// Its programs; those of a newer Debian are made first where they are not there, in about ten seconds. `say` gets
    /// a line for each step.
    ///
    /// # Errors
    /// Something cannot be installed or unpacked, or the programs do not run here.
    pub fn programs(self, say: &dyn Fn(&str)) -> Result<Programs> {
        let Some(suite) = self.suite() else { return Programs::of(self, None) };
        machine::ensure_installed_for_releases(say)?;
        let packages: Vec<String> = PACKAGES.iter().map(|name| (*name).to_owned()).collect();
        let name = format!("containerd-{suite}-{}", debian::digest(&packages));
        let root = cache::folder(&name, |draft, root| {
            say(&format!("unpacking containerd of Debian {suite} in {} (once)", root.display()));
            let keyring = keyring(say)?;
            let more = [
                format!("--keyring={}", keyring.join("usr/share/keyrings").display()),
                // sid's Release file may be older than its own date allows.
                "--aptopt=Acquire::Check-Valid-Until \"false\"".to_owned(),
            ];
            Debootstrap { suite, variant: "extract", packages: &packages, more: &more }.run(draft, say)?;
            make_runnable(draft, root)?;
            let _ = std::fs::remove_dir_all(draft.join("usr/share"));
            Ok(())
        })?;
        Programs::of(self, Some(root))
    }
}

/// The keys that the archives of newer releases are signed with: an older Debian does not have them all.
fn keyring(say: &dyn Fn(&str)) -> Result<PathBuf> {
    cache::folder("archive-keyring-trixie", |draft, _| {
        let packages = ["debian-archive-keyring".to_owned()];
        Debootstrap { suite: "trixie", variant: "extract", packages: &packages, more: &[] }.run(draft, say)
    })
}

/// Lets the programs in `draft`, which will be `root`, run with the loader and the libraries that came with them: they ask
/// for a newer C library than the machine may have.
fn make_runnable(draft: &Path, root: &Path) -> Result<()> {
    let libraries = libraries(draft)?;
    for program in PROGRAMS {
        let path = draft.join(program);
        let text = path.to_string_lossy();
        let loader = machine::run("patchelf", &["--print-interpreter", &text])?;
        let loader = Path::new(loader.trim()).strip_prefix("/").context("a loader with a relative path")?.to_owned();
        // /lib and /lib64 are links below /usr on a Debian; unpacked packages have no such links.
        let loader = [loader.clone(), Path::new("usr").join(&loader)]
            .into_iter()
            .find(|one| draft.join(one).exists())
            .with_context(|| format!("no loader {} for {program}", loader.display()))?;
        let (loader, libraries) = (root.join(loader), root.join(&libraries));
        let (loader, libraries) = (loader.to_string_lossy(), libraries.to_string_lossy());
        // Without --force-rpath it would hold for the program's own libraries alone, and not for theirs.
        machine::run("patchelf", &["--set-interpreter", &loader, "--force-rpath", "--set-rpath", &libraries, &text])?;
    }
    Ok(())
}

/// `usr/lib/x86_64-linux-gnu`, or what it is called for another architecture.
fn libraries(root: &Path) -> Result<PathBuf> {
    let folders = std::fs::read_dir(root.join("usr/lib")).context("no libraries were unpacked")?;
    let found = folders.flatten().find(|folder| folder.path().join("libc.so.6").exists());
    Ok(Path::new("usr/lib").join(found.context("no C library was unpacked")?.file_name()))
}

/// The programs of a release, and what they say they are.
#[derive(Debug, Clone)]
pub struct Programs {
    release: Release,
    /// Where they lie; None: on the machine's PATH.
    root: Option<PathBuf>,
    containerd: String,
    runc: String,
}

impl Programs {
    fn of(release: Release, root: Option<PathBuf>) -> Result<Self> {
        let mut programs = Self { release, root, containerd: String::new(), runc: String::new() };
        programs.containerd = programs.version("containerd")?;
        programs.runc = programs.version("runc")?;
        Ok(programs)
    }

    pub fn release(&self) -> Release {
        self.release
    }

    /// `containerd 2.1.9, runc 1.3.6`.
    pub fn versions(&self) -> String {
        format!("containerd {}, runc {}", self.containerd, self.runc)
    }

    /// Whether its configuration is that of 2.x.
    pub(crate) fn is_2(&self) -> bool {
        self.containerd.split('.').next().and_then(|major| major.parse().ok()).is_some_and(|major: u32| major >= 2)
    }

    /// A program of it, by name where the machine's PATH has it.
    pub fn program(&self, name: &str) -> PathBuf {
        let Some(root) = &self.root else { return PathBuf::from(name) };
        let found = PROGRAMS.iter().find(|path| Path::new(path).file_name().is_some_and(|one| one == name));
        found.map_or_else(|| PathBuf::from(name), |path| root.join(path))
    }

    /// crun, where it came with them.
    pub(crate) fn crun(&self) -> Option<PathBuf> {
        Some(self.root.as_ref()?.join("usr/bin/crun"))
    }

    /// PATH for what looks there for the shim and the OCI runtimes.
    pub(crate) fn path(&self) -> OsString {
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let Some(root) = &self.root else { return inherited };
        let mut path = OsString::from(root.join("usr/bin"));
        for more in [root.join("usr/sbin").into_os_string(), inherited] {
            path.push(":");
            path.push(more);
        }
        path
    }

    fn version(&self, name: &str) -> Result<String> {
        let program = self.program(name);
        let output = Command::new(&program)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("starting {}", program.display()))?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "{}: {}", program.display(), String::from_utf8_lossy(&output.stderr).trim());
        version_in(&said).with_context(|| format!("{} --version says no version: {said:?}", program.display()))
    }
}

/// The version in the first line of `containerd --version` and of `runc --version`, without what a packager has added.
fn version_in(said: &str) -> Option<String> {
    let words = said.lines().next()?.split_whitespace();
    let mut numbers = words.map(|word| word.trim_start_matches('v').split(['+', '~', '-']).next().unwrap_or_default());
    numbers
        .find(|word| word.contains('.') && word.chars().all(|one| one.is_ascii_digit() || one == '.'))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_as_the_programs_say_them() {
        let said = "containerd github.com/containerd/containerd/v2 2.1.9+unknown \n";
        assert_eq!(version_in(said).unwrap(), "2.1.9");
        assert_eq!(version_in("containerd containerd.io v1.7.24~ds1 1.7.24~ds1-6+b4").unwrap(), "1.7.24");
        assert_eq!(version_in("runc version 1.1.5+ds1\ncommit: 1.1.5").unwrap(), "1.1.5");
        assert_eq!(version_in("no number"), None);
    }

    #[test]
    fn a_release_is_named_as_the_variable_has_it() {
        for release in [Release::Installed, Release::V1_7, Release::V2_1] {
            assert_eq!(Release::parse(release.name()).unwrap(), release);
        }
        assert_eq!(Release::parse("").unwrap(), Release::Installed);
        assert!(Release::parse("2").unwrap_err().to_string().contains("1.6 (the machine's own), 1.7 or 2.1"));
    }
}
