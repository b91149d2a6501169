//! Keeps the chains of iptables that other components look for (`makeIPTablesUtilChains`), by asking kubelet-iptables: at the
//! start and each minute (upstream `initNetworkUtil` in `pkg/kubelet/kubelet_network_linux.go`).
//!
//! They are kept for others, so that nothing here depends on them: what cannot be had is told, and asked for again.

use std::os::fd::OwnedFd;
use std::time::Duration;

use bulkhead_config::NodeConfig;
use bulkhead_ipc::common::family_chains::{Family, Outcome};
use bulkhead_ipc::common::keep_chains_request::Mode;
use bulkhead_ipc::common::{FamilyChains, KeepChainsReply, KeepChainsRequest};
use bulkhead_ipc::helper::Asker;

/// Upstream's, between two looks at the canary.
const PERIOD: Duration = Duration::from_secs(60);
/// Where nobody answered: the helper may be started only now.
const UNANSWERED_PERIOD: Duration = Duration::from_secs(10);
/// On a machine that has the program and none of its tables: a module of the kernel may be loaded later.
const UNSUPPORTED_PERIOD: Duration = Duration::from_secs(600);
/// Both families, each waiting for the lock some times.
const PATIENCE: Duration = Duration::from_secs(120);

/// Who keeps the chains: the launcher's helper, by the socket that it passes, or the unit's, by its own. `None` where the
/// configuration does not want them.
///
/// # Errors
/// The socket cannot be registered with the runtime.
pub fn asker(passed: Option<OwnedFd>, config: &NodeConfig) -> std::io::Result<Option<Asker>> {
    if !config.kubelet.make_iptables_util_chains() {
        return Ok(None);
    }
    Asker::passed_or_at(passed, &config.paths.run_dir.join("kubelet-iptables.sock")).map(Some)
}

/// Keeps them until the machine turns out to have no iptables. `tell`: what a person should know, `None` when all is well.
pub async fn keep(asker: Asker, tell: impl Fn(Option<String>)) {
    let mut known = Known::default();
    let mut mode = Mode::Anew;
    loop {
        let judged = match asker.ask_for::<KeepChainsReply>(&KeepChainsRequest { mode: mode.into() }, PATIENCE).await {
            Ok(reply) => {
                mode = Mode::IfFlushed;
                known.answered(&reply.families)
            }
            Err(error) => known.unanswered(&bulkhead_types::chain(&error)),
        };
        for line in &judged.log {
            if judged.trouble.is_some() { tracing::warn!("{line}") } else { tracing::info!("{line}") }
        }
        if !judged.log.is_empty() {
            tell(judged.trouble);
        }
        match judged.again {
            Some(pause) => tokio::time::sleep(pause).await,
            None => return,
        }
    }
}

/// What was last heard, so that only what changes is told.
#[derive(Debug, Default)]
struct Known {
    last: Vec<(Family, Outcome, String)>,
    unanswered: Option<String>,
}

/// What follows from an answer.
#[derive(Debug, PartialEq, Eq)]
struct Judged {
    /// What has changed.
    log: Vec<String>,
    /// What is wrong now.
    trouble: Option<String>,
    /// When to ask next; never where there is nobody who could do it.
    again: Option<Duration>,
}

impl Known {
    fn answered(&mut self, families: &[FamilyChains]) -> Judged {
        self.unanswered = None;
        let now: Vec<_> = families.iter().map(|one| (one.family(), one.outcome(), one.message.clone())).collect();
        let none = |(_, outcome, _): &(Family, Outcome, String)| {
            matches!(outcome, Outcome::NoProgram | Outcome::NotSupported | Outcome::Unspecified)
        };
        let mut log = Vec::new();
        if now.iter().all(none) {
            if self.last.is_empty() || !self.last.iter().all(none) {
                log.push("No iptables support on this system; not creating the KUBE-IPTABLES-HINT chain".to_owned());
            }
        } else {
            log.extend(now.iter().filter_map(|one| self.change(one)));
        }
        let failed = |(family, outcome, message): &(Family, Outcome, String)| {
            (*outcome == Outcome::Failed).then(|| format!("iptables rules of {}: {message}", protocol(*family)))
        };
        let troubles: Vec<String> = now.iter().filter_map(failed).collect();
        let again = if now.iter().all(|(_, outcome, _)| *outcome == Outcome::NoProgram) {
            None
        } else if now.iter().all(none) {
            Some(UNSUPPORTED_PERIOD)
        } else {
            Some(PERIOD)
        };
        self.last = now;
        Judged { log, trouble: (!troubles.is_empty()).then(|| troubles.join("; ")), again }
    }

    /// In upstream's words.
    fn change(&self, (family, outcome, message): &(Family, Outcome, String)) -> Option<String> {
        let before = self.last.iter().find(|(known, ..)| known == family);
        let was = before.map(|(_, outcome, _)| *outcome);
        let well = matches!(was, Some(Outcome::Kept | Outcome::Initialized | Outcome::Reloaded));
        let protocol = protocol(*family);
        match outcome {
            Outcome::Reloaded if well => {
                Some(format!("IPTables canary deleted, reloaded after iptables flush: protocol={protocol}"))
            }
            Outcome::Initialized | Outcome::Reloaded => {
                Some(format!("Initialized iptables rules: protocol={protocol}"))
            }
            Outcome::Kept if !well => Some(format!("iptables rules are there: protocol={protocol}")),
            Outcome::Failed if was != Some(Outcome::Failed) || before.is_some_and(|(.., said)| said != message) => {
                Some(format!(
                    "Failed to initialize iptables rules; some functionality may be missing: protocol={protocol}: {message}"
                ))
            }
            _ => None,
        }
    }

    fn unanswered(&mut self, why: &str) -> Judged {
        let news = self.unanswered.as_deref() != Some(why);
        self.unanswered = Some(why.to_owned());
        // What is known then may have changed meanwhile: the next answer is told again.
        self.last.clear();
        let trouble = format!("chains of iptables are not kept: {why}");
        Judged {
            log: news.then(|| trouble.clone()).into_iter().collect(),
            trouble: Some(trouble),
            again: Some(UNANSWERED_PERIOD),
        }
    }
}

const fn protocol(family: Family) -> &'static str {
    match family {
        Family::Ipv6 => "IPv6",
        Family::Ipv4 | Family::Unspecified => "IPv4",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn families(v4: Outcome, v6: Outcome) -> Vec<FamilyChains> {
        let one = |family: Family, outcome: Outcome| FamilyChains {
            family: family.into(),
            outcome: outcome.into(),
            message: if outcome == Outcome::Failed { "ended with code 3".into() } else { String::new() },
        };
        vec![one(Family::Ipv4, v4), one(Family::Ipv6, v6)]
    }

    #[test]
    fn what_changes_is_told_once_in_upstreams_words() {
        use Outcome::{Failed, Initialized, Kept, NoProgram, NotSupported, Reloaded};
        let mut known = Known::default();
        // What each family answers; what is logged; whether something is wrong; when it is asked again.
        let hour = [
            (Initialized, NotSupported, vec!["Initialized iptables rules: protocol=IPv4"], false, Some(PERIOD)),
            (Kept, NotSupported, vec![], false, Some(PERIOD)),
            (
                Reloaded,
                NotSupported,
                vec!["IPTables canary deleted, reloaded after iptables flush: protocol=IPv4"],
                false,
                Some(PERIOD),
            ),
            (Kept, Reloaded, vec!["Initialized iptables rules: protocol=IPv6"], false, Some(PERIOD)),
            (
                Failed,
                Kept,
                vec![
                    "Failed to initialize iptables rules; some functionality may be missing: protocol=IPv4: ended with \
                     code 3",
                ],
                true,
                Some(PERIOD),
            ),
            (Failed, Kept, vec![], true, Some(PERIOD)),
            (Reloaded, Kept, vec!["Initialized iptables rules: protocol=IPv4"], false, Some(PERIOD)),
            (
                NotSupported,
                NoProgram,
                vec!["No iptables support on this system; not creating the KUBE-IPTABLES-HINT chain"],
                false,
                Some(UNSUPPORTED_PERIOD),
            ),
            (NotSupported, NoProgram, vec![], false, Some(UNSUPPORTED_PERIOD)),
            (Kept, NoProgram, vec!["iptables rules are there: protocol=IPv4"], false, Some(PERIOD)),
        ];
        for (v4, v6, log, trouble, again) in hour {
            let judged = known.answered(&families(v4, v6));
            assert_eq!(
                (judged.log, judged.trouble.is_some(), judged.again),
                (log.into_iter().map(str::to_owned).collect(), trouble, again)
            );
        }
        let none = Known::default().answered(&families(NoProgram, NoProgram));
        assert_eq!((none.log.len(), none.trouble, none.again), (1, None, None));
    }

    #[test]
    fn nobody_there_is_told_once_and_asked_again() {
        let mut known = Known::default();
        let first = known.unanswered("no such file");
        assert_eq!(first.log, ["chains of iptables are not kept: no such file"]);
        assert_eq!(first.again, Some(UNANSWERED_PERIOD));
        assert_eq!(known.unanswered("no such file"), Judged { log: Vec::new(), ..first });
        assert_eq!(known.answered(&families(Outcome::Kept, Outcome::Kept)).log.len(), 2);
    }
}
