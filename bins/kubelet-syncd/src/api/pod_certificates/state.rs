//! The life of one certificate of a pod (upstream `pkg/kubelet/podcertificate`). Pure: what is known in, what is to be done out.
//!
//! ```text
//! asked for -> waits -> fresh -> waits while the old one is shown -> fresh
//!                |-> denied or failed, for good <-|
//! ```

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::certificates::v1beta1::PodCertificateRequest;
use kubelet_model::objects::certificates::Credential;
use kubelet_model::pem;

/// A request that was never seen for so long was deleted.
pub const ABANDONED: SignedDuration = SignedDuration::from_mins(10);
/// A certificate is overdue so long after it was to be refreshed.
pub const OVERDUE: SignedDuration = SignedDuration::from_mins(10);

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Pending,
    Denied { reason: String, message: String },
    Failed { reason: String, message: String },
    Issued { chain: String, refresh: Timestamp, not_after: Timestamp },
}

impl Answer {
    pub fn of(request: &PodCertificateRequest) -> Self {
        let Some(status) = &request.status else { return Answer::Pending };
        for condition in status.conditions.iter().flatten() {
            let (reason, message) = (condition.reason.clone(), condition.message.clone());
            match condition.type_.as_str() {
                "Denied" => return Answer::Denied { reason, message },
                "Failed" => return Answer::Failed { reason, message },
                "Issued" => {
                    // Without times it counts as one that is to be replaced at once.
                    let time = |time: &Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>| {
                        time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0)
                    };
                    return Answer::Issued {
                        chain: pem::certificates(status.certificate_chain.as_deref().unwrap_or_default()),
                        refresh: time(&status.begin_refresh_at),
                        not_after: time(&status.not_after),
                    };
                }
                _ => {}
            }
        }
        Answer::Pending
    }
}

/// A request that is on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pending {
    pub name: String,
    /// In PEM.
    pub key: Secret,
    pub abandon: Timestamp,
    /// The API server has shown it.
    pub seen: bool,
}

/// A private key; it is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(key)")
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fresh {
    pub credential: Credential,
    pub refresh: Timestamp,
    pub not_after: Timestamp,
    told_overdue: bool,
    told_expired: bool,
}

/// What is known of one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    pub fresh: Option<Fresh>,
    pub pending: Option<Pending>,
    /// For good, in upstream's words.
    pub refused: Option<String>,
    refused_state: &'static str,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// A new key, and a request for it.
    Ask,
    /// The pod's files have changed, or why it has none.
    Tell,
    /// An event about the pod: reason and message.
    Say(String, String),
}

impl Record {
    /// What volumes show.
    ///
    /// # Errors
    /// Upstream's words.
    pub fn shown(&self) -> Result<Credential, String> {
        match (&self.refused, &self.fresh) {
            (Some(why), _) => Err(why.clone()),
            (None, Some(fresh)) => Ok(fresh.credential.clone()),
            (None, None) => Err("credential bundle is not issued yet".to_owned()),
        }
    }

    /// As `kubelet_podcertificate_states` has it.
    pub fn metrics_state(&self, now: Timestamp) -> &'static str {
        match (&self.refused, &self.fresh) {
            (Some(_), _) => self.refused_state,
            (None, None) => "not_yet_issued",
            (None, Some(fresh)) if now > fresh.not_after => "expired",
            (None, Some(fresh)) if now > after(fresh.refresh, OVERDUE) => "overdue_for_refresh",
            (None, Some(_)) => "fresh",
        }
    }

    /// The next step. `answer`: of the pending request, None where the API server shows none of its name; `object`: its namespace
    /// and name; `jitter`: how much later than the signer says a refresh begins.
    pub fn step(&mut self, now: Timestamp, answer: Option<Answer>, object: &str, jitter: SignedDuration) -> Vec<Act> {
        let mut acts = Vec::new();
        if self.refused.is_some() {
            return acts;
        }
        if let Some(pending) = &mut self.pending {
            match answer {
                None if pending.seen || now > pending.abandon => self.pending = None,
                None => {}
                Some(Answer::Pending) => pending.seen = true,
                Some(Answer::Denied { reason, message }) => {
                    let text =
                        format!("PodCertificateRequest {object} was denied, reason={reason:?}, message={message:?}");
                    acts.extend([self.refuse("denied", &reason, &message), Act::Say("Denied".to_owned(), text)]);
                    return acts;
                }
                Some(Answer::Failed { reason, message }) => {
                    let text = format!("PodCertificateRequest {object} failed, reason={reason:?}, message={message:?}");
                    acts.extend([self.refuse("failed", &reason, &message), Act::Say("Failed".to_owned(), text)]);
                    return acts;
                }
                Some(Answer::Issued { chain, refresh, not_after }) => {
                    let credential = Credential { key: pending.key.0.clone(), chain };
                    let refresh = after(refresh, jitter);
                    self.fresh =
                        Some(Fresh { credential, refresh, not_after, told_overdue: false, told_expired: false });
                    self.pending = None;
                    acts.push(Act::Tell);
                    return acts;
                }
            }
        }
        if let Some(fresh) = &mut self.fresh {
            if now > after(fresh.refresh, OVERDUE) && !fresh.told_overdue {
                fresh.told_overdue = true;
                let (reason, text) = ("CertificateOverdueForRefresh", "PodCertificate refresh overdue");
                acts.push(Act::Say(reason.to_owned(), text.to_owned()));
            }
            if now > fresh.not_after && !fresh.told_expired {
                fresh.told_expired = true;
                acts.push(Act::Say("CertificateExpired".to_owned(), "PodCertificate expired".to_owned()));
            }
        }
        let due = self.fresh.as_ref().is_none_or(|fresh| now >= fresh.refresh);
        if self.pending.is_none() && due {
            acts.push(Act::Ask);
        }
        acts
    }

    fn refuse(&mut self, state: &'static str, reason: &str, message: &str) -> Act {
        let text = format!("PodCertificateRequest was permanently {state}: reason={reason:?} message={message:?}");
        (self.refused, self.refused_state, self.pending) = (Some(text), state, None);
        Act::Tell
    }

    /// When the next step is due though nothing is heard.
    pub fn wake(&self, now: Timestamp) -> Option<Timestamp> {
        if self.refused.is_some() {
            return None;
        }
        let pending = self.pending.as_ref().filter(|pending| !pending.seen).map(|pending| pending.abandon);
        let fresh = self.fresh.iter().flat_map(|fresh| [fresh.refresh, after(fresh.refresh, OVERDUE), fresh.not_after]);
        fresh.chain(pending).filter(|at| *at > now).min()
    }
}

/// A time that lies later by that much.
pub fn after(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.saturating_add(by).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: SignedDuration = SignedDuration::ZERO;

    fn at(minutes: i64) -> Timestamp {
        after(Timestamp::UNIX_EPOCH, SignedDuration::from_mins(minutes))
    }

    fn pending(name: &str, abandon: i64) -> Option<Pending> {
        Some(Pending { name: name.into(), key: Secret(format!("key of {name}")), abandon: at(abandon), seen: false })
    }

    fn issued(chain: &str, refresh: i64, not_after: i64) -> Option<Answer> {
        Some(Answer::Issued { chain: chain.into(), refresh: at(refresh), not_after: at(not_after) })
    }

    fn say(reason: &str, text: &str) -> Act {
        Act::Say(reason.into(), text.into())
    }

    #[test]
    fn a_certificate_is_replaced_while_the_old_one_is_shown() {
        let mut record = Record::default();
        assert_eq!(record.step(at(0), None, "ns/a", NONE), [Act::Ask]);
        assert_eq!(record.shown().unwrap_err(), "credential bundle is not issued yet");
        record.pending = pending("a", 10);
        assert_eq!(record.step(at(1), None, "ns/a", NONE), []);
        assert_eq!(record.wake(at(1)), Some(at(10)));
        assert_eq!(record.step(at(1), Some(Answer::Pending), "ns/a", NONE), []);
        assert_eq!((record.wake(at(1)), record.metrics_state(at(1))), (None, "not_yet_issued"));
        let jitter = SignedDuration::from_mins(1);
        assert_eq!(record.step(at(2), issued("one", 60, 120), "ns/a", jitter), [Act::Tell]);
        assert_eq!(record.shown().unwrap(), Credential { key: "key of a".into(), chain: "one".into() });
        assert_eq!((record.step(at(60), None, "", NONE), record.wake(at(60))), (vec![], Some(at(61))));
        assert_eq!(record.step(at(61), None, "", NONE), [Act::Ask]);
        record.pending = pending("b", 71);
        let late = say("CertificateOverdueForRefresh", "PodCertificate refresh overdue");
        assert_eq!(record.step(at(72), Some(Answer::Pending), "ns/b", NONE), [late]);
        assert_eq!(record.step(at(73), Some(Answer::Pending), "ns/b", NONE), []);
        assert_eq!((record.wake(at(73)), record.metrics_state(at(73))), (Some(at(120)), "overdue_for_refresh"));
        let expired = say("CertificateExpired", "PodCertificate expired");
        assert_eq!(record.step(at(121), Some(Answer::Pending), "ns/b", NONE), [expired]);
        assert_eq!((record.shown().unwrap().chain.as_str(), record.metrics_state(at(121))), ("one", "expired"));
        assert_eq!(record.step(at(122), issued("two", 180, 240), "ns/b", NONE), [Act::Tell]);
        assert_eq!((record.shown().unwrap().key.as_str(), record.metrics_state(at(122))), ("key of b", "fresh"));
    }

    #[test]
    fn a_refusal_is_for_good() {
        for (answer, state, event, text) in [
            (
                Answer::Denied { reason: "No".into(), message: "never".into() },
                "denied",
                "Denied",
                "PodCertificateRequest ns/a was denied, reason=\"No\", message=\"never\"",
            ),
            (
                Answer::Failed { reason: "No".into(), message: "never".into() },
                "failed",
                "Failed",
                "PodCertificateRequest ns/a failed, reason=\"No\", message=\"never\"",
            ),
        ] {
            let mut record = Record { pending: pending("a", 10), ..Record::default() };
            assert_eq!(record.step(at(0), Some(answer), "ns/a", NONE), [Act::Tell, say(event, text)]);
            assert_eq!(record.metrics_state(at(0)), state);
            let why = format!("PodCertificateRequest was permanently {state}: reason=\"No\" message=\"never\"");
            assert_eq!(record.shown().unwrap_err(), why);
            assert_eq!((record.step(at(999), None, "", NONE), record.wake(at(0))), (vec![], None));
        }
    }

    #[test]
    fn a_request_that_is_gone_is_made_again() {
        for (seen, minute, expected) in [(true, 1, vec![Act::Ask]), (false, 1, vec![]), (false, 11, vec![Act::Ask])] {
            let mut record = Record { pending: pending("a", 10), ..Record::default() };
            record.pending.as_mut().unwrap().seen = seen;
            assert_eq!(record.step(at(minute), None, "ns/a", NONE), expected, "{seen} {minute}");
        }
    }

    #[test]
    fn what_a_request_says() {
        let answer = |status: serde_json::Value| {
            let request = serde_json::json!({"metadata": {}, "spec": {"nodeName": "", "nodeUID": "", "podName": "",
                "podUID": "", "serviceAccountName": "", "serviceAccountUID": "", "signerName": "", "stubPKCS10Request": ""},
                "status": status});
            Answer::of(&serde_json::from_value(request).unwrap())
        };
        let condition = |kind: &str| {
            serde_json::json!([{"type": kind, "status": "True", "reason": "R", "message": "m",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}])
        };
        assert_eq!(answer(serde_json::json!({})), Answer::Pending);
        let (reason, message) = ("R".to_owned(), "m".to_owned());
        let denied = Answer::Denied { reason: reason.clone(), message: message.clone() };
        assert_eq!(answer(serde_json::json!({"conditions": condition("Denied")})), denied);
        let failed = Answer::Failed { reason, message };
        assert_eq!(answer(serde_json::json!({"conditions": condition("Failed")})), failed);
        let chain = format!("text\n{}", pem::block("CERTIFICATE", &[1]));
        let issued = answer(serde_json::json!({"conditions": condition("Issued"), "certificateChain": chain,
            "beginRefreshAt": "1970-01-01T01:00:00Z", "notAfter": "1970-01-01T02:00:00Z"}));
        let chain = pem::block("CERTIFICATE", &[1]);
        assert_eq!(issued, Answer::Issued { chain, refresh: at(60), not_after: at(120) });
    }
}
