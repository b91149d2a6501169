//! The plugin manager (upstream `pkg/kubelet/pluginmanager`): every socket below `plugins_registry` is a plugin, which is asked what
//! it is, registered, and told so.
//!
//! Each socket has an attendant, a task of its own, so one that hangs or lies holds back nobody else. A module uses only those
//! above it in this table.
//!
//! | module | decides |
//! |---|---|
//! | [`wanted`] | which attendants begin and end |
//! | [`info`] | which answer to GetInfo is one |
//! | [`table`] | nothing: what is known of each plugin, for others to see |
//! | [`registration`] | nothing: the questions to a registration socket |
//! | [`csi`] | which CSI drivers are registered, and as what |
//! | [`dra`] | which DRA drivers are registered |
//! | [`allocatable`] | when a driver is asked anew for its limit |
//! | [`attendant`] | when a plugin is asked again |
//! | [`sockets`] | nothing: the sockets as kubelet-volnetd tells them |
//! | [`metrics`] | nothing: what is counted |

pub mod allocatable;
pub mod attendant;
pub mod csi;
pub mod dra;
pub mod info;
pub mod metrics;
pub mod registration;
pub mod sockets;
pub mod table;
pub mod wanted;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use table::PluginTable;

use attendant::Attendant;
use sockets::SocketFeed;
use wanted::{Action, Wanted};

/// Begins and ends attendants as sockets come and go. Never ends.
pub async fn run(mut feed: impl SocketFeed, attendant: Arc<Attendant>, table: PluginTable) {
    let mut wanted = Wanted::default();
    let mut running: BTreeMap<String, (CancellationToken, JoinHandle<()>)> = BTreeMap::new();
    loop {
        let event = feed.next().await;
        for action in wanted.take(event) {
            match action {
                Action::Begin { socket } => {
                    let before = running.remove(&socket).map(|(_, task)| task);
                    let stop = CancellationToken::new();
                    let (attendant, its_stop, name) = (attendant.clone(), stop.clone(), socket.clone());
                    // Known from here on, so that nobody takes the list for complete before it has been asked.
                    table.begin(&socket);
                    let task = tokio::spawn(async move {
                        // The one before it has to be deregistered first.
                        if let Some(before) = before {
                            let _ = before.await;
                        }
                        attendant.attend(&name, its_stop).await;
                    });
                    running.insert(socket, (stop, task));
                }
                Action::End { socket } => {
                    if let Some((stop, _)) = running.get(&socket) {
                        stop.cancel();
                    }
                    table.end(&socket);
                }
                Action::Listed => table.listed(),
            }
        }
        running.retain(|_, (_, task)| !task.is_finished());
    }
}

#[cfg(test)]
mod tests;
