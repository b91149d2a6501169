//! Which sockets have an attendant: what is there, and what was told of it. Pure.

use std::collections::BTreeMap;

/// What kubelet-volnetd tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SocketEvent {
    /// All that is there follows, up to `Listed`; what does not come again has gone.
    Restart,
    Added {
        socket: String,
        /// Another one for another socket of the same name.
        identity: String,
    },
    Removed {
        socket: String,
    },
    Listed,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Register what listens there.
    Begin { socket: String },
    /// Deregister it.
    End { socket: String },
    /// Everything that was there has been told, for the first time or again.
    Listed,
}

/// The sockets that are there.
#[derive(Debug, Default)]
pub struct Wanted {
    known: BTreeMap<String, String>,
    /// While a list comes: those of it.
    coming: Option<BTreeMap<String, String>>,
}

impl Wanted {
    /// Takes an event in; what to do because of it, in this order.
    pub fn take(&mut self, event: SocketEvent) -> Vec<Action> {
        match event {
            SocketEvent::Restart => {
                self.coming = Some(BTreeMap::new());
                Vec::new()
            }
            SocketEvent::Added { socket, identity } => {
                if let Some(coming) = &mut self.coming {
                    coming.insert(socket.clone(), identity.clone());
                }
                match self.known.insert(socket.clone(), identity.clone()) {
                    Some(before) if before == identity => Vec::new(),
                    Some(_) => vec![Action::End { socket: socket.clone() }, Action::Begin { socket }],
                    None => vec![Action::Begin { socket }],
                }
            }
            SocketEvent::Removed { socket } => {
                if let Some(coming) = &mut self.coming {
                    coming.remove(&socket);
                }
                self.known.remove(&socket).map(|_| Action::End { socket }).into_iter().collect()
            }
            SocketEvent::Listed => {
                let gone: Vec<String> = match self.coming.take() {
                    Some(coming) => self.known.keys().filter(|socket| !coming.contains_key(*socket)).cloned().collect(),
                    None => Vec::new(),
                };
                let mut actions = Vec::new();
                for socket in gone {
                    self.known.remove(&socket);
                    actions.push(Action::End { socket });
                }
                actions.push(Action::Listed);
                actions
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn added(socket: &str, identity: &str) -> SocketEvent {
        SocketEvent::Added { socket: socket.into(), identity: identity.into() }
    }

    fn begin(socket: &str) -> Action {
        Action::Begin { socket: socket.into() }
    }

    fn end(socket: &str) -> Action {
        Action::End { socket: socket.into() }
    }

    #[test]
    fn a_restart_of_volnetd_changes_nothing_but_what_changed() {
        let mut wanted = Wanted::default();
        for (event, actions) in [
            (SocketEvent::Restart, vec![]),
            (added("a", "1"), vec![begin("a")]),
            (added("b", "1"), vec![begin("b")]),
            (SocketEvent::Listed, vec![Action::Listed]),
            (added("c", "1"), vec![begin("c")]),
            // Made anew.
            (added("a", "2"), vec![end("a"), begin("a")]),
            (SocketEvent::Removed { socket: "b".into() }, vec![end("b")]),
            (SocketEvent::Removed { socket: "b".into() }, vec![]),
            (SocketEvent::Restart, vec![]),
            (added("a", "2"), vec![]),
            // Cut off, and from the beginning.
            (SocketEvent::Restart, vec![]),
            (added("d", "1"), vec![begin("d")]),
            (added("a", "2"), vec![]),
            (SocketEvent::Listed, vec![end("c"), Action::Listed]),
        ] {
            assert_eq!(wanted.take(event.clone()), actions, "{event:?}");
        }
    }

    fn events() -> impl Strategy<Value = Vec<SocketEvent>> {
        let one = prop_oneof![
            1 => Just(SocketEvent::Restart),
            1 => Just(SocketEvent::Listed),
            3 => ("[a-d]", "[1-2]").prop_map(|(socket, identity)| SocketEvent::Added { socket, identity }),
            2 => "[a-d]".prop_map(|socket| SocketEvent::Removed { socket }),
        ];
        prop::collection::vec(one, 0..40)
    }

    proptest! {
        #[test]
        fn an_attendant_begins_and_ends_in_turn(events in events()) {
            let mut wanted = Wanted::default();
            let mut running = std::collections::BTreeSet::new();
            for event in events {
                for action in wanted.take(event) {
                    match action {
                        Action::Begin { socket } => prop_assert!(running.insert(socket)),
                        Action::End { socket } => prop_assert!(running.remove(&socket)),
                        Action::Listed => {}
                    }
                }
                prop_assert_eq!(running.iter().collect::<Vec<_>>(), wanted.known.keys().collect::<Vec<_>>());
            }
        }
    }
}
