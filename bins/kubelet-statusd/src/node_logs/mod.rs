//! `/logs/`: files below /var/log, and the log query where the configuration turns it on.
//!
//! This process opens none of it: kubelet-volnetd resolves each path below that folder and passes what it has opened, and
//! the journal is read by a process of its own.

mod conditions;
mod files;
mod listing;
mod opened;
mod pieces;
mod query;
mod services;
mod sniff;

use std::sync::Arc;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use serde_json::Value;

use crate::app::App;
use crate::server::answer::{self, Answer};
use opened::NotOpened;
use query::Query;

/// `relative`: what follows `/logs/`, decoded.
pub async fn serve(app: &Arc<App>, relative: &str, request: Request<Incoming>) -> Answer {
    let asked = files::Asked { method: request.method(), headers: request.headers(), query: request.uri().query() };
    let query = match app.config.kubelet.enable_system_log_query {
        Some(true) => Query::parse(asked.query.unwrap_or_default()),
        _ => Ok(None),
    };
    let query = match query {
        Ok(None) => return files::serve(app, relative, &asked).await,
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
    let [file] = query.files.as_slice() else { return services::serve(app, &query, asked.headers).await };
    let found = match opened::lexical(file) {
        None => Err(NotOpened::Outside),
        Some(name) => opened::open(&app.broker, &name).await.map(|_| name),
    };
    match found {
        Ok(name) => files::serve(app, &name, &asked).await,
        Err(why @ (NotOpened::Unavailable | NotOpened::Failed)) => {
            let (status, words) = why.answer();
            answer::text(status, words)
        }
        Err(why) => {
            let value: Value = vec![file.clone()].into();
            not_acceptable(query::invalid("query", &value, &format!("statat {file}: {why}")))
        }
    }
}
