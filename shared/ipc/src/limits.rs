//! How much of this process one peer may use: connections, calls, memory of requests, requests to the broker.
//!
//! Everything is counted by role, never over all peers: whoever uses its own share up is refused, and nobody else
//! notices. A stranger has no share at all, its connection is closed before a byte of it is read
//! (decision 33). The sum over the roles bounds the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::MAX_MESSAGE_BYTES;
use crate::peers::Role;
use crate::refusals::{Reason, Refusals};

/// Deadline of a call that names none, and the longest that any may take where [`crate::server::Services::longest`] says nothing else.
pub(crate) const DEFAULT_DEADLINE: Duration = Duration::from_secs(120);
/// For so long kubelet-volnetd goes on giving a volume to its group (fsGroup); whoever waits for it waits longer.
pub const GIVING: Duration = Duration::from_secs(24 * 60 * 60);
/// What a message's frame adds to the bytes of it that may wait in memory (HTTP/2's default frame).
const FRAME_BYTES: usize = 16 * 1024;
/// No request can hold more: one message that is not complete yet, and the frame that completes it.
const MAX_REQUEST_BYTES: usize = MAX_MESSAGE_BYTES + 2 * FRAME_BYTES;

/// The shares. One type for all processes, so that an operator meets one set of numbers.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Open gRPC connections of a role. Our own processes have one each, and kubelet-statusd one more for each list of pods that it
    /// serves; kubelet-ctl has one while it runs.
    pub connections: usize,
    /// Calls in flight of a role, over all its connections, from the headers to the end of the answer.
    pub calls: usize,
    /// Streams that a connection may have open (SETTINGS_MAX_CONCURRENT_STREAMS); a well-behaved client waits.
    pub streams: u32,
    /// Memory of requests that are not complete yet, bytes of a role. Thirty largest messages; most have a few hundred.
    pub request_bytes: usize,
    /// Headers of one call, bytes.
    pub header_bytes: u32,
    /// From accept to the client's first frame.
    pub handshake: Duration,
    /// Silence after which the peer is asked whether it reads, and how long the answer may take.
    pub keepalive: Duration,
    pub keepalive_patience: Duration,
    /// Requests to the broker in work at once, of a role.
    pub broker_active: usize,
    /// Requests to the broker that wait for that, of a role; more are told to come back.
    pub broker_waiting: usize,
    /// From accept to the broker's request: a client connects and sends in one step.
    pub broker_request: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 64,
            calls: 256,
            streams: 256,
            request_bytes: 8 * 1024 * 1024,
            header_bytes: 16 * 1024,
            handshake: Duration::from_secs(5),
            keepalive: Duration::from_secs(30),
            keepalive_patience: Duration::from_secs(20),
            broker_active: 16,
            broker_waiting: 256,
            broker_request: Duration::from_secs(2),
        }
    }
}

/// What a role uses now.
#[derive(Debug)]
struct Share {
    connections: AtomicUsize,
    calls: AtomicUsize,
    request_bytes: AtomicUsize,
    broker_waiting: AtomicUsize,
    broker_active: Arc<Semaphore>,
}

/// The limits and what is used of them, for one process's sockets.
#[derive(Debug)]
pub struct Gate {
    pub limits: Limits,
    pub refusals: Refusals,
    shares: [Share; Role::ALL.len()],
}

impl Gate {
    pub fn new(limits: Limits) -> Arc<Self> {
        let share = |_| Share {
            connections: AtomicUsize::new(0),
            calls: AtomicUsize::new(0),
            request_bytes: AtomicUsize::new(0),
            broker_waiting: AtomicUsize::new(0),
            broker_active: Arc::new(Semaphore::new(limits.broker_active)),
        };
        Arc::new(Gate { limits, refusals: Refusals::default(), shares: Role::ALL.map(share) })
    }

    fn take(
        self: &Arc<Self>,
        role: Role,
        of: fn(&Share) -> &AtomicUsize,
        amount: usize,
        limit: usize,
    ) -> Option<Taken> {
        let share = self.shares.get(role as usize)?;
        let added = |used: usize| used.checked_add(amount).filter(|sum| *sum <= limit);
        of(share).fetch_update(Ordering::Relaxed, Ordering::Relaxed, added).ok()?;
        Some(Taken { gate: self.clone(), role, of, amount })
    }

    /// One more connection; `None` when the role has all it may have.
    pub fn connection(self: &Arc<Self>, role: Role) -> Option<Taken> {
        self.take(role, |share| &share.connections, 1, self.limits.connections)
    }

    /// One more call.
    pub fn call(self: &Arc<Self>, role: Role) -> Option<Taken> {
        self.take(role, |share| &share.calls, 1, self.limits.calls)
    }

    /// One more request that waits for the broker.
    pub fn broker_request(self: &Arc<Self>, role: Role) -> Option<Taken> {
        self.take(role, |share| &share.broker_waiting, 1, self.limits.broker_waiting + self.limits.broker_active)
    }

    /// The semaphore of requests to the broker in work.
    pub fn broker_active(&self, role: Role) -> Arc<Semaphore> {
        match self.shares.get(role as usize) {
            Some(share) => share.broker_active.clone(),
            None => Arc::new(Semaphore::new(0)),
        }
    }

    /// A request's memory, empty at first.
    pub fn request(self: &Arc<Self>, role: Role) -> RequestBytes {
        RequestBytes(Taken { gate: self.clone(), role, of: |share| &share.request_bytes, amount: 0 })
    }

    /// Open connections of a role.
    pub fn connections(&self, role: Role) -> usize {
        self.shares.get(role as usize).map_or(0, |share| share.connections.load(Ordering::Relaxed))
    }

    /// Counts a refusal, and says so in the log when a line is due.
    pub fn refuse(&self, reason: Reason, peer: &dyn std::fmt::Display, why: &dyn std::fmt::Display) {
        if let Some(times) = self.refusals.record(reason) {
            tracing::warn!(reason = reason.as_str(), %peer, times, "refused: {why}");
        }
    }
}

/// A part of a role's share, given back when it is dropped.
#[derive(Debug)]
pub struct Taken {
    gate: Arc<Gate>,
    role: Role,
    of: fn(&Share) -> &AtomicUsize,
    amount: usize,
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(share) = self.gate.shares.get(self.role as usize) {
            (self.of)(share).fetch_sub(self.amount, Ordering::Relaxed);
        }
    }
}

/// The memory of one request that is being received.
#[derive(Debug)]
pub struct RequestBytes(Taken);

impl RequestBytes {
    /// So many more bytes arrived. False: the role has used its share up. A request's own part ends where a message
    /// cannot be longer: what came before has been decoded by then.
    pub fn grow(&mut self, bytes: usize) -> bool {
        let more = bytes.min(MAX_REQUEST_BYTES.saturating_sub(self.0.amount));
        let taken = self.0.gate.take(self.0.role, self.0.of, more, self.0.gate.limits.request_bytes);
        let Some(mut taken) = taken else { return false };
        self.0.amount += std::mem::take(&mut taken.amount);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_uses_up_no_share_but_its_own() {
        let gate = Gate::new(Limits { connections: 2, ..Limits::default() });
        let held = [gate.connection(Role::Statusd), gate.connection(Role::Statusd)];
        assert!(held.iter().all(Option::is_some));
        assert!(gate.connection(Role::Statusd).is_none());
        assert!(gate.connection(Role::Syncd).is_some(), "another's share is untouched");
        assert!(gate.call(Role::Statusd).is_some(), "connections are not calls");
        drop(held);
        assert_eq!(gate.connections(Role::Statusd), 0);
        assert!(gate.connection(Role::Statusd).is_some());
    }

    #[test]
    fn a_request_s_memory_is_counted_until_it_is_decoded() {
        let gate = Gate::new(Limits { request_bytes: 2 * MAX_REQUEST_BYTES, ..Limits::default() });
        let mut one = gate.request(Role::Syncd);
        let mut two = gate.request(Role::Syncd);
        // A stream of many messages holds no more than one of them at a time.
        assert!((0..100).all(|_| one.grow(MAX_MESSAGE_BYTES)));
        assert!(two.grow(MAX_REQUEST_BYTES));
        let mut three = gate.request(Role::Syncd);
        assert!(!three.grow(1));
        assert!(gate.request(Role::Operator).grow(1));
        drop(one);
        assert!(three.grow(1));
        drop((two, three));
        assert!(gate.request(Role::Syncd).grow(2 * MAX_REQUEST_BYTES));
    }
}
