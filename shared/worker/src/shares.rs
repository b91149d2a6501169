//! Who may have a worker now. A worker in a file system that does not answer is kept for as long as that lasts, and a pod chooses
//! the servers of its volumes: so each party has a share, and each kind of request has places that no other kind can take.

use std::collections::BTreeMap;
use std::fmt;

use crate::hanging::Hanging;

/// What a request enters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// File systems without which there is no node: the root directory's, the images', the logs'.
    Node,
    /// What pods have on the disks and in the memory of this machine.
    Local,
    /// File systems and devices that somebody else serves, and of which a pod may be who serves them: NFS, iSCSI, FUSE, a
    /// driver's.
    Foreign,
    /// Whether a mount is served by somebody, and nothing else of it. Who cannot be asked is left as it is, so that questions that hang
    /// stand in the way of no mount and unmount.
    Question,
    /// All files of one volume, wherever it is. It may take hours with nothing amiss, so nobody can tell one that is at work from one
    /// that hangs, and who finds no place waits for both.
    Walk,
}

impl Kind {
    /// Whether a request that is not answered for a while is taken for one that works.
    pub const fn takes_long(self) -> bool {
        matches!(self, Kind::Walk)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Node => "the node's own file systems",
            Kind::Local => "what pods have on this machine",
            Kind::Foreign => "file systems and devices that others serve",
            Kind::Question => "questions whether mounts are served",
            Kind::Walk => "all files of volumes",
        })
    }
}

/// Whom a request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Party {
    pub kind: Kind,
    /// In words: "pod <uid>".
    pub whose: String,
}

impl Party {
    pub fn node(whose: impl Into<String>) -> Self {
        Party { kind: Kind::Node, whose: whose.into() }
    }

    pub fn local(whose: impl Into<String>) -> Self {
        Party { kind: Kind::Local, whose: whose.into() }
    }

    pub fn foreign(whose: impl Into<String>) -> Self {
        Party { kind: Kind::Foreign, whose: whose.into() }
    }

    pub fn question(whose: impl Into<String>) -> Self {
        Party { kind: Kind::Question, whose: whose.into() }
    }

    pub fn walk(whose: impl Into<String>) -> Self {
        Party { kind: Kind::Walk, whose: whose.into() }
    }
}

/// How many requests of one kind there may be. None of the numbers is zero, but for a kind that is never asked for.
#[derive(Debug, Clone, Copy)]
pub struct Share {
    /// In work and hanging together.
    pub places: usize,
    /// In work at once, without those that hang.
    pub at_once: usize,
    /// For one party, in work and hanging together.
    pub of_one: usize,
}

/// Requests that have a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    pub working: usize,
    pub hanging: usize,
}

impl Count {
    const fn sum(self) -> usize {
        self.working + self.hanging
    }
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Begin,
    /// Until one that works is done or hangs.
    Wait,
    /// Its own party's requests hang, as many as it may have.
    PartyHangs,
    /// The whole kind's do.
    KindHangs,
}

impl Share {
    /// Of a kind that is never asked for.
    pub const NONE: Share = Share { places: 0, at_once: 0, of_one: 0 };

    /// What becomes of one more request, beside `all` of its kind, `own` of which are its party's. Who waits does so for one that
    /// works, never for one that hangs. Pure.
    pub const fn verdict(&self, all: Count, own: Count) -> Verdict {
        if own.hanging >= self.of_one {
            return Verdict::PartyHangs;
        }
        if all.hanging >= self.places {
            return Verdict::KindHangs;
        }
        if all.working < self.at_once && all.sum() < self.places && own.sum() < self.of_one {
            return Verdict::Begin;
        }
        Verdict::Wait
    }
}

/// The shares of all kinds. None can take a place of another.
#[derive(Debug, Clone, Copy)]
pub struct Shares {
    pub node: Share,
    pub local: Share,
    pub foreign: Share,
    pub questions: Share,
    /// As many as have a place may wait for one ([`Kind::Walk`]).
    pub walks: Share,
}

impl Shares {
    pub const fn of(&self, kind: Kind) -> &Share {
        match kind {
            Kind::Node => &self.node,
            Kind::Local => &self.local,
            Kind::Foreign => &self.foreign,
            Kind::Question => &self.questions,
            Kind::Walk => &self.walks,
        }
    }

    /// Requests that can have a worker at once, those that hang included.
    pub const fn places(&self) -> usize {
        let Shares { node, local, foreign, questions, walks } = self;
        node.places + local.places + foreign.places + questions.places + walks.places
    }
}

#[derive(Debug)]
struct Request {
    party: Party,
    hanging: Option<Hanging>,
}

/// The requests that have a worker.
#[derive(Debug, Default)]
pub struct Taken {
    requests: BTreeMap<u64, Request>,
    next: u64,
}

impl Taken {
    pub fn verdict(&self, shares: &Shares, party: &Party) -> Verdict {
        let count = |is: &dyn Fn(&Party) -> bool| {
            let of = self.requests.values().filter(|request| is(&request.party));
            of.fold(Count::default(), |count, request| match request.hanging {
                Some(_) if !request.party.kind.takes_long() => Count { hanging: count.hanging + 1, ..count },
                _ => Count { working: count.working + 1, ..count },
            })
        };
        shares.of(party.kind).verdict(count(&|other| other.kind == party.kind), count(&|other| other == party))
    }

    /// Answers the request's key.
    pub fn begin(&mut self, party: Party) -> u64 {
        let key = self.next;
        self.next += 1;
        self.requests.insert(key, Request { party, hanging: None });
        key
    }

    pub fn hangs(&mut self, key: u64, hanging: Hanging) {
        if let Some(request) = self.requests.get_mut(&key) {
            request.hanging = Some(hanging);
        }
    }

    /// It is done; answers what was said of it while it hung.
    pub fn end(&mut self, key: u64) -> Option<Hanging> {
        self.requests.remove(&key)?.hanging
    }

    /// The requests that hang, of the parties that `is` names.
    pub fn hanging(&self, is: impl Fn(&Party) -> bool) -> impl Iterator<Item = &Hanging> {
        self.requests.values().filter(move |request| is(&request.party)).filter_map(|request| request.hanging.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokio::time::Instant;

    const SHARE: Share = Share { places: 6, at_once: 2, of_one: 2 };
    const SHARES: Shares = Shares { node: SHARE, local: SHARE, foreign: SHARE, questions: SHARE, walks: SHARE };

    fn hanging() -> Hanging {
        Hanging { pid: 1, what: "statfs of /v".into(), since: Instant::now(), takes_long: false }
    }

    #[test]
    fn who_may_have_a_worker() {
        // (working, hanging) of the kind, of which the party's own.
        let table = [
            ((0, 0), (0, 0), Verdict::Begin),
            ((1, 0), (1, 0), Verdict::Begin),
            ((2, 0), (0, 0), Verdict::Wait),
            ((0, 1), (0, 1), Verdict::Begin),
            ((1, 1), (1, 1), Verdict::Wait),
            ((0, 2), (0, 2), Verdict::PartyHangs),
            ((0, 5), (0, 2), Verdict::PartyHangs),
            ((0, 5), (0, 0), Verdict::Begin),
            ((1, 5), (0, 0), Verdict::Wait),
            ((0, 6), (0, 0), Verdict::KindHangs),
            ((0, 6), (0, 2), Verdict::PartyHangs),
        ];
        let count = |(working, hanging)| Count { working, hanging };
        for (all, own, verdict) in table {
            assert_eq!(SHARE.verdict(count(all), count(own)), verdict, "{all:?}, of which {own:?}");
        }
    }

    #[test]
    fn one_pod_s_silent_volumes_are_its_own_trouble() {
        let mut taken = Taken::default();
        let attacker = Party::foreign("pod attacker");
        for _ in 0..61 {
            if taken.verdict(&SHARES, &attacker) == Verdict::Begin {
                let key = taken.begin(attacker.clone());
                taken.hangs(key, hanging());
            }
        }
        assert_eq!(taken.hanging(|party| *party == attacker).count(), SHARE.of_one);
        assert_eq!(taken.verdict(&SHARES, &attacker), Verdict::PartyHangs);
        let others = [
            Party::foreign("pod other"),
            Party::local("pod other"),
            Party::local("pod attacker"),
            Party::question("pod attacker"),
            Party::node("/var/lib/kubelet"),
        ];
        for party in others {
            assert_eq!(taken.verdict(&SHARES, &party), Verdict::Begin, "{party:?}");
        }
        // More pods than there are places: those that others serve wait for each other, and nobody else for them.
        for pod in 0..61 {
            let party = Party::foreign(format!("pod {pod}"));
            if taken.verdict(&SHARES, &party) == Verdict::Begin {
                let key = taken.begin(party);
                taken.hangs(key, hanging());
            }
        }
        assert_eq!(taken.verdict(&SHARES, &Party::foreign("pod other")), Verdict::KindHangs);
        assert_eq!(taken.verdict(&SHARES, &Party::local("pod other")), Verdict::Begin);
        assert_eq!(taken.verdict(&SHARES, &Party::node("/var/lib/kubelet")), Verdict::Begin);
    }

    #[test]
    fn a_walk_that_is_named_is_waited_for_and_stands_in_no_others_way() {
        // Walks that have been named, of pod a and of others: what becomes of one more of pod a, and of pod b.
        let table = [
            (0, 0, Verdict::Begin, Verdict::Begin),
            (1, 0, Verdict::Begin, Verdict::Begin),
            (2, 0, Verdict::Wait, Verdict::Begin),
            (0, 6, Verdict::Wait, Verdict::Wait),
            (2, 4, Verdict::Wait, Verdict::Wait),
        ];
        let walks = Share { at_once: SHARE.places, ..SHARE };
        let shares = Shares { walks, ..SHARES };
        for (own, others, its, another) in table {
            let mut taken = Taken::default();
            let whose = (0..own).map(|_| "pod a".to_owned()).chain((0..others).map(|n| format!("pod {n}")));
            for pod in whose {
                let key = taken.begin(Party::walk(pod));
                taken.hangs(key, hanging());
            }
            assert_eq!(taken.verdict(&shares, &Party::walk("pod a")), its, "{own} and {others}");
            assert_eq!(taken.verdict(&shares, &Party::walk("pod b")), another, "{own} and {others}");
            for party in [Party::foreign("pod a"), Party::local("pod a"), Party::node("/")] {
                assert_eq!(taken.verdict(&shares, &party), Verdict::Begin, "{party:?}");
            }
        }
    }

    fn party() -> impl Strategy<Value = Party> {
        let kind = prop_oneof![
            Just(Kind::Node),
            Just(Kind::Local),
            Just(Kind::Foreign),
            Just(Kind::Question),
            Just(Kind::Walk)
        ];
        (kind, 0..6_u8).prop_map(|(kind, whose)| Party { kind, whose: whose.to_string() })
    }

    #[derive(Debug, Clone)]
    enum Step {
        Ask(Party),
        /// The request with this key, if there is one.
        Hang(u64),
        End(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![3 => party().prop_map(Step::Ask), 2 => (0..60_u64).prop_map(Step::Hang), 1 => (0..60_u64).prop_map(Step::End)]
    }

    proptest! {
        #[test]
        fn shares_are_kept_and_nobody_waits_for_what_hangs(
            places in 1..8_usize, at_once in 1..4_usize, of_one in 1..4_usize,
            steps in proptest::collection::vec(step(), 0..200),
        ) {
            let share = Share { places, at_once, of_one };
            let shares = Shares { node: share, local: share, foreign: share, questions: share, walks: share };
            let mut taken = Taken::default();
            let works = |one: &Request| one.hanging.is_none() || one.party.kind.takes_long();
            for step in steps {
                match step {
                    Step::Ask(party) => match taken.verdict(&shares, &party) {
                        Verdict::Begin => drop(taken.begin(party)),
                        Verdict::Wait => prop_assert!(
                            taken.requests.values().any(|other| other.party.kind == party.kind && works(other))
                        ),
                        Verdict::PartyHangs => prop_assert!(taken.hanging(|other| *other == party).count() >= of_one),
                        Verdict::KindHangs => prop_assert!(taken.hanging(|other| other.kind == party.kind).count() >= places),
                    },
                    Step::Hang(key) => taken.hangs(key, hanging()),
                    Step::End(key) => drop(taken.end(key)),
                }
                for request in taken.requests.values() {
                    let of = |is: &dyn Fn(&Request) -> bool| taken.requests.values().filter(|other| is(other)).count();
                    let kind = |other: &Request| other.party.kind == request.party.kind;
                    prop_assert!(of(&kind) <= places);
                    prop_assert!(of(&|other| kind(other) && works(other)) <= at_once);
                    prop_assert!(of(&|other| other.party == request.party) <= of_one);
                }
            }
        }
    }
}
