//! `/containerLogs/{namespace}/{pod}/{container}`: what a container has written (upstream `pkg/kubelet/server/server.go`
//! getContainerLogs and what it leads to).
//!
//! Which instance is shown is decided by what kubelet-syncd says of the pod; names of the request are compared and go
//! nowhere else. The file comes as a descriptor from kubelet-volnetd, named by ids that syncd gave. [`options`],
//! [`instance`], [`line`], [`transcript`] and [`tail`] are pure; [`growth`] and [`lives`] are shared by all followers.

mod follow;
pub mod growth;
pub mod instance;
pub mod line;
pub mod lives;
pub mod options;
mod pods;
mod reading;
mod source;
pub mod stamp;
pub mod tail;
pub mod transcript;

use std::time::{Duration, SystemTime};

use bulkhead_config::{Feature, NodeConfig};
use bulkhead_ipc::broker::BrokerClient;
use bulkhead_ipc::client::Link;
use bulkhead_ipc::syncd::PodState;
use bulkhead_ipc::volnetd::{ContainerLog, PodLogId};
use http::{Request, StatusCode};
use hyper::body::Incoming;
use k8s_openapi::api::core::v1::PodStatus;

use crate::routes::ContainerPath;
use crate::server::answer::{self, Answer};
use follow::Following;
use growth::Growth;
use instance::NoInstance;
use lives::{Life, Lives};
use options::{BadOptions, Options, Since};
use reading::Reading;
use source::{Brokered, NoFile};
use stamp::Moment;
use transcript::{Rules, Transcript};

/// Answers requests for containers' logs.
#[derive(Debug)]
pub struct ContainerLogs {
    syncd: Link,
    broker: BrokerClient,
    /// Gate PodLogsQuerySplitStreams.
    split_streams: bool,
    /// Shared by all followers, as is `lives`.
    growth: Growth,
    lives: Lives,
}

/// Why there is no log. The texts of what upstream knows are upstream's.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Options(#[from] BadOptions),
    #[error("pod {0:?} does not exist")]
    NoPod(String),
    #[error("container {container:?} not found in pod {pod:?}")]
    NoContainer { container: String, pod: String },
    #[error(transparent)]
    Instance(#[from] NoInstance),
    /// The runtime does not have the container any more, or its log is not where logs are.
    #[error("unable to retrieve container logs for {0}")]
    NoLog(String),
    #[error("kubelet-syncd does not say what runs on the node, try again: {0}")]
    NoWord(String),
    #[error("the container's log cannot be opened at the moment, try again: {0}")]
    NoBroker(String),
}

impl Refusal {
    fn status(&self) -> StatusCode {
        match self {
            Refusal::Options(BadOptions::Invalid) => StatusCode::UNPROCESSABLE_ENTITY,
            Refusal::Options(_) | Refusal::Instance(_) | Refusal::NoLog(_) => StatusCode::BAD_REQUEST,
            Refusal::NoPod(_) | Refusal::NoContainer { .. } => StatusCode::NOT_FOUND,
            Refusal::NoWord(_) | Refusal::NoBroker(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl ContainerLogs {
    pub fn new(config: &NodeConfig, syncd: Link, broker: BrokerClient) -> Self {
        ContainerLogs {
            syncd,
            broker,
            split_streams: config.feature_gates().enabled(Feature::PodLogsQuerySplitStreams),
            growth: Growth::default(),
            lives: Lives::default(),
        }
    }

    /// Answers one request.
    pub async fn serve(&self, place: &ContainerPath, request: Request<Incoming>) -> Answer {
        match self.log(place, request.uri().query().unwrap_or_default()).await {
            Ok(answer) => answer,
            Err(refusal) => answer::text(refusal.status(), refusal.to_string()),
        }
    }

    async fn log(&self, place: &ContainerPath, query: &str) -> Result<Answer, Refusal> {
        let options = options::parse(query, self.split_streams)?;
        let syncd = &self.syncd;
        let named = pods::named(syncd, &place.pod.namespace, &place.pod.pod).await;
        let named = named.map_err(|status| Refusal::NoWord(status.message().to_owned()))?;
        let pod = named.ok_or_else(|| Refusal::NoPod(place.pod.pod.clone()))?;
        if !pod.container_names.contains(&place.container) {
            return Err(Refusal::NoContainer { container: place.container.clone(), pod: pod.name });
        }
        let status = status_of(&pod)?;
        let whole_id = instance::choose(&status, &pod.name, &place.container, options.previous)?;
        if pod.instances.is_none() {
            return Err(not_asked_yet());
        }
        let id = whole_id.split_once("://").map_or(whole_id, |(_, id)| id);
        let number = log_number(&pod, &place.container, id).ok_or_else(|| Refusal::NoLog(whole_id.to_owned()))?;
        let source = Brokered {
            broker: self.broker.clone(),
            syncd: syncd.clone(),
            log: ContainerLog {
                pod: Some(PodLogId { namespace: pod.namespace.clone(), name: pod.name.clone(), uid: pod.uid.clone() }),
                container: place.container.clone(),
                restart_count: number,
            },
        };
        let file = source::open_patiently(&source).await.map_err(|error| no_file(&error, whole_id))?;
        let following = if options.follow {
            let life = life_of(&self.lives, syncd, &pod, id).await;
            Some(Following { source, life, growth: self.growth.clone(), name: format!("{number}.log") })
        } else {
            None
        };
        let transcript = Transcript::new(rules(&options, SystemTime::now()));
        let reading = Reading::new(file, transcript, options.tail_lines)
            .map_err(|error| Refusal::NoBroker(bulkhead_types::chain(&error)))?;
        Ok(answer::stream(follow::pieces(reading, following)))
    }
}

/// What kubelet-syncd computed, and until it has what the API server has, as upstream's GetKubeletContainerLogs.
fn status_of(pod: &PodState) -> Result<PodStatus, Refusal> {
    let of_server = pod.api.as_ref().map_or(&[][..], |api| &api.status_json[..]);
    match [&pod.status_json[..], of_server].into_iter().find(|status| !status.is_empty()) {
        Some(status) => Ok(serde_json::from_slice(status).unwrap_or_default()),
        None if pod.instances.is_none() => Err(not_asked_yet()),
        None => Ok(PodStatus::default()),
    }
}

fn not_asked_yet() -> Refusal {
    Refusal::NoWord("it has not asked the runtime about the pod yet".to_owned())
}

fn log_number(pod: &PodState, container: &str, id: &str) -> Option<u32> {
    let known = pod.instances.as_ref()?;
    known.containers.iter().find(|one| one.id == id && one.name == container)?.log_number
}

fn no_file(error: &NoFile, id: &str) -> Refusal {
    match error {
        NoFile::Away(_) => {
            tracing::warn!(error = error as &dyn std::error::Error, "failed to open container log");
            Refusal::NoBroker(bulkhead_types::chain(error))
        }
        NoFile::Missing | NoFile::Refused(_) => {
            tracing::info!(error = error as &dyn std::error::Error, id, "failed to open container log");
            Refusal::NoLog(id.to_owned())
        }
    }
}

/// Whether the instance runs, from now on: an end that was told between the first word and the beginning of following is
/// asked for.
async fn life_of(lives: &Lives, syncd: &Link, pod: &PodState, id: &str) -> tokio::sync::watch::Receiver<Life> {
    let followed = lives.follow(syncd, &pod.uid, id);
    let now = match lives::life(pod, id) {
        Life::Ended => Life::Ended,
        Life::Runs => match pods::get(syncd, "", &pod.uid).await {
            Ok(pod) => lives::life(&pod, id),
            // Gone meanwhile, or nothing is known.
            Err(status) if status.code() == tonic::Code::NotFound => Life::Ended,
            Err(_) => Life::Runs,
        },
    };
    if now == Life::Ended {
        return tokio::sync::watch::channel(Life::Ended).1;
    }
    followed
}

/// The rules of the transcript. Only who does not follow gets a certain number of lines: there are more to come.
fn rules(options: &Options, now: SystemTime) -> Rules {
    Rules {
        since: match options.since {
            Since::Always => None,
            Since::Time(moment) => Some(moment),
            Since::Seconds(seconds) => Some(seconds_ago(now, seconds)),
        },
        timestamps: options.timestamps,
        limit: options.limit_bytes,
        lines: options.tail_lines.filter(|_| !options.follow),
        streams: options.streams,
    }
}

fn seconds_ago(now: SystemTime, seconds: i64) -> Moment {
    let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let now = i64::try_from(since_1970.as_secs()).unwrap_or(i64::MAX);
    (now.saturating_sub(seconds), since_1970.subsec_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_ipc::syncd::{ApiObject, ContainerInstance, Instances};

    #[test]
    fn a_log_is_found_by_what_the_runtime_has() {
        let one = |name: &str, id: &str, log_number| ContainerInstance {
            name: name.to_owned(),
            id: id.to_owned(),
            log_number,
            running: false,
        };
        let containers = vec![one("c", "a", Some(0)), one("c", "b", Some(7)), one("d", "x", None)];
        let pod = PodState { instances: Some(Instances { containers }), ..PodState::default() };
        assert_eq!(log_number(&pod, "c", "a"), Some(0));
        assert_eq!(log_number(&pod, "c", "b"), Some(7));
        assert_eq!(log_number(&pod, "d", "a"), None, "another container's");
        assert_eq!(log_number(&pod, "d", "x"), None, "its log is elsewhere");
        assert_eq!(log_number(&PodState::default(), "c", "a"), None);
    }

    #[test]
    fn until_a_status_is_computed_the_api_server_s_counts() {
        let json = |phase: &str| format!(r#"{{"phase":"{phase}"}}"#).into_bytes();
        let api = |status_json| Some(ApiObject { status_json, ..ApiObject::default() });
        let instances = Some(Instances::default());
        for (pod, expected) in [
            (PodState { status_json: json("Running"), api: api(json("Pending")), ..PodState::default() }, "Running"),
            (PodState { api: api(json("Pending")), ..PodState::default() }, "Pending"),
            (PodState { instances: instances.clone(), ..PodState::default() }, ""),
            (PodState { api: api(Vec::new()), instances, ..PodState::default() }, ""),
        ] {
            assert_eq!(status_of(&pod).unwrap().phase.unwrap_or_default(), expected);
        }
        let refusal = status_of(&PodState::default()).unwrap_err();
        assert_eq!(refusal.status(), StatusCode::SERVICE_UNAVAILABLE);
    }

    #[test]
    fn the_rules_of_a_request() {
        let now = SystemTime::UNIX_EPOCH + Duration::new(1000, 5);
        let rules = |query: &str| super::rules(&options::parse(query, true).unwrap(), now);
        assert_eq!(rules("sinceSeconds=10").since, Some((990, 5)));
        assert_eq!(rules("sinceSeconds=9223372036854775807").since, Some((1000 - i64::MAX, 5)));
        assert_eq!(rules("tailLines=3").lines, Some(3));
        assert_eq!(rules("tailLines=3&follow=1").lines, None);
        assert_eq!(rules("").since, None);
    }

    #[test]
    fn statuses() {
        for (refusal, status, text) in [
            (Refusal::Options(BadOptions::Undecodable), 400, r#"{"message": "Unable to decode query."}"#),
            (Refusal::Options(BadOptions::Invalid), 422, r#"{"message": "Invalid request."}"#),
            (Refusal::NoPod("p".into()), 404, r#"pod "p" does not exist"#),
            (
                Refusal::NoContainer { container: "c".into(), pod: "p".into() },
                404,
                r#"container "c" not found in pod "p""#,
            ),
            (Refusal::NoLog("containerd://x".into()), 400, "unable to retrieve container logs for containerd://x"),
        ] {
            assert_eq!((refusal.status().as_u16(), refusal.to_string().as_str()), (status, text));
        }
    }
}
