//! Writes what kubelet-syncd wants written beside the pods (the CSINode's drivers, the status of claims, requests for certificates of
//! pods, ResourceSlices that are to go), and tells it what came of that: `docs/decisions/0065-plugins.md`.
//!
//! The newest wish counts. A server that does not answer is asked again until it does, or until another wish comes; a refusal that
//! concerns one driver leaves all others alone.

use std::collections::BTreeMap;
use std::time::Duration;

use bulkhead_apiclient::random_fraction;
use bulkhead_daemon::progress::{LOOP_BOUND, Progress};
use bulkhead_ipc::client::{Link, is_unknown};
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::syncd::storage_client::StorageClient;
use bulkhead_ipc::syncd::storage_write::Write;
use bulkhead_ipc::syncd::{
    AcknowledgeRequest, ClaimStatus, CsiDrivers, PodCertificateAsk, ResourceSliceWipe, WatchWritesRequest,
};
use bulkhead_types::BackOff;
use jiff::Timestamp;
use tokio::sync::watch;

use super::cadence::jittered;
use super::metrics::Metrics;
use super::server::{RequestError, Server, Written};
use super::{csi_claims, csi_driver_writes, pod_certificates};

/// Pause after a stream has ended, and between tries to write.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));
/// How long the answer to a call may take to begin.
const START: Duration = Duration::from_secs(5);
/// A list of all drivers that kubelet-syncd takes, with the longest labels, bytes.
const MAX_WRITE: usize = 4 << 20;
/// An answer that is not heard is told again so often; after that kubelet-syncd is another one, or told nothing for minutes.
const ANSWERS: usize = 60;
const ANSWER_RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// A wish, by the life of kubelet-syncd and its number there.
#[derive(Debug, Clone, PartialEq)]
struct Wish<T> {
    epoch: String,
    sequence: u64,
    wanted: T,
}

/// By uid, by namespace and name, or by driver.
type Wishes<T> = BTreeMap<String, Wish<T>>;
type Claims = Wishes<ClaimStatus>;
type Certificates = Wishes<PodCertificateAsk>;
type Wipes = Wishes<ResourceSliceWipe>;

/// Writes for ever.
pub async fn run(server: Server, metrics: Metrics, syncd: Link, progress: Progress) {
    let with_heartbeat = |name| server.with_heartbeat(progress.register(name, LOOP_BOUND));
    let (told, drivers) = watch::channel(None);
    let (claims, _) = watch::channel(Claims::new());
    let (certificates, _) = watch::channel(Certificates::new());
    let (wipes, _) = watch::channel(Wipes::new());
    let for_drivers = with_heartbeat("csi drivers");
    let for_claims = with_heartbeat("claims");
    let for_certificates = with_heartbeat("pod certificates");
    let for_wipes = with_heartbeat("resource slices");
    let (claim_server, claim_metrics) = (for_claims.clone(), metrics.clone());
    let certificate_server = for_certificates.clone();
    let wipe_server = for_wipes.clone();
    tokio::join!(
        follow(&syncd, &told, &claims, &certificates, &wipes),
        write_drivers(for_drivers, metrics, &syncd, drivers),
        write_each(for_claims, &syncd, &claims, async |wanted: &ClaimStatus| {
            write_claim(&claim_server, &claim_metrics, wanted).await
        }),
        write_each(for_certificates, &syncd, &certificates, async |wanted: &PodCertificateAsk| {
            pod_certificates::write(&certificate_server, wanted).await
        }),
        write_each(for_wipes, &syncd, &wipes, async |wanted: &ResourceSliceWipe| wipe(&wipe_server, wanted).await)
    );
}

/// Reads wishes; of each object the newest is kept.
async fn follow(
    syncd: &Link,
    drivers: &watch::Sender<Option<Wish<CsiDrivers>>>,
    claims: &watch::Sender<Claims>,
    certificates: &watch::Sender<Certificates>,
    wipes: &watch::Sender<Wipes>,
) {
    let mut retry = BackOff::new(RETRY.0, RETRY.1);
    loop {
        let epoch = syncd.ready().await.to_string();
        // Another life has its own wishes; what was not written of the former one it wishes again, or not.
        claims.send_modify(|all| all.retain(|_, wish| wish.epoch == epoch));
        certificates.send_modify(|all| all.retain(|_, wish| wish.epoch == epoch));
        wipes.send_modify(|all| all.retain(|_, wish| wish.epoch == epoch));
        let mut client = StorageClient::new(syncd.channel()).max_decoding_message_size(MAX_WRITE);
        let request = CallContext::new().streaming_request(WatchWritesRequest {});
        match tokio::time::timeout(START, client.watch_writes(request)).await {
            Ok(Ok(answer)) => {
                let mut stream = answer.into_inner();
                while let Ok(Some(write)) = stream.message().await {
                    retry.reset();
                    let (epoch, sequence) = (write.epoch, write.sequence);
                    match write.write {
                        Some(Write::CsiDrivers(wanted)) => {
                            drivers.send_replace(Some(Wish { epoch, sequence, wanted }));
                        }
                        Some(Write::ClaimStatus(wanted)) => {
                            let uid = wanted.uid.clone();
                            claims.send_modify(|all| {
                                all.insert(uid, Wish { epoch, sequence, wanted });
                            });
                        }
                        Some(Write::PodCertificate(wanted)) => {
                            let key = format!("{}/{}", wanted.namespace, wanted.name);
                            certificates.send_modify(|all| {
                                all.insert(key, Wish { epoch, sequence, wanted });
                            });
                        }
                        Some(Write::ResourceSliceWipe(wanted)) => {
                            wipes.send_modify(|all| {
                                all.insert(wanted.driver.clone(), Wish { epoch, sequence, wanted });
                            });
                        }
                        None => {}
                    }
                }
            }
            Ok(Err(status)) => {
                tracing::debug!(code = ?status.code(), "kubelet-syncd does not say what is to be written")
            }
            Err(_) => tracing::debug!("kubelet-syncd does not begin to say what is to be written"),
        }
        tokio::time::sleep(retry.pause()).await;
    }
}

async fn acknowledge(syncd: &Link, answer: AcknowledgeRequest) {
    let mut retry = BackOff::new(ANSWER_RETRY.0, ANSWER_RETRY.1);
    for _ in 0..ANSWERS {
        let mut client = StorageClient::new(syncd.channel());
        let told = client.acknowledge(CallContext::new().request(answer.clone(), START));
        match tokio::time::timeout(START, told).await {
            Ok(Err(status)) if is_unknown(&status) => {
                tracing::debug!(code = ?status.code(), "kubelet-syncd does not hear what was written");
            }
            // Another life wishes again.
            Ok(_) => return,
            Err(_) => {}
        }
        tokio::time::sleep(retry.pause()).await;
    }
}

async fn write_drivers(
    server: Server,
    metrics: Metrics,
    syncd: &Link,
    mut newest: watch::Receiver<Option<Wish<CsiDrivers>>>,
) {
    loop {
        if server.rests(newest.changed()).await.is_err() {
            return;
        }
        let mut retry = BackOff::new(RETRY.0, RETRY.1);
        let mut rejected = BTreeMap::new();
        loop {
            let Some(wish) = newest.borrow_and_update().clone() else { break };
            let base = AcknowledgeRequest { epoch: wish.epoch, sequence: wish.sequence, ..Default::default() };
            match csi_driver_writes::write_once(&server, &metrics, &wish.wanted, &mut rejected).await {
                Ok(refused) => {
                    for (driver, why) in &refused {
                        tracing::warn!(driver, "API server refused CSI driver: {why}");
                    }
                    let refused_drivers = refused.into_iter().collect();
                    server.rests(acknowledge(syncd, AcknowledgeRequest { refused_drivers, ..base })).await;
                    break;
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to write the CSINode's drivers, will retry");
                    let error = error.to_string();
                    server.rests(acknowledge(syncd, AcknowledgeRequest { error, ..base })).await;
                }
            }
            let pause = jittered(retry.pause(), 0.1, random_fraction());
            // A newer wish is written at once.
            if let Ok(Err(_)) = server.rests(tokio::time::timeout(pause, newest.changed())).await {
                return;
            }
        }
    }
}

/// Writes each wish until it is written, refused for good, or replaced.
async fn write_each<T: Clone + PartialEq>(
    server: Server,
    syncd: &Link,
    wishes: &watch::Sender<Wishes<T>>,
    write: impl AsyncFn(&T) -> Result<Written, RequestError>,
) {
    let mut changed = wishes.subscribe();
    let mut retries: BTreeMap<String, (u64, BackOff)> = BTreeMap::new();
    loop {
        let waiting = changed.borrow_and_update().clone();
        retries.retain(|key, _| waiting.contains_key(key));
        let mut pause: Option<Duration> = None;
        for (key, wish) in waiting {
            let base = AcknowledgeRequest { epoch: wish.epoch.clone(), sequence: wish.sequence, ..Default::default() };
            let answer = match write(&wish.wanted).await {
                Ok(Written::Done) => Some(base),
                Ok(Written::Refused(why)) => Some(AcknowledgeRequest { error: why, r#final: true, ..base }),
                Err(error) => {
                    tracing::warn!(key, %error, "failed to write for kubelet-syncd, will retry");
                    let entry = retries.entry(key.clone());
                    let (_, retry) = entry.or_insert((wish.sequence, BackOff::new(RETRY.0, RETRY.1)));
                    let next = retry.pause();
                    pause = Some(pause.map_or(next, |pause| pause.min(next)));
                    None
                }
            };
            if let Some(answer) = answer {
                server.rests(acknowledge(syncd, answer)).await;
                wishes.send_if_modified(|all| {
                    // No news to this loop, which is the one that reads.
                    if all.get(&key) == Some(&wish) {
                        all.remove(&key);
                    }
                    false
                });
            }
        }
        let news = changed.changed();
        match pause {
            Some(pause) => drop(server.rests(tokio::time::timeout(pause, news)).await),
            None => drop(server.rests(news).await),
        }
    }
}

/// Tried until it is done or called off, as upstream.
async fn wipe(server: &Server, wanted: &ResourceSliceWipe) -> Result<Written, RequestError> {
    if wanted.called_off {
        return Ok(Written::Done);
    }
    match server.delete_resource_slices(&wanted.driver).await {
        Ok(()) => tracing::debug!(driver = wanted.driver, "Deleted ResourceSlices"),
        // A server without this API has none.
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error),
    }
    Ok(Written::Done)
}

async fn write_claim(server: &Server, metrics: &Metrics, wanted: &ClaimStatus) -> Result<Written, RequestError> {
    let claim = match server.get_claim(&wanted.namespace, &wanted.name).await {
        Ok(claim) => claim,
        Err(error) if error.is_not_found() => return Ok(Written::Refused(error.to_string())),
        Err(error) => return Err(error),
    };
    let patch = match csi_claims::patch(&claim, wanted, Timestamp::now()) {
        Ok(Some(patch)) => patch,
        Ok(None) => return Ok(Written::Done),
        Err(why) => return Ok(Written::Refused(why)),
    };
    let written = server.patch_claim_status(&wanted.namespace, &wanted.name, &patch).await;
    metrics.claim_write(written.is_ok());
    match written {
        Ok(_) => Ok(Written::Done),
        Err(error) if error.is_invalid() || error.is_not_found() => Ok(Written::Refused(error.to_string())),
        Err(error) => Err(error),
    }
}
