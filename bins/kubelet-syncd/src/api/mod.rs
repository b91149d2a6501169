//! The API server as kubelet-syncd uses it: what it reads there for its pods, and nothing that it writes
//! (TokenRequest and SelfSubjectAccessReview apart, which only ask).
//!
//! | module | decides |
//! |---|---|
//! | [`pods`], [`mirrors`] | which pods the API server wants here, and what it has of each |
//! | [`node`] | what follows from our Node |
//! | [`objects`] | what the rest of the process may ask for |
//! | [`live`] | how those questions are answered with an API server |
//! | [`references`], [`store`] | which configMaps and secrets are needed, and how often they are read |
//! | [`services`], [`runtime_classes`] | what is kept of those |
//! | [`claim_watches`] | which pods look at their claims again, and when, where nodes may watch those |
//! | [`resource_claims`] | nothing: claims of drivers, by name |
//! | [`storage`] | what is read for volumes |
//! | [`trust_bundles`] | which trust anchors volumes show |
//! | [`pod_certificates`] | a pod's keys and certificates, and when they are replaced |
//! | [`tokens`] | when a service-account token is asked for |
//! | [`server`] | what an answer of the API server means |

pub mod claim_watches;
pub mod live;
pub mod mirrors;
pub mod node;
pub mod pod_certificates;
pub mod pods;
pub mod references;
pub mod resource_claims;
pub mod runtime_classes;
pub mod server;
pub mod services;
pub mod storage;
pub mod store;
pub mod tokens;
pub mod trust_bundles;
