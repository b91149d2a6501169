//! Which budget a request comes from.

/// Requests of one lane share connections and a rate limit, as upstream's three clients do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    /// kubeAPIQPS and kubeAPIBurst.
    Main,
    /// Node status and lease: no limit, a short time-out, connections of its own.
    Heartbeat,
    /// A limiter of its own, of 50 in a second and 100 at once.
    Events,
}
