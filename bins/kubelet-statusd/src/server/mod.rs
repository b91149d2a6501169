//! The HTTP servers: who is let in, and how an answer is made.
//!
//! | module | decides |
//! |---|---|
//! | [`https`] | how the main server comes about |
//! | [`listener`], [`connections`], [`source`] | which connections there are, and which goes when there are too many |
//! | [`connection`], [`activity`], [`wire`], [`sending`], [`served_body`], [`limits`], [`connection_metrics`] | what a connection may take of time and memory |
//! | [`tls`] | what is shown and spoken, whose certificates are believed |
//! | [`gate`] | who is let through to what: [`authn`], then [`authz`] |
//! | [`reviews`] | what the API server is asked about that |
//! | [`answer`] | how an answer is made |

pub mod activity;
pub mod answer;
pub mod authn;
pub mod authz;
pub mod connection;
pub mod connection_metrics;
pub mod connections;
pub mod gate;
pub mod https;
pub mod limits;
pub mod listener;
pub mod ports;
pub mod review_metrics;
pub mod reviews;
pub mod sending;
pub mod served_body;
pub mod source;
pub mod tls;
pub mod wire;
