//! The Debian package, from programs, units and files of this repository: for `cargo xtask package` and for the tests that
//! install it.
//!
//! What is made here and not kept in the repository - manual pages with the programs' own lists of options, completions,
//! the compressed changelog, stripped programs - is staged in a folder below cargo's target folder; cargo-deb puts that
//! and the files of `deploy/` and `systemd/` together, as `[package.metadata.deb]` in bins/kubelet/Cargo.toml says.

mod completions;
mod help;
mod man;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use nix::fcntl::{Flock, FlockArg};

use self::help::Help;
use crate::build;

/// The cargo-deb that the package is made with: another one may stage or compress otherwise.
const CARGO_DEB: &str = "3.8.0";
/// Programs in the order of the file list. The manual section of all is 8: they are for who administers the machine.
const PROGRAMS: [&str; 11] = [
    "kubelet",
    "kubelet-ctl",
    "kubelet-syncd",
    "kubelet-volnetd",
    "kubelet-evictiond",
    "kubelet-statusd",
    "kubelet-walker",
    "kubelet-journal",
    "kubelet-iptables",
    "kubelet-disks",
    "kubelet-flexvolume",
];

/// Which package is wanted.
#[derive(Debug)]
pub struct Options {
    /// The folder of the programs that go into it.
    pub programs: PathBuf,
    /// Version of the package, as Debian writes it; without it that of the workspace with revision 1.
    pub version: Option<String>,
    /// Folder for the package; without it cargo's `target/debian`.
    pub output: Option<PathBuf>,
    /// A larger package, sooner.
    pub fast: bool,
}

/// Makes the package and gives its path; `say` gets a line for what takes long.
///
/// # Errors
/// The step that failed.
pub fn make(options: &Options, say: &dyn Fn(&str)) -> Result<PathBuf> {
    let cargo_deb = cargo_deb(say)?;
    // Whatever the programs' profile: for cargo-deb, which builds nothing here, all is a release.
    let stage = build::target_dir().join("release/package");
    std::fs::create_dir_all(&stage).with_context(|| format!("creating {}", stage.display()))?;
    // There is one stage for all who make a package at the same time.
    let file = File::create(stage.with_extension("lock")).context("creating the lock of the stage")?;
    let _held = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error).context("locking the stage")?;
    stage_all(&options.programs, &stage)?;

    let output = options.output.clone().unwrap_or_else(|| build::target_dir().join("debian"));
    std::fs::create_dir_all(&output).with_context(|| format!("creating {}", output.display()))?;
    let mut command = Command::new(cargo_deb);
    command
        .current_dir(build::workspace_root())
        .args(["--no-build", "--no-strip", "--no-dbgsym", "--locked"])
        .args(["--manifest-path", "bins/kubelet/Cargo.toml", "--output"])
        .arg(&output);
    if let Some(version) = &options.version {
        command.args(["--deb-version", version]);
    }
    if options.fast {
        // The machine's gzip: cargo-deb's own takes minutes for the programs of a development build.
        command.args(["--fast", "--compress-type", "gz", "--compress-system"]);
    }
    build::forget_own_build(&mut command);
    let said = output_of(&mut command)?;
    // The last line names the file; warnings come before it.
    let package = said.lines().rfind(|line| line.ends_with(".deb")).context("cargo-deb names no package")?;
    Ok(PathBuf::from(package.trim()))
}

/// Where cargo-deb is; installed below the target folder where the machine has none.
fn cargo_deb(say: &dyn Fn(&str)) -> Result<PathBuf> {
    let tools = build::target_dir().join("tools");
    let installed = tools.join("bin/cargo-deb");
    for candidate in [installed.clone(), PathBuf::from("cargo-deb")] {
        let version = Command::new(&candidate).arg("--version").stderr(Stdio::null()).output();
        if version.is_ok_and(|said| String::from_utf8_lossy(&said.stdout).split_whitespace().last() == Some(CARGO_DEB))
        {
            return Ok(candidate);
        }
    }
    say(&format!("installing cargo-deb {CARGO_DEB} into {} (once)", tools.display()));
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .args(["install", "--quiet", "--force", "--locked", "--version", CARGO_DEB, "--root"])
        .arg(&tools)
        .arg("cargo-deb");
    build::forget_own_build(&mut command);
    // It puts files together and starts the machine's gzip: that takes no optimised program, which would take longer to build.
    command.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1").env("CARGO_PROFILE_RELEASE_LTO", "off");
    if !command.status().context("starting cargo")?.success() {
        bail!("cargo-deb could not be installed");
    }
    Ok(installed)
}

/// Makes everything that is no file of the repository.
fn stage_all(programs: &Path, stage: &Path) -> Result<()> {
    let _ = std::fs::remove_dir_all(stage);
    for folder in ["bin", "man", "completions"] {
        let folder = stage.join(folder);
        std::fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    for program in PROGRAMS {
        let (from, to) = (programs.join(program), stage.join("bin").join(program));
        std::fs::copy(&from, &to).with_context(|| format!("copying {}", from.display()))?;
        output_of(Command::new("strip").arg(&to))?;
        write_man_page(&from, program, stage)?;
    }
    write_completions(programs, stage)?;
    for (source, name) in [("CHANGELOG.md", "changelog.gz"), ("deploy/debian/changelog", "changelog.Debian.gz")] {
        let text = compressed(&build::workspace_root().join(source))?;
        std::fs::write(stage.join(name), text).with_context(|| format!("writing {name}"))?;
    }
    Ok(())
}

fn write_man_page(program: &Path, name: &str, stage: &Path) -> Result<()> {
    let source = build::workspace_root().join(format!("deploy/man/{name}.8.in"));
    let text = std::fs::read_to_string(&source).with_context(|| format!("reading {}", source.display()))?;
    // One is started with a socket and takes no options: its page has no place for them.
    let main = if text.contains(man::OPTIONS) { help_of(program, &[])? } else { Help::default() };
    let mut asked = vec![(String::new(), main)];
    for command in asked[0].1.commands() {
        let help = help_of(program, &[&command])?;
        asked.push((command, help));
    }
    let page = man::page(&text, &asked).with_context(|| format!("making {name}.8"))?;
    let path = stage.join("man").join(format!("{name}.8"));
    std::fs::write(&path, page).with_context(|| format!("writing {}", path.display()))?;
    let gz = compressed(&path)?;
    std::fs::write(path.with_extension("8.gz"), gz).context("writing a compressed page")?;
    std::fs::remove_file(&path).context("removing the page that is compressed now")
}

fn help_of(program: &Path, words: &[&str]) -> Result<Help> {
    Ok(Help::parse(&output_of(Command::new(program).args(words).arg("--help"))?))
}

fn write_completions(programs: &Path, stage: &Path) -> Result<()> {
    let folder = stage.join("completions");
    let write = |name: &str, text: String| {
        std::fs::write(folder.join(name), text).with_context(|| format!("writing the completion {name}"))
    };
    let kubelet = help_of(&programs.join("kubelet"), &[])?;
    let ctl = |shell: &str| output_of(Command::new(programs.join("kubelet-ctl")).args(["completion", shell]));
    write("kubelet.bash", completions::bash("kubelet", &kubelet))?;
    write("_kubelet", completions::zsh("kubelet", &kubelet))?;
    write("kubelet.fish", completions::fish("kubelet", &kubelet))?;
    write("kubelet-ctl.bash", ctl("bash")?)?;
    write("_kubelet-ctl", ctl("zsh")?)?;
    write("kubelet-ctl.fish", ctl("fish")?)
}

/// A file as Debian keeps documentation: gzip, best, without name and time, so that the same input gives the same output.
fn compressed(path: &Path) -> Result<Vec<u8>> {
    let output = Command::new("gzip").args(["-9", "-n", "-c"]).arg(path).output().context("starting gzip")?;
    if !output.status.success() {
        bail!("gzip {}: {}", path.display(), String::from_utf8_lossy(&output.stderr));
    }
    Ok(output.stdout)
}

fn output_of(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    String::from_utf8(output.stdout).context("its output is not UTF-8")
}
