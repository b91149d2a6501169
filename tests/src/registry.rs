//! A real registry with a password, for tests of image pulls.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::wait::{SHORT, eventually};
use bulkhead_testkit::{Lab, image, netns};
use nix::sys::signal::Signal;

/// Who may pull.
pub const USER: &str = "puller";
pub const PASSWORD: &str = "secret";
/// bcrypt of the password, which is all that the registry takes.
const PASSWORD_HASH: &str = "$2b$04$GO.Ip7SWT8HSuvA.lc1xQuGiboTX5JbMmvY9WUga8AMiyOCFgL4Zq";
const PROGRAM: &str = "/usr/bin/docker-registry";
/// The runtime takes plain HTTP from a loopback address alone.
const ADDRESS: &str = "127.0.0.1:5000";

/// A registry in the lab's network namespace, with one image in it.
#[derive(Debug)]
pub struct Registry {
    child: Child,
    lab: Lab,
}

impl Registry {
    /// Starts it and pushes the lab's busybox to it.
    ///
    /// # Errors
    /// It cannot be installed, did not come up, or did not take the image.
    pub fn start(lab: &Lab) -> Result<Self> {
        install()?;
        let folder = lab.folder().join("registry");
        std::fs::create_dir_all(&folder)?;
        let passwords = folder.join("htpasswd");
        std::fs::write(&passwords, format!("{USER}:{PASSWORD_HASH}\n"))?;
        let config = folder.join("config.yml");
        let text = format!(
            "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {0}/data}}}}\nhttp: {{addr: \"{ADDRESS}\"}}\n\
             auth: {{htpasswd: {{realm: test, path: {1}}}}}\n",
            folder.display(),
            passwords.display()
        );
        std::fs::write(&config, text)?;
        let log = std::fs::File::create(folder.join("log"))?;
        let child = Command::new("nsenter")
            .arg(format!("--net={}", lab.netns().path().display()))
            .arg(PROGRAM)
            .arg("serve")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("starting the registry")?;
        let registry = Self { child, lab: lab.clone() };
        let namespace: PathBuf = lab.netns().path();
        eventually("the registry answers", SHORT, || {
            let address = ADDRESS.parse()?;
            let (status, _) = netns::run_in(&namespace, || netns::http_get(address, "/v2/"))?;
            ensure!(status == 401, "it answers {status} without a password");
            Ok(())
        })?;
        registry.push(&registry.image())?;
        Ok(registry)
    }

    /// The image that only those who know the password can pull.
    pub fn image(&self) -> String {
        self.image_of("private")
    }

    /// The name of an image of a team, there once it was pushed.
    pub fn image_of(&self, team: &str) -> String {
        format!("{ADDRESS}/{team}/busybox:1")
    }

    /// `host:port`, as images name it.
    pub fn address(&self) -> &'static str {
        ADDRESS
    }

    /// Pushes the lab's busybox under a name, and takes it off the node under that name.
    ///
    /// # Errors
    /// The registry did not take it.
    pub fn push(&self, image: &str) -> Result<()> {
        let login = format!("{USER}:{PASSWORD}");
        let containerd = self.lab.containerd();
        containerd.ctr(&["images", "tag", image::BUSYBOX, image])?;
        // It is ctr that talks to the registry here: so it has to be where the registry is.
        let output = Command::new("nsenter")
            .arg(format!("--net={}", self.lab.netns().path().display()))
            .arg(containerd.programs().program("ctr"))
            .args(["--namespace", "k8s.io", "--address"])
            .arg(containerd.socket())
            .args(["images", "push", "--plain-http", "--user", &login, image])
            .output()?;
        ensure!(output.status.success(), "pushing {image}: {}", String::from_utf8_lossy(&output.stderr));
        containerd.ctr(&["images", "remove", "--sync", image])?;
        Ok(())
    }

    /// A secret's `.dockerconfigjson` with this password.
    pub fn docker_config(password: &str) -> String {
        format!(r#"{{"auths":{{"{ADDRESS}":{{"username":"{USER}","password":"{password}"}}}}}}"#)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            bulkhead_testkit::processes::signal(pid, Signal::SIGTERM);
        }
        let _ = self.child.wait();
    }
}

fn install() -> Result<()> {
    if Path::new(PROGRAM).exists() {
        return Ok(());
    }
    bulkhead_testkit::machine::install(&["docker-registry"], &|_| {})
}
