//! Which addresses are served now, for an operator.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::routes::Surface;

/// The list. Cheap to clone; clones are the same list.
#[derive(Debug, Clone, Default)]
pub struct Listeners(Arc<Mutex<BTreeMap<SocketAddr, Surface>>>);

/// Takes the address off the list when the server ends.
#[derive(Debug)]
pub struct Listening {
    address: SocketAddr,
    list: Listeners,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.list.0.lock().remove(&self.address);
    }
}

impl Listeners {
    /// Notes that `address` is served for as long as the answer lives.
    pub fn add(&self, surface: Surface, address: SocketAddr) -> Listening {
        self.0.lock().insert(address, surface);
        Listening { address, list: self.clone() }
    }

    /// Addresses that are served now, as URLs.
    pub fn urls(&self) -> Vec<String> {
        self.0.lock().iter().map(|(address, surface)| format!("{}://{address}", scheme(*surface))).collect()
    }
}

const fn scheme(surface: Surface) -> &'static str {
    match surface {
        Surface::Healthz | Surface::ReadOnly => "http",
        Surface::Main => "https",
    }
}
