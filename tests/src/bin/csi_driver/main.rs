//! A CSI driver for tests: stages a tmpfs or an image file, publishes it by a bind mount or a loop device, writes down every call,
//! and misbehaves as it is told to while it runs.
//!
//! It serves Identity and Node on `<root>/plugins/<name>/csi.sock` and registers itself in `<root>/plugins_registry`.
//! In its state folder lie `calls.jsonl` (a line when a call comes, a line when it is answered), `faults.json` (see
//! [`faults`]; read anew at each call) and `images/`, the content of block volumes.
//!
//! Of a volume's attributes it knows `size` (bytes, of the tmpfs or the image), `inodes` (so many it has room for) and `files` (so many
//! empty files are in it).

mod faults;
mod identity;
mod node;
mod record;
mod volumes;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use bulkhead_csi::registration::{v1, v1beta1};
use bulkhead_csi::v1 as csi;
use clap::{Arg, ArgAction, ArgMatches, Command};
use kubelet_pod_resources::connections::clients;
use parking_lot::Mutex;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tonic::transport::Server;
use tonic::transport::server::Router;

use self::record::Record;

/// The driver as its services see it.
#[derive(Debug, Clone)]
struct Served(Arc<Driver>);

/// What the driver was told to be.
#[derive(Debug)]
struct Driver {
    name: String,
    node_id: String,
    version: String,
    /// What GetInfo answers for the socket of the driver.
    endpoint: String,
    capabilities: Vec<i32>,
    topology: BTreeMap<String, String>,
    max_volumes: i64,
    /// What is written here counts instead of `max_volumes`.
    max_volumes_file: PathBuf,
    /// An object: volumes that are abnormal, and why.
    abnormal_file: PathBuf,
    images: PathBuf,
    record: Record,
    /// Held while a call works: two calls at once on one volume would both find that it is not mounted.
    works: Mutex<()>,
}

impl Driver {
    /// What is wrong with a volume.
    fn abnormal(&self, volume: &str) -> Option<String> {
        let told: serde_json::Value = serde_json::from_slice(&std::fs::read(&self.abnormal_file).ok()?).ok()?;
        told[volume].as_str().map(str::to_owned)
    }

    /// How many volumes the node can have by now.
    fn max_volumes(&self) -> i64 {
        let told = std::fs::read_to_string(&self.max_volumes_file).ok();
        told.and_then(|text| text.trim().parse().ok()).unwrap_or(self.max_volumes)
    }
}

fn main() -> ExitCode {
    bulkhead_tests::program::run("csi_driver", run(&command().get_matches()))
}

fn command() -> Command {
    let flag = |name: &'static str| Arg::new(name).long(name);
    Command::new("csi_driver")
        .arg(flag("name").required(true))
        .arg(flag("root").required(true).help("the kubelet's root directory"))
        .arg(flag("state").required(true).help("a folder for calls, faults and images"))
        .arg(flag("node-id").default_value("node"))
        .arg(flag("plugin-version").default_value("1.0.0").help("what GetInfo says is supported"))
        .arg(flag("endpoint").help("what GetInfo says is the driver's socket"))
        .arg(flag("max-volumes").default_value("0").value_parser(clap::value_parser!(i64)))
        .arg(flag("capability").action(ArgAction::Append).help("of the node service"))
        .arg(flag("topology").action(ArgAction::Append).help("key=value"))
        .arg(flag("registration").default_value("v1").value_parser(["v1", "v1beta1", "none"]))
}

async fn run(given: &ArgMatches) -> Result<()> {
    let text = |name: &str| given.get_one::<String>(name).cloned().unwrap_or_default();
    let many = |name: &str| given.get_many::<String>(name).into_iter().flatten().cloned().collect::<Vec<_>>();
    let (root, state, name) = (PathBuf::from(text("root")), PathBuf::from(text("state")), text("name"));
    let socket = root.join("plugins").join(&name).join("csi.sock");
    let images = state.join("images");
    std::fs::create_dir_all(&images).with_context(|| format!("creating {}", images.display()))?;
    let endpoint = given.get_one::<String>("endpoint").cloned().unwrap_or_else(|| socket.display().to_string());
    let driver = Served(Arc::new(Driver {
        node_id: text("node-id"),
        version: text("plugin-version"),
        endpoint,
        capabilities: many("capability").iter().map(|one| capability(one)).collect::<Result<_>>()?,
        topology: many("topology").iter().map(|one| pair(one)).collect::<Result<_>>()?,
        max_volumes: given.get_one::<i64>("max-volumes").copied().unwrap_or_default(),
        max_volumes_file: state.join("max-volumes"),
        abnormal_file: state.join("abnormal.json"),
        images,
        record: Record::new(&state)?,
        works: Mutex::new(()),
        name: name.clone(),
    }));
    let mut end = signal(SignalKind::terminate()).context("waiting for SIGTERM")?;
    let services = Server::builder()
        .add_service(csi::identity_server::IdentityServer::new(driver.clone()))
        .add_service(csi::node_server::NodeServer::new(driver.clone()));
    let serving = serve(services, &socket, 0o755)?;
    let registration = match text("registration").as_str() {
        "v1" => Some(Server::builder().add_service(v1::registration_server::RegistrationServer::new(driver.clone()))),
        "v1beta1" => {
            Some(Server::builder().add_service(v1beta1::registration_server::RegistrationServer::new(driver.clone())))
        }
        _ => None,
    };
    let registered = root.join("plugins_registry").join(format!("{name}-reg.sock"));
    // The driver's socket is there before anybody is told of it.
    let registering = registration.map(|service| serve(service, &registered, 0o700)).transpose()?;
    tokio::select! {
        _ = end.recv() => {}
        ended = serving => ended.context("serving")??,
    }
    if registering.is_some() {
        let _ = std::fs::remove_file(registered);
    }
    let _ = std::fs::remove_file(socket);
    Ok(())
}

fn capability(name: &str) -> Result<i32> {
    let known = csi::node_service_capability::rpc::Type::from_str_name(name);
    Ok(known.with_context(|| format!("{name} is no capability of a node service"))?.into())
}

fn pair(text: &str) -> Result<(String, String)> {
    let Some((key, value)) = text.split_once('=') else { bail!("{text:?} is not key=value") };
    Ok((key.to_owned(), value.to_owned()))
}

/// Listens on a socket that has its mode before anybody can see it under its name.
fn serve(services: Router, socket: &Path, mode: u32) -> Result<JoinHandle<Result<(), tonic::transport::Error>>> {
    let folder = socket.parent().context("a socket without a folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    // A name that begins with a dot is no plugin's.
    let hidden = folder.join(".new.sock");
    let _ = std::fs::remove_file(&hidden);
    let listener = UnixListener::bind(&hidden).with_context(|| format!("binding {}", hidden.display()))?;
    std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(mode))?;
    std::fs::rename(&hidden, socket).with_context(|| format!("naming {}", socket.display()))?;
    Ok(tokio::spawn(services.serve_with_incoming(clients(listener))))
}
