//! The HTTPS server over real connections: what certificates, tokens and rights lead to, and how much a hostile client
//! gets. The API server is the test kit's; the other processes are away.

mod limits;
mod rights;
mod tls;
mod who;
mod world;
