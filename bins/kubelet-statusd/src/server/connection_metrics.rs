//! What becomes of connections, counted by port.

use prometheus::{IntCounterVec, Opts, Registry};

use crate::routes::Surface;

/// Why the server closed a connection that its client would have kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// The client took nothing of what it was sent.
    Stalled,
    /// Another client had no place, and this one had proved nothing, or was quiet for longest.
    MadeRoom,
    /// It was new, and all others were at work.
    Refused,
}

impl Closed {
    const ALL: [Closed; 3] = [Closed::Stalled, Closed::MadeRoom, Closed::Refused];

    fn reason(self) -> &'static str {
        match self {
            Closed::Stalled => "stalled",
            Closed::MadeRoom => "made_room",
            Closed::Refused => "refused",
        }
    }
}

fn port(surface: Surface) -> &'static str {
    match surface {
        Surface::Healthz => "healthz",
        Surface::ReadOnly => "readonly",
        Surface::Main => "readwrite",
    }
}

/// `bulkhead_connections_closed_total{port,reason}`.
#[derive(Debug, Clone)]
pub struct ConnectionMetrics(IntCounterVec);

impl ConnectionMetrics {
    /// # Errors
    /// A family of the same name exists already.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let closed = IntCounterVec::new(
            Opts::new(
                "bulkhead_connections_closed_total",
                "[ALPHA] Connections that the node agent's servers closed or refused, by port and by why: the client took \
                 nothing of what it was sent, it made room for another, or there was no room for it.",
            ),
            &["port", "reason"],
        )?;
        for surface in [Surface::Healthz, Surface::ReadOnly, Surface::Main] {
            for why in Closed::ALL {
                closed.with_label_values(&[port(surface), why.reason()]);
            }
        }
        registry.register(Box::new(closed.clone()))?;
        Ok(ConnectionMetrics(closed))
    }

    /// A connection of that port was closed, or not let in.
    pub fn closed(&self, surface: Surface, why: Closed) {
        self.0.with_label_values(&[port(surface), why.reason()]).inc();
    }
}
