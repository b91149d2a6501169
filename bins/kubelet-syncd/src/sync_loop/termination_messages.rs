//! Termination messages of containers that have ended: read once through the broker, kept while the runtime knows the
//! container. The file lies where only root may look, and a container wrote it: regular files only, and a bounded tail.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::Path;

use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_ipc::volnetd::{ContainerLog, PodLogId, TerminationMessage};
use bulkhead_types::{ContainerId, PodUid};
use parking_lot::Mutex;
use tonic::Code;

use kubelet_model::pod::model::{ContainerStatus, RunState, RuntimePod};
use kubelet_runtime::status::termination::{FILE_BYTES_MAX, LOG_READ_MAX, falls_back_to_log, log_tail, tail};

/// Messages by container.
#[derive(Debug)]
pub struct TerminationMessages {
    broker: BrokerClient,
    known: Mutex<HashMap<ContainerId, String>>,
}

impl TerminationMessages {
    pub fn new(broker: BrokerClient) -> Self {
        TerminationMessages { broker, known: Mutex::default() }
    }

    /// What is known of the pod's containers.
    pub fn of(&self, pod: &RuntimePod) -> BTreeMap<ContainerId, String> {
        let known = self.known.lock();
        pod.containers.iter().filter_map(|c| Some((c.id.clone(), known.get(&c.id)?.clone()))).collect()
    }

    fn unread<'a>(&self, pod: &'a RuntimePod) -> Vec<&'a ContainerStatus> {
        let known = self.known.lock();
        pod.containers.iter().filter(|c| c.state == RunState::Exited && !known.contains_key(&c.id)).collect()
    }

    /// Something is still to be read.
    pub fn is_missing(&self, pod: &RuntimePod) -> bool {
        !self.unread(pod).is_empty()
    }

    /// Reads what is missing. A broker that is away is asked again next time.
    pub async fn learn(&self, uid: &PodUid, pod: &RuntimePod) {
        for status in self.unread(pod) {
            let Some(file) = self.file(uid, status).await else { continue };
            let text = match falls_back_to_log(status, &file) {
                true => self.log(uid, pod, status).await,
                false => Some(file),
            };
            let Some(text) = text else { continue };
            self.known.lock().insert(status.id.clone(), text);
        }
    }

    /// What the container wrote; a file that cannot be read says so itself, as upstream's does. None: not now.
    async fn file(&self, uid: &PodUid, status: &ContainerStatus) -> Option<String> {
        let path = status.termination_message_host_path.as_deref().map(Path::new);
        let Some((path, suffix)) = path.and_then(|path| Some((path, path.file_name()?.to_str()?))) else {
            return Some(String::new());
        };
        let unreadable =
            |error: &dyn std::fmt::Display| format!("Error on reading termination log {}: {error}", path.display());
        let request =
            TerminationMessage { pod_uid: uid.to_string(), container: status.name.clone(), suffix: suffix.to_owned() };
        match self.broker.open(Kind::TerminationMessage(request)).await {
            Ok(fd) => Some(match read_end(fd, FILE_BYTES_MAX) {
                Ok((text, _)) => tail(&text, FILE_BYTES_MAX).to_owned(),
                Err(error) => unreadable(&error),
            }),
            Err(error) => {
                let cause = &error as &dyn std::error::Error;
                tracing::debug!(container = status.name, error = cause, "no termination message");
                match error.code() {
                    Code::Unavailable => None,
                    // Gone; or something else is mounted there, and a file of ours there is none.
                    Code::NotFound | Code::InvalidArgument => Some(String::new()),
                    _ => Some(unreadable(&error)),
                }
            }
        }
    }

    /// The end of what the container said. None: not now.
    async fn log(&self, uid: &PodUid, pod: &RuntimePod, status: &ContainerStatus) -> Option<String> {
        let request = ContainerLog {
            pod: Some(PodLogId { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: uid.to_string() }),
            container: status.name.clone(),
            restart_count: status.restart_count,
        };
        match self.broker.open(Kind::ContainerLog(request)).await {
            Ok(fd) => Some(match read_end(fd, LOG_READ_MAX) {
                Ok((log, is_whole)) => log_tail(&log, is_whole),
                Err(error) => format!("Error on reading termination message from logs: {error}"),
            }),
            Err(error) => {
                tracing::debug!(
                    container = status.name,
                    error = &error as &dyn std::error::Error,
                    "log cannot be read"
                );
                (error.code() != Code::Unavailable).then(String::new)
            }
        }
    }

    /// Keeps what belongs to containers that still exist.
    pub fn retain(&self, exist: &HashSet<ContainerId>) {
        self.known.lock().retain(|id, _| exist.contains(id));
    }
}

/// The last bytes of a file as text, and whether they are all of it; what is no UTF-8 is replaced.
fn read_end(fd: OwnedFd, max: usize) -> std::io::Result<(String, bool)> {
    let mut file = std::fs::File::from(fd);
    let length = file.metadata()?.len();
    let max = u64::try_from(max).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(length.saturating_sub(max)))?;
    file.take(max).read_to_end(&mut bytes)?;
    Ok((String::from_utf8_lossy(&bytes).into_owned(), length <= max))
}

#[cfg(test)]
mod tests {
    use kubelet_model::fixtures::{container_status, uid};

    use super::*;

    /// Its log counts, and kubelet-volnetd is away: the message is not given up for that.
    #[tokio::test]
    async fn a_log_that_cannot_be_asked_for_now_is_asked_for_again() {
        let messages = TerminationMessages::new(BrokerClient::new(Path::new("/nowhere")));
        let mut status = container_status("c", RunState::Exited, 1);
        status.termination_message_host_path = None;
        let mut pod = RuntimePod { containers: vec![status], ..RuntimePod::default() };
        pod.containers[0].termination_message_policy = "FallbackToLogsOnError".to_owned();
        messages.learn(&uid(), &pod).await;
        assert!(messages.is_missing(&pod));
        pod.containers[0].termination_message_policy = "File".to_owned();
        messages.learn(&uid(), &pod).await;
        assert!(!messages.is_missing(&pod));
    }
}
