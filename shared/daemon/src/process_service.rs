//! `kubelet.common.v1.Process`, the same in every daemon: Hello, privileges, metrics.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_ipc::common::logging_server::Logging;
use bulkhead_ipc::common::process_server::Process as ProcessApi;
use bulkhead_ipc::common::{
    HelloReply, HelloRequest, MetricsReply, MetricsRequest, PrivilegesReply, PrivilegesRequest, SetVerbosityReply,
    SetVerbosityRequest,
};
use bulkhead_types::{Epoch, Process};
use parking_lot::Mutex;
use tonic::{Request, Response, Status};

use crate::privileges::Applied;

/// Whether the daemon can do its job; `Err` says what it waits for.
pub(crate) type Readiness = Arc<Mutex<Result<(), String>>>;

/// What is done with less than there should be: each subject with its sentence.
pub(crate) type Degraded = Arc<Mutex<BTreeMap<&'static str, String>>>;

#[derive(Debug)]
pub(crate) struct ProcessService {
    pub(crate) process: Process,
    pub(crate) epoch: Epoch,
    pub(crate) readiness: Readiness,
    pub(crate) degraded: Degraded,
    pub(crate) registry: prometheus::Registry,
    pub(crate) probes: prometheus::Registry,
    /// What was put in force at the start.
    pub(crate) privileges: Arc<Applied>,
}

/// `kubelet.common.v1.Logging`.
#[derive(Debug, Default)]
pub(crate) struct LoggingService {
    /// When a change was last told.
    told: Mutex<Option<Instant>>,
}

/// Changes of the verbosity are told once in this time at most: who changes it all the time shall not fill the log by that.
const TOLD_EVERY: Duration = Duration::from_secs(1);

impl LoggingService {
    fn may_tell(&self, now: Instant) -> bool {
        let mut told = self.told.lock();
        let may = told.is_none_or(|last| now.duration_since(last) >= TOLD_EVERY);
        if may {
            *told = Some(now);
        }
        may
    }
}

#[tonic::async_trait]
impl Logging for LoggingService {
    async fn set_verbosity(
        &self,
        request: Request<SetVerbosityRequest>,
    ) -> Result<Response<SetVerbosityReply>, Status> {
        let verbosity = request.into_inner().verbosity;
        let changed = crate::logging::set_verbosity(verbosity);
        if changed.map_err(|error| Status::invalid_argument(error.to_string()))? && self.may_tell(Instant::now()) {
            tracing::info!(verbosity, "log verbosity is changed");
        }
        Ok(Response::new(SetVerbosityReply {}))
    }
}

#[tonic::async_trait]
impl ProcessApi for ProcessService {
    async fn hello(&self, request: Request<HelloRequest>) -> Result<Response<HelloReply>, Status> {
        let caller = request.into_inner();
        tracing::debug!(caller = caller.process, version = caller.version, "hello");
        let not_ready_reason = self.readiness.lock().clone().err().unwrap_or_default();
        Ok(Response::new(HelloReply {
            process: self.process.name().into(),
            version: env!("CARGO_PKG_VERSION").into(),
            epoch: self.epoch.get(),
            ready: not_ready_reason.is_empty(),
            not_ready_reason,
            degraded: self.degraded.lock().values().cloned().collect(),
        }))
    }

    async fn privileges(&self, _: Request<PrivilegesRequest>) -> Result<Response<PrivilegesReply>, Status> {
        let report = bulkhead_sys::process::PrivilegeReport::read()
            .map_err(|error| Status::internal(format!("could not read /proc/self: {error}")))?;
        Ok(Response::new(PrivilegesReply {
            process: self.process.name().into(),
            pid: std::process::id(),
            uid: report.uid,
            gid: report.gid,
            groups: report.groups,
            effective: report.effective,
            permitted: report.permitted,
            bounding: report.bounding,
            ambient: report.ambient,
            no_new_privs: report.no_new_privs,
            dumpable: report.dumpable != Some(false),
            seccomp_mode: report.seccomp_mode,
            landlock: self.privileges.landlock.clone(),
            sockets: report.sockets.unwrap_or_default(),
            warnings: self.privileges.warnings.clone(),
            inheritable: report.inheritable,
            securebits: report.securebits,
            seccomp_filters: report.seccomp_filters,
            core_limit: report.core_limit,
            oom_score_adj: report.oom_score_adj,
            denied: self.privileges.denied.clone(),
            families: self.privileges.families.clone(),
            landlock_left_out: self.privileges.landlock_left_out.clone(),
        }))
    }

    async fn metrics(&self, request: Request<MetricsRequest>) -> Result<Response<MetricsReply>, Status> {
        let text = if request.into_inner().probes {
            crate::metrics::encode_apart(&self.probes)
        } else {
            crate::encode_metrics(&self.registry)
        };
        Ok(Response::new(MetricsReply { text }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_verbosity_out_of_range_is_refused_and_changes_are_logged_at_a_limited_rate() {
        let service = LoggingService::default();
        let ask = |verbosity| service.set_verbosity(Request::new(SetVerbosityRequest { verbosity }));
        let refused = ask(11).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        assert_eq!(refused.message(), "verbosity 11 is above 10, the most there is to say");
        assert!(ask(10).await.is_ok() && ask(0).await.is_ok());
        let service = LoggingService::default();
        let now = Instant::now();
        assert!(service.may_tell(now) && !service.may_tell(now + TOLD_EVERY / 2));
        assert!(service.may_tell(now + TOLD_EVERY));
    }
}
