//! kubelet-syncd, which has the one queue of events.

use std::future::Future;
use std::time::Duration;

use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::client::Link;
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::syncd::ReportOomRequest;
use bulkhead_ipc::syncd::ooms_client::OomsClient;
use tonic::Status;

use super::ledger::Told;
use crate::ask_syncd::in_time;

const DEADLINE: Duration = Duration::from_secs(5);

/// Who is told of kills; the tests have their own.
pub trait Listener: Send + Sync {
    /// Waits until somebody is there.
    fn ready(&self) -> impl Future<Output = ()> + Send;
    /// # Errors
    /// It was not taken, or nobody knows.
    fn tell(&self, boot_id: &str, kill: &Told) -> impl Future<Output = Result<(), Status>> + Send;
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Syncd {
    link: Link,
}

impl Syncd {
    pub fn new(link: Link) -> Self {
        Syncd { link }
    }
}

impl Listener for Syncd {
    async fn ready(&self) {
        self.link.ready().await;
    }

    async fn tell(&self, boot_id: &str, kill: &Told) -> Result<(), Status> {
        let Told { sequence, process, pid } = kill.clone();
        let request = ReportOomRequest { boot_id: boot_id.to_owned(), sequence, process, pid };
        let mut client = OomsClient::new(self.link.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        in_time(DEADLINE, client.report(CallContext::new().request(request, DEADLINE))).await.map(drop)
    }
}
