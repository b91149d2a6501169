//! The questions to kubelet-syncd about logs. Each has a deadline; who does not answer is away, and the next pass asks anew.

use std::time::Duration;

use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::client::Link;
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::syncd::logs_client::LogsClient;
use bulkhead_ipc::syncd::rotated_file::Form;
use bulkhead_ipc::syncd::{
    ContainerLogPlace, ContainerOfLog, ListLogsRequest, RemoveRotatedRequest, ReopenLogRequest, RestoreLogRequest,
    RotateLogRequest, RotatedFile,
};
use bulkhead_types::{LogForm, LogStamp};
use tonic::Status;
use tonic::transport::Channel;

use super::plan::Removal;
use crate::ask_syncd::in_time;

const LIST_DEADLINE: Duration = Duration::from_secs(5);
/// kubelet-syncd asks a runtime that does not answer twice.
const DEADLINE: Duration = Duration::from_secs(30);
/// More than a node can have; the rest of a longer list is cut.
const MAX_LOGS: usize = 20_000;

/// kubelet-syncd, as the rotation of logs needs it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Syncd {
    link: Link,
}

/// All logs, as they were told.
#[derive(Debug, Default)]
pub struct LogList {
    pub logs: Vec<ContainerLogPlace>,
    version: String,
}

/// Which container's log.
pub fn named(log: &ContainerLogPlace) -> ContainerOfLog {
    ContainerOfLog { pod_uid: log.pod_uid.clone(), container_id: log.container_id.clone() }
}

fn wire(removal: &Removal) -> RotatedFile {
    let form = match removal.form {
        LogForm::Plain => Form::Plain,
        LogForm::Compressed => Form::Compressed,
        LogForm::Unfinished => Form::Unfinished,
    };
    RotatedFile { stamp: removal.stamp.to_string(), form: form.into(), is_double: removal.is_double }
}

impl Syncd {
    pub fn new(link: Link) -> Self {
        Syncd { link }
    }

    fn client(&self) -> LogsClient<Channel> {
        LogsClient::new(self.link.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// All logs. `known`: the list that it answered before, which is sent again only where it is another one now.
    pub async fn list(&self, known: &mut LogList) -> Result<(), Status> {
        in_time(LIST_DEADLINE, async {
            let request = ListLogsRequest { known: known.version.clone() };
            let request = CallContext::new().request(request, LIST_DEADLINE);
            let mut stream = self.client().list(request).await?.into_inner();
            let mut list = LogList::default();
            while let Some(page) = stream.message().await? {
                if page.unchanged {
                    return Ok(());
                }
                list.logs.extend(page.logs);
                list.version = page.version;
            }
            if list.logs.len() > MAX_LOGS {
                tracing::warn!(MAX_LOGS, "list of logs is cut");
                list.logs.truncate(MAX_LOGS);
            }
            *known = list;
            Ok(())
        })
        .await
    }

    pub async fn rotate(&self, log: &ContainerLogPlace) -> Result<String, Status> {
        let request = CallContext::new().request(RotateLogRequest { log: Some(named(log)) }, DEADLINE);
        in_time(DEADLINE, async { Ok(self.client().rotate_log(request).await?.into_inner().stamp) }).await
    }

    pub async fn reopen(&self, log: &ContainerLogPlace) -> Result<(), Status> {
        let request = CallContext::new().request(ReopenLogRequest { log: Some(named(log)) }, DEADLINE);
        in_time(DEADLINE, async { self.client().reopen_log(request).await.map(drop) }).await
    }

    pub async fn restore(&self, log: &ContainerLogPlace, stamp: LogStamp) -> Result<(), Status> {
        let request = RestoreLogRequest { log: Some(named(log)), stamp: stamp.to_string() };
        let request = CallContext::new().request(request, DEADLINE);
        in_time(DEADLINE, async { self.client().restore_log(request).await.map(drop) }).await
    }

    pub async fn remove(&self, log: &ContainerLogPlace, removals: &[Removal]) -> Result<(), Status> {
        // As many as one request takes; the next pass has the rest.
        let files = removals.iter().take(1000).map(wire).collect();
        let request = RemoveRotatedRequest { log: Some(named(log)), files };
        let request = CallContext::new().request(request, DEADLINE);
        in_time(DEADLINE, async { self.client().remove_rotated(request).await.map(drop) }).await
    }
}
