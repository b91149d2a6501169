//! What there is to do about the node's certificates now. Pure.
//!
//! The rules are upstream's (`cmd/kubelet/app`, buildKubeletClientConfig; `pkg/kubelet/certificate/bootstrap`; client-go
//! `util/certificate`), where upstream decides at its start and ends for whatever comes later; here the same question is asked
//! anew whenever something has changed.

use std::time::Duration;

use jiff::Timestamp;

use super::leaf::{Chain, Subject};

/// What the configuration asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CertificateSettings {
    /// rotateCertificates.
    pub rotates: bool,
    /// `--bootstrap-kubeconfig`.
    pub bootstraps: bool,
}

/// What the kubeconfig's current context shows as the client's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shown {
    /// It has none: a token, say.
    Nothing,
    /// It names files of which there is none, or that cannot be used.
    Lost,
    /// In files.
    Named(Chain),
    /// In the kubeconfig itself.
    Inline(Chain),
}

/// The kubeconfig.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kubeconfig {
    Missing,
    Unusable,
    Usable(Shown),
}

/// All that was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateState {
    pub kubeconfig: Kubeconfig,
    /// The pair that was signed for the node (`kubelet-client-current.pem`).
    pub signed: Option<Chain>,
    /// There is a bootstrap kubeconfig, or its credentials are known.
    pub can_bootstrap: bool,
}

/// What is remembered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Memory {
    /// The kubeconfig was good once since the start: what becomes of it from then on is the operator's matter.
    pub was_good: bool,
    /// The pair in force is what a kubeconfig had inline: a first one, to be replaced at once.
    pub is_first: bool,
    /// From 0 to 1: where in the last third of its life a certificate is renewed.
    pub share: f64,
}

impl Memory {
    /// What a look at the kubeconfig teaches. One whose files are missing was never good: a bootstrap kubeconfig that comes
    /// after it counts.
    pub fn learn(&mut self, kubeconfig: &Kubeconfig) {
        self.was_good |= matches!(kubeconfig, Kubeconfig::Usable(shown) if *shown != Shown::Lost);
    }
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Todo {
    /// Nothing until something changes.
    Idle,
    /// Nothing until then.
    Until(Timestamp),
    /// Ask with what the node begins with.
    Bootstrap,
    /// Keep the pair that is inline in the kubeconfig.
    Keep,
    /// Ask for the next one.
    Renew(Why),
}

/// Why a certificate is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    None,
    First,
    Due,
    Ended,
    OtherSubject,
}

impl Why {
    pub const fn as_str(self) -> &'static str {
        match self {
            Why::None => "there is none yet",
            Why::First => "the kubeconfig's own was there to begin with",
            Why::Due => "it is time",
            Why::Ended => "it has ended",
            Why::OtherSubject => "names or addresses of the node are not in it",
        }
    }
}

/// About the client certificate.
pub fn client(
    wanted: CertificateSettings,
    seen: &CertificateState,
    memory: Memory,
    subject: &Subject,
    now: Timestamp,
) -> Todo {
    let shown = match &seen.kubeconfig {
        Kubeconfig::Usable(Shown::Named(chain) | Shown::Inline(chain)) => Some(chain),
        _ => None,
    };
    let has_ended = shown.is_some_and(|chain| chain.first_end <= now);
    if wanted.bootstraps && seen.can_bootstrap && (has_ended || (shown.is_none() && !memory.was_good)) {
        return Todo::Bootstrap;
    }
    if !wanted.rotates {
        // Its end makes another start of it.
        return match shown {
            Some(chain) if wanted.bootstraps && !has_ended => Todo::Until(chain.first_end),
            _ => Todo::Idle,
        };
    }
    let signed = seen.signed.as_ref().filter(|chain| chain.not_after > now);
    match (signed, &seen.kubeconfig) {
        (Some(_), _) if memory.is_first => Todo::Renew(Why::First),
        (Some(chain), _) | (None, Kubeconfig::Usable(Shown::Named(chain))) => {
            renewal(Some(chain), Some(subject), memory.share, now)
        }
        (None, Kubeconfig::Usable(Shown::Inline(chain))) if chain.not_after > now => Todo::Keep,
        (None, Kubeconfig::Usable(Shown::Inline(_))) => Todo::Renew(Why::Ended),
        (None, Kubeconfig::Usable(Shown::Nothing)) => Todo::Renew(Why::None),
        (None, Kubeconfig::Usable(Shown::Lost) | Kubeconfig::Unusable | Kubeconfig::Missing) => Todo::Idle,
    }
}

/// How long until another certificate of those that are in use ends, which may be another thing to do.
pub fn until_another_end(seen: &CertificateState, now: Timestamp) -> Duration {
    let shown = match &seen.kubeconfig {
        Kubeconfig::Usable(Shown::Named(chain) | Shown::Inline(chain)) => Some(chain),
        _ => None,
    };
    let ends = shown.into_iter().chain(&seen.signed).map(|chain| chain.first_end);
    let left = ends.filter_map(|end| Duration::try_from(end.duration_since(now)).ok()).filter(|left| !left.is_zero());
    left.min().unwrap_or(Duration::MAX)
}

/// Whether a certificate has to be replaced. `subject`: what it is to have; None: there is nothing that could be asked for at this moment.
pub fn renewal(current: Option<&Chain>, subject: Option<&Subject>, share: f64, now: Timestamp) -> Todo {
    let Some(subject) = subject else { return Todo::Idle };
    let Some(chain) = current else { return Todo::Renew(Why::None) };
    if chain.not_after <= now {
        return Todo::Renew(Why::Ended);
    }
    if !covers(&chain.subject, subject) {
        return Todo::Renew(Why::OtherSubject);
    }
    match deadline(chain, share) {
        at if at <= now => Todo::Renew(Why::Due),
        at => Todo::Until(at),
    }
}

/// When it is renewed: after 70 to 90 % of its life, so that nodes of one age do not all ask at once.
pub fn deadline(chain: &Chain, share: f64) -> Timestamp {
    let life = chain.not_after.duration_since(chain.not_before).as_secs_f64().max(0.0);
    let part = life * (0.7 + 0.2 * share.clamp(0.0, 1.0));
    let part = Duration::try_from_secs_f64(part).unwrap_or_default();
    chain.not_before.checked_add(part).unwrap_or(chain.not_after)
}

/// Whether a certificate has everything that is wanted; more does no harm.
fn covers(has: &Subject, wanted: &Subject) -> bool {
    has.common_name == wanted.common_name
        && has.organizations.is_superset(&wanted.organizations)
        && has.dns_names.is_superset(&wanted.dns_names)
        && has.addresses.is_superset(&wanted.addresses)
}

/// The pause after so many failures in a row: 2 s and twice as long each time, then 32 s. `share`: 0 to 1.
pub fn pause(failures: u32, share: f64) -> Duration {
    const LONGEST: Duration = Duration::from_secs(32);
    match failures {
        0 => Duration::ZERO,
        1..=4 => Duration::from_secs(1 << failures).mul_f64(1.0 + 0.1 * share.clamp(0.0, 1.0)),
        _ => LONGEST,
    }
}
