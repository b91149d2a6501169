//! The table of what is to be done, and what holds for all of it.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;

use super::decide::{self, CertificateSettings, CertificateState, Kubeconfig, Memory, Shown, Todo, Why};
use super::leaf::{Chain, Subject, of_node};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

/// Good from -100 to `end`.
fn chain(end: i64) -> Chain {
    Chain { subject: of_node("a"), not_before: at(-100), not_after: at(end), first_end: at(end) }
}

const START: Memory = Memory { was_good: false, is_first: false, share: 0.5 };
const LATER: Memory = Memory { was_good: true, ..START };

fn seen(kubeconfig: Kubeconfig, signed: Option<Chain>, can_bootstrap: bool) -> CertificateState {
    CertificateState { kubeconfig, signed, can_bootstrap }
}

fn ask(rotates: bool, bootstraps: bool, memory: Memory, seen: &CertificateState) -> Todo {
    decide::client(CertificateSettings { rotates, bootstraps }, seen, memory, &of_node("a"), at(0))
}

#[test]
fn a_node_begins() {
    use Kubeconfig::{Missing, Unusable, Usable};
    for rotates in [false, true] {
        for broken in [
            Missing,
            Unusable,
            Usable(Shown::Nothing),
            Usable(Shown::Lost),
            Usable(Shown::Named(chain(-1))),
            Usable(Shown::Inline(chain(0))),
        ] {
            let seen = seen(broken, None, true);
            assert_eq!(ask(rotates, true, START, &seen), Todo::Bootstrap, "{seen:?}");
        }
        // One certificate of the chain has ended.
        let half = Chain { first_end: at(-1), ..chain(1000) };
        assert_eq!(ask(rotates, true, START, &seen(Usable(Shown::Named(half)), None, true)), Todo::Bootstrap);
        // What was good once and is broken now is the operator's work in progress; what has ended is not.
        for broken in [Missing, Unusable, Usable(Shown::Lost)] {
            assert_eq!(ask(rotates, true, LATER, &seen(broken, None, true)), Todo::Idle);
        }
        assert_eq!(ask(rotates, true, LATER, &seen(Usable(Shown::Named(chain(-1))), None, true)), Todo::Bootstrap);
        // Nothing to begin with.
        for broken in [Missing, Unusable, Usable(Shown::Lost)] {
            assert_eq!(ask(rotates, true, START, &seen(broken, None, false)), Todo::Idle);
        }
    }
    // What begins with begins when its files come, in whichever order.
    for (first, bootstraps_later) in [
        (Missing, true),
        (Unusable, true),
        (Usable(Shown::Lost), true),
        (Usable(Shown::Nothing), false),
        (Usable(Shown::Named(chain(50))), false),
    ] {
        let mut memory = START;
        memory.learn(&first);
        let todo = ask(true, true, memory, &seen(Usable(Shown::Lost), None, true));
        assert_eq!(todo == Todo::Bootstrap, bootstraps_later, "{first:?}");
    }
    // Without renewal the certificate's end is waited for, where another could be got then.
    let good = seen(Usable(Shown::Named(chain(50))), None, true);
    assert_eq!(ask(false, true, START, &good), Todo::Until(at(50)));
    assert_eq!(ask(false, false, START, &good), Todo::Idle);
}

#[test]
fn the_next_end_is_waited_for() {
    use Kubeconfig::{Missing, Usable};
    let left = |kubeconfig: Kubeconfig, signed: Option<Chain>| {
        decide::until_another_end(&seen(kubeconfig, signed, true), at(0))
    };
    assert_eq!(left(Missing, None), Duration::MAX);
    assert_eq!(left(Missing, Some(chain(7))), Duration::from_secs(7));
    assert_eq!(left(Usable(Shown::Inline(chain(9))), Some(chain(7))), Duration::from_secs(7));
    assert_eq!(left(Usable(Shown::Named(chain(5))), Some(chain(-1))), Duration::from_secs(5));
    // What has ended already is no reason to look again and again.
    assert_eq!(left(Usable(Shown::Named(chain(0))), Some(chain(-1))), Duration::MAX);
}

#[test]
fn a_client_certificate_is_kept_and_renewed() {
    use Kubeconfig::{Missing, Usable};
    let (good, due, ended) = (chain(1000), chain(10), chain(-1));
    let until = |chain: &Chain| Todo::Until(decide::deadline(chain, 0.5));
    let nothing = || Usable(Shown::Nothing);
    for (kubeconfig, signed, memory, todo) in [
        // As `kubeadm init` leaves it: kept first, then replaced at once.
        (Usable(Shown::Inline(good.clone())), None, START, Todo::Keep),
        (Usable(Shown::Inline(good.clone())), Some(ended.clone()), START, Todo::Keep),
        (
            Usable(Shown::Inline(good.clone())),
            Some(good.clone()),
            Memory { is_first: true, ..LATER },
            Todo::Renew(Why::First),
        ),
        (Usable(Shown::Inline(good.clone())), Some(good.clone()), LATER, until(&good)),
        (Usable(Shown::Inline(ended.clone())), Some(good.clone()), LATER, until(&good)),
        (Usable(Shown::Inline(ended.clone())), None, LATER, Todo::Renew(Why::Ended)),
        (Usable(Shown::Inline(good.clone())), Some(due.clone()), LATER, Todo::Renew(Why::Due)),
        (Usable(Shown::Named(good.clone())), None, START, until(&good)),
        (Usable(Shown::Named(due.clone())), None, START, Todo::Renew(Why::Due)),
        (Usable(Shown::Named(ended.clone())), Some(ended), START, Todo::Renew(Why::Ended)),
        (Usable(Shown::Named(due)), Some(good.clone()), START, until(&good)),
        // A token asks for a certificate.
        (nothing(), None, START, Todo::Renew(Why::None)),
        (nothing(), Some(good.clone()), START, until(&good)),
        (Usable(Shown::Lost), None, START, Todo::Idle),
        (Missing, None, START, Todo::Idle),
        (Missing, Some(good.clone()), LATER, until(&good)),
    ] {
        let seen = seen(kubeconfig, signed, false);
        assert_eq!(ask(true, false, memory, &seen), todo, "{seen:?}");
        assert_eq!(ask(true, true, memory, &seen), todo, "a bootstrap kubeconfig that is gone: {seen:?}");
        assert_eq!(ask(false, false, memory, &seen), Todo::Idle, "{seen:?}");
    }
    let other = Chain { subject: of_node("b"), ..chain(1000) };
    let seen = seen(Usable(Shown::Named(other)), None, false);
    assert_eq!(ask(true, false, START, &seen), Todo::Renew(Why::OtherSubject));
}

#[test]
fn other_names_and_addresses_need_another_certificate() {
    let with = |names: &[&str], addresses: &[&str]| Subject {
        dns_names: names.iter().map(|name| (*name).to_owned()).collect(),
        addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
        ..of_node("a")
    };
    let has = Chain { subject: with(&["a", "b"], &["192.0.2.1", "fd00::1"]), ..chain(1000) };
    let ask = |subject: Option<&Subject>| decide::renewal(Some(&has), subject, 0.5, at(0));
    assert_eq!(ask(None), Todo::Idle, "nothing can be asked for");
    for less in [with(&[], &[]), with(&["a"], &["fd00::1"]), has.subject.clone()] {
        assert!(matches!(ask(Some(&less)), Todo::Until(_)));
    }
    let groups = Subject { organizations: BTreeSet::from(["x".to_owned()]), ..with(&[], &[]) };
    for more in [with(&["c"], &[]), with(&[], &["192.0.2.2"]), of_node("b"), groups] {
        assert_eq!(ask(Some(&more)), Todo::Renew(Why::OtherSubject));
    }
    assert_eq!(decide::renewal(None, Some(&of_node("a")), 0.5, at(0)), Todo::Renew(Why::None));
}

#[test]
fn pauses_as_upstream_makes_them() {
    let pauses: Vec<f64> = (0..7).map(|failures| decide::pause(failures, 0.0).as_secs_f64()).collect();
    assert_eq!(pauses, [0.0, 2.0, 4.0, 8.0, 16.0, 32.0, 32.0]);
    assert_eq!(decide::pause(4, 1.0), Duration::from_millis(17_600));
    assert_eq!(decide::pause(u32::MAX, 1.0), Duration::from_secs(32));
}

proptest! {
    #[test]
    fn the_deadline_is_in_the_last_third(life in 1_i64..400_000_000, share in 0.0..=1.0_f64) {
        let chain = Chain { not_before: at(0), not_after: at(life), first_end: at(life), ..chain(life) };
        let part = decide::deadline(&chain, share).duration_since(at(0)).as_secs_f64() / at(life).duration_since(at(0)).as_secs_f64();
        prop_assert!((0.699..=0.901).contains(&part), "{part}");
    }

    /// Whatever is seen: no certificate is requested without need, and a wait never ends in the past.
    #[test]
    fn nothing_unwanted(
        (rotates, bootstraps, was_good, is_first, can_bootstrap) in any::<(bool, bool, bool, bool, bool)>(),
        which in 0..6, end in -50_i64..50, signed in proptest::option::of(-50_i64..50), share in 0.0..=1.0_f64,
    ) {
        let kubeconfig = match which {
            0 => Kubeconfig::Missing,
            1 => Kubeconfig::Unusable,
            2 => Kubeconfig::Usable(Shown::Nothing),
            3 => Kubeconfig::Usable(Shown::Lost),
            4 => Kubeconfig::Usable(Shown::Named(chain(end))),
            _ => Kubeconfig::Usable(Shown::Inline(chain(end))),
        };
        let seen = seen(kubeconfig, signed.map(chain), can_bootstrap);
        match ask(rotates, bootstraps, Memory { was_good, is_first, share }, &seen) {
            Todo::Bootstrap => prop_assert!(bootstraps && can_bootstrap),
            Todo::Keep | Todo::Renew(_) => prop_assert!(rotates),
            Todo::Until(until) => prop_assert!(until > at(0)),
            Todo::Idle => {}
        }
    }
}
