//! TLS of the HTTPS server: what it shows, what it speaks, whose clients it believes.
//!
//! | module | decides |
//! |---|---|
//! | [`policy`] | versions, cipher suites and groups that are spoken |
//! | [`pair`] | whether a certificate and a key are a pair; the pair that the node makes for itself |
//! | [`anyone`] | that a client's certificate is asked for and never refused in the handshake |
//! | [`follow`] | when files are read anew, and what becomes of broken ones |

pub mod anyone;
pub mod follow;
pub mod pair;
pub mod policy;

use std::sync::Arc;

use rustls::ServerConfig;
use tokio::sync::watch;

use super::authn::x509::ClientAuthority;

/// What is in force now. Cheap to clone; all clones see a change at once.
#[derive(Debug, Clone)]
pub struct Serving {
    config: watch::Receiver<Option<Arc<ServerConfig>>>,
    authority: watch::Receiver<Option<Arc<ClientAuthority>>>,
}

/// Whoever changes it.
#[derive(Debug)]
pub struct InForce {
    config: watch::Sender<Option<Arc<ServerConfig>>>,
    authority: watch::Sender<Option<Arc<ClientAuthority>>>,
}

/// Nothing is in force yet.
pub fn serving() -> (InForce, Serving) {
    let (config, shown) = watch::channel(None);
    let (authority, believed) = watch::channel(None);
    (InForce { config, authority }, Serving { config: shown, authority: believed })
}

impl Serving {
    /// For the next connection. Waits until there is a certificate; for ever when whoever changes it is gone.
    pub async fn config(&self) -> Arc<ServerConfig> {
        let mut config = self.config.clone();
        let found = config.wait_for(Option::is_some).await.ok().and_then(|config| config.clone());
        match found {
            Some(config) => config,
            None => std::future::pending().await,
        }
    }

    /// Whose clients are believed. None: nobody's, yet or at all.
    pub fn authority(&self) -> Option<Arc<ClientAuthority>> {
        self.authority.borrow().clone()
    }
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
