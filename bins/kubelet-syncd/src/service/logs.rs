//! `kubelet.syncd.v1.Logs`: which logs there are, and what kubelet-evictiond has done with their files.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use bulkhead_cri::{CriClient, CriError, v1};
use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::syncd as api;
use bulkhead_ipc::syncd::logs_server::Logs;
use bulkhead_ipc::syncd::rotated_file::Form;
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_ipc::volnetd::{
    ContainerLog, LogForm, RemoveRotatedLogsRequest, RestoreContainerLogRequest, RotateContainerLogRequest,
    RotatedLogFile,
};
use kubelet_edges::volnetd::{Volnetd, VolnetdError};
use parking_lot::Mutex;
use tonic::{Code, Request, Response, Status};

use super::api::Answer;
use super::late::Late;
use crate::hub::PodHub;
use crate::logs::place::{self, Place, SparedLogs};
use crate::logs::rotate::{self, LogEdges, LogError};

/// What answers, once it is there.
#[derive(Debug)]
pub struct Parts {
    pub hub: Arc<PodHub>,
    pub spared: Arc<SparedLogs>,
    pub volnetd: Volnetd,
    pub broker: BrokerClient,
    pub cri: CriClient,
}

/// See the module. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct LogsApi {
    parts: Late<Parts>,
    turns: Arc<Turns>,
    /// Of lists: the same list has the same one within this life, whose random numbers nobody outside knows.
    versions: std::hash::RandomState,
}

/// One thing at a time is done with a log.
#[derive(Debug, Default)]
struct Turns {
    logs: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl Turns {
    fn of(&self, container_id: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut logs = self.logs.lock();
        logs.retain(|_, turn| Arc::strong_count(turn) > 1);
        logs.entry(container_id.to_owned()).or_default().clone()
    }
}

impl LogsApi {
    /// From here on calls are answered.
    pub fn set(&self, parts: Parts) {
        self.parts.set(parts);
    }

    /// What answers, once every source has delivered: before that a container may be anybody's.
    fn parts(&self) -> Result<&Parts, Status> {
        let parts = self.parts.get()?;
        if parts.volnetd.authority().sources_ready() {
            Ok(parts)
        } else {
            Err(Status::unavailable("not all pod sources have synced yet"))
        }
    }

    /// Finds the log that is meant and works on it in its turn. What is begun is finished, whoever goes away meanwhile.
    async fn work<T, F>(
        &self,
        log: Option<api::ContainerOfLog>,
        wanted: impl Fn(&Place) -> Result<(), Status>,
        work: impl FnOnce(LogOfContainer) -> F,
    ) -> Result<Response<T>, Status>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, LogError>> + Send + 'static,
    {
        let parts = self.parts()?;
        let named = log.ok_or_else(|| Status::invalid_argument("log is missing"))?;
        let place = place::find(&parts.hub, &parts.spared, &named.pod_uid, &named.container_id);
        let place = place.ok_or_else(|| Status::not_found(format!("no log of container {:?}", named.container_id)))?;
        wanted(&place)?;
        let turn = self.turns.of(&place.container_id).lock_owned().await;
        let (volnetd, broker, cri) = (parts.volnetd.clone(), parts.broker.clone(), parts.cri.clone());
        let work = work(LogOfContainer { place, volnetd, broker, cri });
        let task = tokio::spawn(async move {
            let _turn = turn;
            work.await
        });
        let done = task.await.map_err(|error| Status::internal(error.to_string()))?;
        Ok(Response::new(done.map_err(|error| status(&error))?))
    }
}

fn status(error: &LogError) -> Status {
    let code = match error {
        LogError::Files(VolnetdError::Away { .. } | VolnetdError::NotYet { .. }) => Code::Unavailable,
        // The guard has become stale on its way, or the files are not any more what they were.
        LogError::Files(VolnetdError::Refused { source, .. }) => source.code(),
        LogError::Reopen(error) if error.is_unknown_outcome() => Code::Unavailable,
        LogError::Reopen(_) => Code::Internal,
    };
    Status::new(code, error.to_string())
}

fn running(place: &Place) -> Result<(), Status> {
    if place.running { Ok(()) } else { Err(Status::failed_precondition("the container has ended")) }
}

fn ended(place: &Place) -> Result<(), Status> {
    if place.running { Err(Status::failed_precondition("the container runs")) } else { Ok(()) }
}

/// One log, and who works on it.
struct LogOfContainer {
    place: Place,
    volnetd: Volnetd,
    broker: BrokerClient,
    cri: CriClient,
}

impl LogOfContainer {
    fn context(&self) -> CallContext {
        match bulkhead_types::PodUid::parse(&self.place.pod.uid) {
            Ok(uid) => CallContext::for_pod(&uid),
            Err(_) => CallContext::new(),
        }
    }

    async fn remove(&self, files: Vec<RotatedLogFile>) -> Result<(), VolnetdError> {
        let request = RemoveRotatedLogsRequest {
            pod: Some(self.place.pod.clone()),
            container: self.place.container.clone(),
            restart_count: self.place.number,
            files,
            guard: Some(self.volnetd.guard("remove_rotated_logs")?),
        };
        self.volnetd.remove_rotated_logs(&self.context(), request).await.map(|_| ())
    }
}

impl LogEdges for LogOfContainer {
    async fn rename(&self) -> Result<String, VolnetdError> {
        let request = RotateContainerLogRequest {
            pod: Some(self.place.pod.clone()),
            container: self.place.container.clone(),
            restart_count: self.place.number,
            guard: Some(self.volnetd.guard("rotate_container_log")?),
        };
        Ok(self.volnetd.rotate_container_log(&self.context(), request).await?.stamp)
    }

    async fn rename_back(&self, stamp: &str) -> Result<bool, VolnetdError> {
        let request = RestoreContainerLogRequest {
            pod: Some(self.place.pod.clone()),
            container: self.place.container.clone(),
            restart_count: self.place.number,
            stamp: stamp.to_owned(),
            guard: Some(self.volnetd.guard("restore_container_log")?),
        };
        Ok(self.volnetd.restore_container_log(&self.context(), request).await?.restored)
    }

    async fn is_there(&self) -> Result<bool, VolnetdError> {
        let log = ContainerLog {
            pod: Some(self.place.pod.clone()),
            container: self.place.container.clone(),
            restart_count: self.place.number,
        };
        match self.broker.open(Kind::ContainerLog(log)).await {
            Ok(_) => Ok(true),
            Err(error) if error.code() == Code::NotFound => Ok(false),
            Err(error) => {
                let source = Status::new(error.code(), error.to_string());
                Err(VolnetdError::Away { verb: "open", source })
            }
        }
    }

    async fn reopen(&self) -> Result<(), CriError> {
        let request = v1::ReopenContainerLogRequest { container_id: self.place.container_id.clone() };
        self.cri.reopen_container_log(request).await.map(|_| ())
    }
}

/// What a caller is sent who has the list of that version: a node's logs seldom change from one look to the next.
fn answer(pages: Vec<Vec<api::ContainerLogPlace>>, versions: &impl BuildHasher, known: &str) -> Vec<api::LogPage> {
    let version = format!("{:016x}", versions.hash_one(&pages));
    if !pages.is_empty() && version == known {
        return vec![api::LogPage { logs: Vec::new(), version, unchanged: true }];
    }
    let page = |logs| api::LogPage { logs, version: version.clone(), unchanged: false };
    pages.into_iter().map(page).collect()
}

fn removal(file: &api::RotatedFile) -> RotatedLogFile {
    let form = match file.form() {
        Form::Unspecified => LogForm::Unspecified,
        Form::Plain => LogForm::Plain,
        Form::Compressed => LogForm::Compressed,
        Form::Unfinished => LogForm::Unfinished,
    };
    RotatedLogFile { stamp: file.stamp.clone(), form: form.into(), is_double: file.is_double }
}

#[tonic::async_trait]
impl Logs for LogsApi {
    type ListStream = Answer<api::LogPage>;

    async fn list(&self, request: Request<api::ListLogsRequest>) -> Result<Response<Self::ListStream>, Status> {
        let parts = self.parts()?;
        let pages = place::pages(&parts.hub, &parts.spared);
        let pages = answer(pages, &self.versions, &request.into_inner().known).into_iter().map(Ok);
        Ok(Response::new(Box::pin(futures_util::stream::iter(pages.collect::<Vec<_>>()))))
    }

    async fn rotate_log(
        &self,
        request: Request<api::RotateLogRequest>,
    ) -> Result<Response<api::RotateLogReply>, Status> {
        self.work(request.into_inner().log, running, |log| async move {
            let stamp = rotate::rotate(&log).await?;
            Ok(api::RotateLogReply { stamp })
        })
        .await
    }

    async fn reopen_log(
        &self,
        request: Request<api::ReopenLogRequest>,
    ) -> Result<Response<api::ReopenLogReply>, Status> {
        self.work(request.into_inner().log, running, |log| async move {
            rotate::reopen_missing(&log).await?;
            Ok(api::ReopenLogReply {})
        })
        .await
    }

    async fn restore_log(
        &self,
        request: Request<api::RestoreLogRequest>,
    ) -> Result<Response<api::RestoreLogReply>, Status> {
        let api::RestoreLogRequest { log, stamp } = request.into_inner();
        self.work(log, ended, |log| async move {
            // That a current one is there is as good.
            log.rename_back(&stamp).await?;
            Ok(api::RestoreLogReply {})
        })
        .await
    }

    async fn remove_rotated(
        &self,
        request: Request<api::RemoveRotatedRequest>,
    ) -> Result<Response<api::RemoveRotatedReply>, Status> {
        let request = request.into_inner();
        let files = request.files.iter().map(removal).collect();
        self.work(
            request.log,
            |_| Ok(()),
            |log| async move {
                log.remove(files).await?;
                Ok(api::RemoveRotatedReply {})
            },
        )
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn before_the_start_nothing_is_known() {
        let log = Some(api::ContainerOfLog { pod_uid: "u".into(), container_id: "c".into() });
        let status = LogsApi::default().rotate_log(Request::new(api::RotateLogRequest { log })).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
    }

    #[test]
    fn a_list_that_the_caller_has_is_not_sent_again() {
        let versions = std::hash::RandomState::new();
        let log =
            |id: &str| api::ContainerLogPlace { container_id: id.to_owned(), running: true, ..Default::default() };
        let list = || vec![vec![log("a"), log("b")], vec![log("c")]];
        let first = answer(list(), &versions, "");
        assert_eq!(first.iter().map(|page| page.logs.clone()).collect::<Vec<_>>(), list());
        let known = &first[1].version;
        let again = answer(list(), &versions, known);
        assert_eq!(again, [api::LogPage { logs: vec![], version: known.clone(), unchanged: true }]);
        let mut other = list();
        other[1][0].running = false;
        assert_eq!(answer(other, &versions, known).len(), 2);
        assert_eq!(answer(list(), &std::hash::RandomState::new(), known).len(), 2, "another life");
        assert!(answer(vec![], &versions, known).is_empty());
    }

    #[test]
    fn one_thing_at_a_time_is_done_with_a_log() {
        let turns = Turns::default();
        let turn = turns.of("a").try_lock_owned().unwrap();
        assert!(turns.of("a").try_lock_owned().is_err() && turns.of("b").try_lock_owned().is_ok());
        drop(turn);
        assert!(turns.of("a").try_lock_owned().is_ok());
        turns.of("c");
        assert_eq!(turns.logs.lock().len(), 1, "what nobody works on is forgotten");
    }

    #[test]
    fn codes_say_what_to_do() {
        let away = VolnetdError::Away { verb: "v", source: Status::unavailable("") };
        let stale = VolnetdError::Refused { verb: "v", source: Status::failed_precondition("stale") };
        let cri = |code| LogError::Reopen(CriError { code, method: "m", message: "not running".into() });
        assert_eq!(status(&LogError::Files(away)).code(), Code::Unavailable);
        assert_eq!(status(&LogError::Files(stale)).code(), Code::FailedPrecondition);
        assert_eq!(status(&cri(Code::DeadlineExceeded)).code(), Code::Unavailable);
        assert_eq!(status(&cri(Code::Unknown)).code(), Code::Internal);
    }
}
