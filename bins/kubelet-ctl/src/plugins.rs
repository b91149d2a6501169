//! `plugins`: every plugin that has a socket in plugins_registry, and what came of its registration.

use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::syncd::storage_client::StorageClient;
use bulkhead_ipc::syncd::{ListPluginsRequest, Plugin as Wire};
use bulkhead_types::Process;
use serde::Serialize;

use crate::age::since;
use crate::connect::{connect, request, within};
use crate::instance::Instance;
use crate::output::Printer;
use crate::table::Table;
use crate::{Exit, Failure};

/// More than a node can have; what comes after them is not shown.
const MAX_PLUGINS: usize = 2000;

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Plugin {
    name: String,
    r#type: String,
    state: String,
    since: String,
    /// Relative to plugins_registry.
    socket: String,
    endpoint: String,
    versions: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    why: String,
}

/// `plugins`.
pub(crate) async fn show(instance: &Instance, printer: &mut Printer<'_>) -> Result<Exit, Failure> {
    let connected = connect(instance, Process::Syncd).await?;
    let mut client = StorageClient::new(connected.channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let call = async {
        let mut stream = client.list_plugins(request(ListPluginsRequest {})).await?.into_inner();
        let mut plugins = Vec::new();
        while let Some(plugin) = stream.message().await? {
            if plugins.len() < MAX_PLUGINS {
                plugins.push(view(plugin));
            }
        }
        Ok(plugins)
    };
    let plugins = within(Process::Syncd, instance, call).await?;
    let now = jiff::Timestamp::now();
    printer.print(&plugins, || text(&plugins, now))?;
    Ok(Exit::Success)
}

fn view(plugin: Wire) -> Plugin {
    Plugin {
        name: plugin.name,
        r#type: plugin.r#type,
        state: plugin.state,
        since: plugin.since,
        socket: plugin.socket,
        endpoint: plugin.endpoint,
        versions: plugin.versions,
        why: plugin.error,
    }
}

fn text(plugins: &[Plugin], now: jiff::Timestamp) -> String {
    let mut table = Table::new(&["NAME", "TYPE", "STATE", "SINCE", "VERSIONS", "SOCKET", "ENDPOINT", "WHY"]);
    for plugin in plugins {
        table.row([
            plugin.name.clone(),
            plugin.r#type.clone(),
            plugin.state.clone(),
            since(&plugin.since, now),
            plugin.versions.join(","),
            plugin.socket.clone(),
            plugin.endpoint.clone(),
            plugin.why.clone(),
        ]);
    }
    table.render(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_with_what_came_of_them() {
        let plugin = |name: &str, state: &str, error: &str| {
            view(Wire {
                socket: format!("{name}-reg.sock"),
                r#type: "CSIPlugin".into(),
                name: name.into(),
                endpoint: "/r/csi.sock".into(),
                versions: vec!["1.0.0".into(), "1.1.0".into()],
                state: state.into(),
                error: error.into(),
                since: "2026-11-22T15:20:31Z".into(),
            })
        };
        let plugins = [plugin("a", "registered", ""), plugin("b", "failed", "no\n")];
        let shown = text(&plugins, "2026-11-22T15:21:31Z".parse().unwrap());
        let expected = "\
NAME   TYPE        STATE        SINCE   VERSIONS      SOCKET       ENDPOINT      WHY
a      CSIPlugin   registered   60s     1.0.0,1.1.0   a-reg.sock   /r/csi.sock   -
b      CSIPlugin   failed       60s     1.0.0,1.1.0   b-reg.sock   /r/csi.sock   no\\n
";
        assert_eq!(shown, expected, "{shown}");
        let json = serde_json::to_value(&plugins).unwrap();
        assert_eq!((&json[1]["why"], json[0].get("why")), (&serde_json::json!("no\n"), None));
    }
}
