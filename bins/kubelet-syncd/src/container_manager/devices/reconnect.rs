//! What becomes of the plugins of an earlier start: they are connected to again; what a try that failed means for the next one, and when
//! nobody need try any more.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::time::Duration;

use kubelet_edges::device_plugin::DIAL;
use tonic::Code;

use super::DevicePlugins;
use super::connections::{Failure, Missed};
use super::endpoints::RegisteredBy;

/// A plugin of an earlier start that is there and did not answer is connected to again after a pause, twice as long each time: it is
/// found within about as long again as it was away, and one that never answers costs a call in ten minutes.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(10 * 60);
/// A store of plugins that cannot be read is asked again after a pause, twice as long each time.
const READ_MIN: Duration = Duration::from_millis(500);
const READ_MAX: Duration = Duration::from_secs(30);

/// What follows from a try that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// It may answer by and by, and has no reason to register: it is tried again after a pause.
    Again,
    /// Nothing comes of it in this life.
    End,
    /// It has ended: who comes in its place binds anew, and registers.
    Forget,
}

fn after(failure: Failure) -> Next {
    match failure {
        Failure::Unreached(ErrorKind::NotFound | ErrorKind::ConnectionRefused) => Next::Forget,
        // Where no socket of a plugin can be, or nothing that speaks of devices.
        Failure::Unreached(ErrorKind::InvalidInput) | Failure::NoOptions(Code::Unimplemented) => Next::End,
        // It is stopped, the way through kubelet-volnetd is closed, or a folder on the way is not root's alone just then; what broke off
        // shows at the next try what it was. Resources whose plugins have gone give their places back after a while.
        Failure::Unreached(_) | Failure::NoOptions(_) | Failure::NoList | Failure::NoPlace => Next::Again,
    }
}

/// Nobody is to look for the plugin of an earlier start any more: it is not among those that are `kept`, as another one has its socket
/// or its resource, or it is connected for another resource. `connected`: resources with the endpoints of their plugins.
fn is_over<'a>(
    resource: &str,
    endpoint: &str,
    kept: &BTreeMap<String, String>,
    mut connected: impl Iterator<Item = (&'a str, &'a str)>,
) -> bool {
    kept.get(resource).is_none_or(|kept| kept != endpoint)
        || connected.any(|(other, of)| other != resource && of == endpoint)
}

impl DevicePlugins {
    /// Resources and endpoints of the plugins of an earlier start, once the store can be read.
    pub(super) async fn of_earlier_start(&self) -> BTreeMap<String, String> {
        let mut pause = READ_MIN;
        loop {
            {
                let mut kept = self.kept.lock();
                if kept.read(&*self.store) {
                    return kept.of.clone();
                }
            }
            tokio::time::sleep(pause).await;
            pause = READ_MAX.min(pause * 2);
        }
    }

    /// Connects to a plugin of an earlier start, until it has told its devices, has ended, or somebody has registered its resource or
    /// its socket. One that is only stopped, or whose way through kubelet-volnetd is closed for a while, does not register again: its
    /// socket of registration is the same.
    pub(super) async fn bring_back(&self, resource: &str, endpoint: &str) {
        let (mut pause, mut patience, mut generation) = (PAUSE_MIN, DIAL, None);
        while !self.is_over(resource, endpoint, generation) {
            let dialed = self.dial(resource, endpoint, patience).await;
            if self.is_over(resource, endpoint, generation) {
                return;
            }
            let missed = match dialed {
                Ok((plugin, options)) => {
                    let taken = self.take(resource, endpoint, RegisteredBy::KubeletSocket, plugin, options);
                    if self.has_told(resource, taken).await {
                        return;
                    }
                    generation = Some(taken);
                    Missed { why: "it has told no devices".to_owned(), failure: Failure::NoList }
                }
                Err(missed) => missed,
            };
            let next = after(missed.failure);
            let why = missed.why;
            tracing::info!(resource, endpoint, ?next, "failed to reconnect to device plugin: {why}");
            match next {
                Next::Again => {}
                Next::End => return,
                Next::Forget => return self.forget_endpoint(resource),
            }
            tokio::time::sleep(pause).await;
            (pause, patience) = (PAUSE_MAX.min(pause * 2), Duration::ZERO);
        }
    }

    /// Nobody need look any more for a plugin of an earlier start. `generation`: of the last one that this found.
    pub(super) fn is_over(&self, resource: &str, endpoint: &str, generation: Option<u64>) -> bool {
        if self.manager.lock().plugins().last(resource) != generation {
            return true;
        }
        let plugins = self.plugins.lock();
        let connected = plugins.iter().map(|(resource, connected)| (resource.as_str(), connected.endpoint.as_str()));
        is_over(resource, endpoint, &self.kept.lock().of, connected)
    }

    /// Waits until a plugin has told its devices. False: it has gone before, or another one has its resource.
    pub(super) async fn has_told(&self, resource: &str, generation: u64) -> bool {
        let mut changed = self.changed.subscribe();
        loop {
            changed.borrow_and_update();
            let told = self.manager.lock().plugins().has_told(resource, generation);
            if let Some(told) = told {
                return told;
            }
            if changed.changed().await.is_err() {
                return false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|(resource, endpoint)| ((*resource).to_owned(), (*endpoint).to_owned())).collect()
    }

    #[test]
    fn what_a_failed_try_means() {
        for (failure, next) in [
            (Failure::Unreached(ErrorKind::NotFound), Next::Forget),
            (Failure::Unreached(ErrorKind::ConnectionRefused), Next::Forget),
            (Failure::Unreached(ErrorKind::WouldBlock), Next::Again),
            (Failure::Unreached(ErrorKind::TimedOut), Next::Again),
            (Failure::Unreached(ErrorKind::Other), Next::Again),
            (Failure::Unreached(ErrorKind::PermissionDenied), Next::Again),
            (Failure::Unreached(ErrorKind::InvalidInput), Next::End),
            (Failure::NoOptions(Code::DeadlineExceeded), Next::Again),
            (Failure::NoOptions(Code::Unavailable), Next::Again),
            (Failure::NoOptions(Code::Internal), Next::Again),
            (Failure::NoOptions(Code::Unimplemented), Next::End),
            (Failure::NoList, Next::Again),
            (Failure::NoPlace, Next::Again),
        ] {
            assert_eq!(after(failure), next, "{failure:?}");
        }
    }

    #[test]
    fn when_nobody_looks_for_it_any_more() {
        type Row = (&'static str, &'static str, &'static [(&'static str, &'static str)], bool);
        let rows: &[Row] = &[
            ("x/a", "/a.sock", &[("x/b", "/b.sock")], false),
            // Its own last try.
            ("x/a", "/a.sock", &[("x/a", "/a.sock")], false),
            ("x/a", "/a.sock", &[("x/c", "/a.sock")], true),
            ("x/a", "/old.sock", &[], true),
            ("x/c", "/c.sock", &[], true),
        ];
        let kept = map(&[("x/a", "/a.sock"), ("x/b", "/b.sock")]);
        for (resource, endpoint, connected, over) in rows {
            assert_eq!(is_over(resource, endpoint, &kept, connected.iter().copied()), *over, "{resource} {endpoint}");
        }
    }
}
