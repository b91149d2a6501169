//! `kubelet.volnetd.v1.Audit`.

use std::pin::Pin;
use std::sync::Arc;

use bulkhead_ipc::volnetd::audit_server::Audit;
use bulkhead_ipc::volnetd::{AuditRecord, ReadAuditRequest};
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};

use crate::audit::{Filter, Record};
use crate::node::Node;
use crate::validate;

#[derive(Debug, Clone)]
pub struct AuditService {
    pub node: Arc<Node>,
}

#[tonic::async_trait]
impl Audit for AuditService {
    type ReadStream = Pin<Box<dyn Stream<Item = Result<AuditRecord, Status>> + Send>>;

    async fn read(&self, request: Request<ReadAuditRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let request = request.into_inner();
        let pod = (!request.pod_uid.is_empty()).then(|| validate::pod_uid(&request.pod_uid)).transpose()?;
        let filter = Filter {
            newest: (request.newest != 0).then_some(request.newest as usize),
            pod_uid: pod.map(|uid| uid.to_string()),
            verb: (!request.verb.is_empty()).then_some(request.verb),
            failed: request.failed,
        };
        let (log, wanted) = (self.node.audit.clone(), filter.clone());
        let read = tokio::task::spawn_blocking(move || log.read(&wanted)).await;
        let (kept, live) = read
            .map_err(|error| Status::internal(format!("the read ended unexpectedly: {error}")))?
            .map_err(|error| Status::unavailable(error.to_string()))?;
        let kept = tokio_stream::iter(kept.into_iter().map(|record| Ok(wire(&record))));
        if !request.follow {
            return Ok(Response::new(Box::pin(kept)));
        }
        let live = BroadcastStream::new(live).filter_map(move |record| match record {
            Ok(record) => filter.takes(&record).then(|| Ok(wire(&record))),
            Err(BroadcastStreamRecvError::Lagged(missed)) => Some(Err(Status::data_loss(format!(
                "{missed} records came faster than they were read; all that are kept can be read again"
            )))),
        });
        Ok(Response::new(Box::pin(kept.chain(live))))
    }
}

fn wire(record: &Record) -> AuditRecord {
    let Record { sequence, seconds, dropped_before, .. } = *record;
    let Record { time, peer, verb, pod_uid, object, target, code, message, request_id, .. } = record.clone();
    AuditRecord {
        sequence,
        time,
        peer,
        verb,
        pod_uid,
        object,
        target,
        code,
        message,
        seconds,
        request_id,
        dropped_before,
    }
}
