//! One plugin from its socket's coming to its going: asked, registered, told so; asked again after a failure.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_types::BackOff;
use kubelet_edges::csi::{CsiError, CsiNode, Dial};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Code;

use super::csi::CsiHandler;
use super::info::PluginInfo;
use super::registration::{Dialect, Registration};
use super::table::{PluginTable, Stage};
use crate::container_manager::DevicePlugins;
use crate::container_manager::devices::RegisteredBy;

/// Pauses after failures, as upstream's operations have them.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(122));

/// A socket file is there from bind() on and takes connections from listen() on, and kubelet-volnetd tells of it in between. So long
/// the first question is asked again without a word; upstream dials for ten seconds before it gives up.
const LISTENS: Duration = Duration::from_millis(500);
/// Pauses meanwhile.
const LISTENS_RETRY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));

/// What takes plugins of each kind, by the kind's name. One that has none is refused as upstream refuses a kind it does not know.
pub type Handlers = BTreeMap<&'static str, Box<dyn Handler>>;

/// Kinds of plugins by their names in GetInfo.
pub const CSI: &str = "CSIPlugin";
pub const DRA: &str = "DRAPlugin";
pub const DEVICE: &str = "DevicePlugin";

/// What every attendant uses.
pub struct Attendant {
    dial: Arc<dyn Dial>,
    table: PluginTable,
    handlers: Handlers,
    /// `plugins_registry`, absolute.
    folder: PathBuf,
}

impl std::fmt::Debug for Attendant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attendant").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// A kind of plugins.
#[tonic::async_trait]
pub trait Handler: Send + Sync {
    /// Whether it may be registered.
    fn validate(&self, info: &PluginInfo) -> Result<(), String>;
    /// Registers it. Dropped before it ends, [`Handler::deregister`] follows.
    async fn register(&self, socket: &str, info: &PluginInfo) -> Result<(), String>;
    /// Takes it back.
    fn deregister(&self, socket: &str, info: &PluginInfo);
}

#[tonic::async_trait]
impl<C: CsiNode> Handler for CsiHandler<C> {
    fn validate(&self, info: &PluginInfo) -> Result<(), String> {
        CsiHandler::validate(self, info)
    }

    async fn register(&self, socket: &str, info: &PluginInfo) -> Result<(), String> {
        CsiHandler::register(self, socket, info).await
    }

    fn deregister(&self, socket: &str, info: &PluginInfo) {
        CsiHandler::deregister(self, socket, &info.name);
    }
}

#[tonic::async_trait]
impl Handler for Arc<DevicePlugins> {
    fn validate(&self, info: &PluginInfo) -> Result<(), String> {
        DevicePlugins::validate(self, &info.name, &info.versions)
    }

    async fn register(&self, _: &str, info: &PluginInfo) -> Result<(), String> {
        self.connect(&info.name, &info.endpoint, RegisteredBy::PluginsRegistry).await
    }

    fn deregister(&self, _: &str, info: &PluginInfo) {
        DevicePlugins::deregister(self, &info.name, &info.endpoint);
    }
}

/// Why a plugin is not registered.
struct Refused {
    why: String,
    /// The plugin was told, or is none: nothing is open.
    settled: bool,
}

impl Attendant {
    pub fn new(dial: Arc<dyn Dial>, table: PluginTable, handlers: Handlers, folder: PathBuf) -> Self {
        Attendant { dial, table, handlers, folder }
    }

    /// Sees to one socket until `stop`.
    pub async fn attend(&self, socket: &str, stop: CancellationToken) {
        let mut retry = BackOff::new(RETRY.0, RETRY.1);
        let mut registered = None;
        let mut patience = LISTENS;
        loop {
            let outcome = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                outcome = self.register(socket, patience, &mut registered) => outcome,
            };
            patience = Duration::ZERO;
            match outcome {
                Ok(info) => {
                    tracing::info!(socket, name = info.name, endpoint = info.endpoint, "plugin registered");
                    self.table.stage(socket, Stage::Registered, true);
                    stop.cancelled().await;
                    break;
                }
                Err(Refused { why, settled }) => {
                    registered = None;
                    tracing::warn!(socket, "{why}");
                    self.table.stage(socket, Stage::Failed(why), settled);
                }
            }
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(retry.pause()) => {}
            }
        }
        if let Some(info) = registered {
            tracing::info!(socket, name = info.name, "DeRegisterPlugin");
            if let Some(handler) = self.handlers.get(info.kind.as_str()) {
                handler.deregister(socket, &info);
            }
        }
    }

    /// `patience`: how long one that is not reached is asked again. `begun` is set once there is something to be taken back.
    async fn register(
        &self,
        socket: &str,
        patience: Duration,
        begun: &mut Option<PluginInfo>,
    ) -> Result<PluginInfo, Refused> {
        let registration = Registration::new(self.dial.clone(), socket);
        let path = self.folder.join(socket).display().to_string();
        let asked = ask(&registration, patience).await;
        let (info, dialect) = asked.map_err(|error| Refused {
            why: format!(
                "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {path}, err: {error}"
            ),
            // A driver's own socket that lies here, say: it is no plugin, and nobody waits for what it would be.
            settled: error.code() == Some(Code::Unimplemented),
        })?;
        let info = match info.checked(&path) {
            Ok(info) => info,
            Err(error) => {
                let why = format!("RegisterPlugin error -- plugin validation failed with err: {error}");
                return Err(refuse(&registration, dialect, why).await);
            }
        };
        self.table.identified(socket, &info);
        let Some(handler) = self.handlers.get(info.kind.as_str()) else {
            let kind = &info.kind;
            let why = format!("RegisterPlugin error -- no handler registered for plugin type: {kind} at socket {path}");
            return Err(refuse(&registration, dialect, why).await);
        };
        if let Err(error) = handler.validate(&info) {
            let why = format!("RegisterPlugin error -- plugin validation failed with err: {error}");
            return Err(refuse(&registration, dialect, why).await);
        }
        *begun = Some(info.clone());
        if let Err(error) = handler.register(socket, &info).await {
            let why = format!("RegisterPlugin error -- plugin registration failed with err: {error}");
            return Err(refuse(&registration, dialect, why).await);
        }
        if let Err(error) = registration.notify(dialect, Ok(())).await {
            // As upstream since 1.36: who does not know that it is registered is not, and is asked again.
            handler.deregister(socket, &info);
            let why =
                format!("RegisterPlugin error -- failed to send registration status at socket {path}, err: {error}");
            // It is nothing to the node now, and nobody waits for what it would be.
            return Err(Refused { why, settled: true });
        }
        Ok(info)
    }
}

async fn ask(registration: &Registration, patience: Duration) -> Result<(PluginInfo, Dialect), CsiError> {
    let until = Instant::now() + patience;
    let mut retry = BackOff::new(LISTENS_RETRY.0, LISTENS_RETRY.1);
    loop {
        match registration.get_info().await {
            Err(error) if error.code() == Some(Code::Unavailable) && Instant::now() < until => {
                tokio::time::sleep(retry.pause()).await;
            }
            answer => return answer,
        }
    }
}

async fn refuse(registration: &Registration, dialect: Dialect, why: String) -> Refused {
    if let Err(error) = registration.notify(dialect, Err(&why)).await {
        tracing::warn!("RegisterPlugin error -- failed to send error, err: {error}");
    }
    Refused { why, settled: true }
}
