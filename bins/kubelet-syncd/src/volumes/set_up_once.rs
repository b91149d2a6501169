//! What becomes of a volume that cannot be set up again: a pod keeps what it has. Its source may have gone since, and that ends
//! neither its restarts nor its next containers.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::plan::VolumeKind;
use super::set_up::{ContentHashes, Outcomes, Ready, VolumeError};

/// The volumes of one pod that were set up, by their names: those with files from the API and those of the host.
///
/// Upstream leaves such a volume mounted whatever a later SetUp says (`operation_generator.go` markVolumeErrorState), and its
/// getUnmountedVolumes does not count it.
#[derive(Debug, Clone, Default)]
pub struct SetUpOnce {
    volumes: BTreeMap<String, (VolumeKind, Ready)>,
    tokens_renew: Option<Timestamp>,
}

impl SetUpOnce {
    /// Takes in what came of setting up the pod's volumes. One that failed, and was set up before from the same source, is what it
    /// was. Gives why files could not be brought up to date; of a path of the host nothing is said, for upstream looks at it once.
    ///
    /// `tokens_renew`: when the first token is to be replaced, of those that could be had.
    pub fn settle(&mut self, outcomes: &mut Outcomes, tokens_renew: &mut Option<Timestamp>) -> Vec<VolumeError> {
        let mut stale = Vec::new();
        for (plan, outcome) in outcomes {
            match outcome {
                Ok(ready) if matches!(plan.kind, VolumeKind::Content(_) | VolumeKind::HostPath { .. }) => {
                    self.volumes.insert(plan.name.to_string(), (plan.kind.clone(), ready.clone()));
                }
                Ok(_) => {}
                // Who is asked while kubelet-volnetd is away is asked again in a moment.
                Err(VolumeError::Failed { source, .. }) if source.is_transient() => {}
                Err(_) => {
                    let before = self.volumes.get(plan.name.as_str());
                    let Some((_, ready)) = before.filter(|(kind, _)| is_same_source(kind, &plan.kind)) else {
                        continue;
                    };
                    let Err(error) = std::mem::replace(outcome, Ok(ready.clone())) else { continue };
                    if matches!(plan.kind, VolumeKind::Content(_)) {
                        stale.push(error);
                    } else {
                        tracing::debug!(error = &error as &dyn std::error::Error, "a path of the host has changed");
                    }
                }
            }
        }
        if stale.is_empty() || tokens_renew.is_some() {
            self.tokens_renew = *tokens_renew;
        } else {
            *tokens_renew = self.tokens_renew;
        }
        stale
    }

    /// Files were brought up to date.
    pub fn show(&mut self, contents: &ContentHashes, tokens_renew: Option<Timestamp>) {
        for (name, hash) in contents {
            if let Some((_, ready)) = self.volumes.get_mut(name) {
                ready.content = Some(*hash);
            }
        }
        self.tokens_renew = tokens_renew;
    }
}

/// As the pod's spec names it: what else the plan says may follow the pod's size and its containers' mounts.
fn is_same_source(before: &VolumeKind, now: &VolumeKind) -> bool {
    match (before, now) {
        (VolumeKind::Content(before), VolumeKind::Content(now)) => {
            before.plugin == now.plugin && before.sources == now.sources
        }
        (VolumeKind::HostPath { .. }, _) => before == now,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use kubelet_edges::volnetd::VolnetdError;
    use kubelet_model::objects::named_objects::LookupError;
    use kubelet_model::v1::Pod;

    use super::*;
    use crate::volumes::plan;
    use crate::volumes::render::RenderError;

    const HASH: [u8; 32] = [1; 32];

    type Outcome = Result<Ready, VolumeError>;

    fn pod(volumes: serde_json::Value) -> Pod {
        let mounts = ["config", "host", "scratch"].map(|name| serde_json::json!({"name": name, "mountPath": "/m"}));
        serde_json::from_value(serde_json::json!({
            "spec": {"containers": [{"name": "c", "volumeMounts": mounts}], "volumes": volumes},
        }))
        .unwrap()
    }

    fn volumes(secret: &str, path: &str) -> serde_json::Value {
        serde_json::json!([
            {"name": "config", "secret": {"secretName": secret}},
            {"name": "host", "hostPath": {"path": path, "type": "Directory"}},
            {"name": "scratch", "emptyDir": {}},
        ])
    }

    fn outcomes(volumes: serde_json::Value, memory: u64, outcome: impl Fn(&str) -> Outcome) -> Outcomes {
        let plans = plan(&pod(volumes), memory);
        plans.into_iter().map(|plan| (plan.clone(), outcome(plan.name.as_str()))).collect()
    }

    fn there(name: &str) -> Outcome {
        Ok(Ready { host_path: format!("/{name}"), content: (name == "config").then_some(HASH) })
    }

    fn gone(name: &str) -> Outcome {
        let volume = name.to_owned();
        if name == "config" {
            let source = RenderError::Object(LookupError::NotFound { kind: "secret", name: "s".to_owned() });
            return Err(VolumeError::Files { volume, source });
        }
        let source = tonic::Status::invalid_argument("hostPath type check failed: /h is not a directory");
        Err(VolumeError::Failed { volume, source: VolnetdError::Refused { verb: "CheckHostPath", source } })
    }

    fn away(name: &str) -> Outcome {
        let source = VolnetdError::Away { verb: "any", source: tonic::Status::unavailable("restarts") };
        Err(VolumeError::Failed { volume: name.to_owned(), source })
    }

    /// What is there, then what is said, of `config`, `host` and `scratch`.
    fn settle(once: &mut SetUpOnce, mut outcomes: Outcomes) -> (Vec<bool>, Vec<String>) {
        let said = once.settle(&mut outcomes, &mut None).iter().map(VolumeError::event_message).collect();
        (outcomes.iter().map(|(_, outcome)| outcome.is_ok()).collect(), said)
    }

    #[test]
    fn what_was_set_up_once_from_the_same_source_stays() {
        let event = "MountVolume.SetUp failed for volume \"config\" : secret \"s\" not found".to_owned();
        let mut once = SetUpOnce::default();
        assert_eq!(settle(&mut once, outcomes(volumes("s", "/h"), 1, gone)), (vec![false; 3], vec![]), "never before");
        assert_eq!(settle(&mut once, outcomes(volumes("s", "/h"), 1, there)), (vec![true; 3], vec![]));
        // The pod's memory is another after a resize.
        let again = settle(&mut once, outcomes(volumes("s", "/h"), 2, gone));
        assert_eq!(again, (vec![true, true, false], vec![event.clone()]));
        let other = settle(&mut once, outcomes(volumes("t", "/i"), 1, gone));
        assert_eq!(other, (vec![false; 3], vec![]), "another source");
        assert_eq!(
            settle(&mut once, outcomes(volumes("s", "/h"), 1, away)),
            (vec![false; 3], vec![]),
            "volnetd is away"
        );
        let again = settle(&mut once, outcomes(volumes("s", "/h"), 1, gone));
        assert_eq!(again, (vec![true, true, false], vec![event]));
    }

    #[test]
    fn it_stays_with_what_it_shows_by_now_and_with_the_time_of_its_tokens() {
        let [first, second] = [1, 2].map(|second| Timestamp::from_second(second).ok());
        let mut renew = first;
        let mut once = SetUpOnce::default();
        once.settle(&mut outcomes(volumes("s", "/h"), 1, there), &mut renew);
        let new = [2; 32];
        once.show(&ContentHashes::from([("config".to_owned(), new), ("other".to_owned(), new)]), second);
        let mut kept = outcomes(volumes("s", "/h"), 1, gone);
        let mut renew = None;
        assert_eq!(once.settle(&mut kept, &mut renew).len(), 1);
        assert_eq!(kept[0].1.as_ref().unwrap(), &Ready { host_path: "/config".to_owned(), content: Some(new) });
        assert_eq!(renew, second);
    }
}
