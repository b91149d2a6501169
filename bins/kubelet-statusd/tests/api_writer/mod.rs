//! What is written to the API server about pods, and the events: the real tasks between a kubelet-syncd that is a fake
//! behind the real gRPC server and an API server of a few lines.

mod api;
mod events;
mod pods;
mod syncd;
