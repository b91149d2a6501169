//! `/logs/`: files below /var/log, and the log query where the configuration turns it on.
//!
//! This process opens none of it: kubelet-volnetd resolves each path below that folder and passes what it has opened, and
//! the journal is read by a process of its own.

mod conditions;
mod files;
mod listing;
mod opened;
mod pattern;
mod pieces;
mod query;
mod services;
mod sniff;

use bulkhead_config::NodeConfig;
use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::helper::Asker;
use http::{Request, StatusCode};
use hyper::body::Incoming;
use serde_json::Value;

use crate::server::answer::{self, Answer};
use opened::NotOpened;
use query::Query;

/// Answers requests for the node's logs.
#[derive(Debug)]
pub struct NodeLogs {
    broker: BrokerClient,
    journal: Asker,
    /// `enableSystemLogQuery`.
    queries: bool,
}

impl NodeLogs {
    pub fn new(config: &NodeConfig, broker: BrokerClient, journal: Asker) -> Self {
        NodeLogs { broker, journal, queries: config.kubelet.enable_system_log_query() }
    }

    /// Answers one request. `relative`: what follows `/logs/`, decoded.
    pub async fn serve(&self, relative: &str, request: Request<Incoming>) -> Answer {
        let asked =
            files::FileRequest { method: request.method(), headers: request.headers(), query: request.uri().query() };
        let query = if self.queries { Query::parse(asked.query.unwrap_or_default()) } else { Ok(None) };
        let query = match query {
            Ok(None) => return files::serve(&self.broker, relative, &asked).await,
            Ok(Some(query)) => query,
            Err(refused) => return answer::text(StatusCode::BAD_REQUEST, format!("{refused}\n")),
        };
        let not_acceptable = |words: String| answer::text(StatusCode::NOT_ACCEPTABLE, format!("{words}\n"));
        if !relative.is_empty() {
            return not_acceptable("path not allowed in query mode".to_owned());
        }
        if let Err(refused) = query.validate() {
            return not_acceptable(refused.to_string());
        }
        let [file] = query.files.as_slice() else {
            return services::serve(&self.broker, &self.journal, &query, asked.headers).await;
        };
        let found = match opened::lexical(file) {
            None => Err(NotOpened::Outside),
            Some(name) => opened::open(&self.broker, &name).await.map(|_| name),
        };
        match found {
            Ok(name) => files::serve(&self.broker, &name, &asked).await,
            Err(why @ (NotOpened::Unavailable(_) | NotOpened::Failed(_))) => {
                let (status, words) = why.answer();
                answer::text(status, words)
            }
            Err(why) => {
                let value: Value = vec![file.clone()].into();
                not_acceptable(query::invalid("query", &value, &format!("statat {file}: {why}")))
            }
        }
    }
}
