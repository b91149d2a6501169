//! What the node answers to those who ask it: one test binary of the files below, each of which says what it asks.
//! (`tests/README.md` says why they share one.)

mod container_metrics;
mod hostile_clients;
mod kubectl;
mod log_rotation;
mod logs;
mod metrics;
mod node_https;
mod oom;
mod prometheus;
mod runtime_stats;
mod stats;
mod streams;
mod streams_websocket;
mod traces;
mod views;
mod volume_panels;
