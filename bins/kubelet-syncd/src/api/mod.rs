//! The API server as kubelet-syncd uses it: what it reads there for its pods, and nothing that it writes (TokenRequest
//! apart, which only asks).

pub mod objects;
