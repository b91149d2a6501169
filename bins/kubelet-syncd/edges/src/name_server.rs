//! A name server for tests, and the resolver that asks it.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::resolver::Resolver;

/// What every name stands for.
pub(crate) const FOUND: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A name server that does not answer for names that begin with `silent`, before it is told to.
#[derive(Clone, Default)]
pub(crate) struct NameServer {
    asked: Arc<Mutex<Vec<String>>>,
    answers: Arc<AtomicBool>,
}

impl NameServer {
    pub(crate) fn resolver(&self) -> Resolver {
        let this = self.clone();
        Resolver::new(move |name| {
            this.asked.lock().push(name.to_owned());
            while name.starts_with("silent") && !this.answers.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            if name == "none" { Err(io::Error::other("no such name")) } else { Ok(vec![FOUND]) }
        })
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        let mut asked = self.asked.lock().clone();
        asked.sort();
        asked
    }

    /// Answers for all names from now on.
    pub(crate) fn answer(&self) {
        self.answers.store(true, Ordering::Relaxed);
    }
}
