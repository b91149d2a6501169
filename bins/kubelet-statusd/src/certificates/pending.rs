//! A request that is not answered yet, kept in this process's own folder: a restart waits for the answer to the request that
//! is there instead of sending another one, which somebody would have to approve as well.

use bulkhead_daemon::{StateDir, StateError};
use bulkhead_types::chain;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::key::{Key, KeyError};
use super::leaf::Subject;
use super::request::Signer;

/// The form of the file; another one is not read.
const VERSION: u32 = 1;
/// What names of the server's own choice end with (apimachinery `util/rand`): nothing that could be read as a word.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

#[derive(Serialize, Deserialize)]
struct SavedRequest {
    version: u32,
    name: String,
    /// SEC 1, PEM.
    key: String,
    /// Of what was asked for: with other addresses it is another request.
    subject: String,
}

/// A request's key and name.
#[derive(Debug)]
pub struct Pending {
    pub key: Key,
    pub name: String,
}

const fn file(signer: Signer) -> &'static str {
    match signer {
        Signer::Client => "pending-client.json",
        Signer::Serving => "pending-serving.json",
    }
}

/// The request that is waited for, or a new one, which is kept before it is sent.
///
/// # Errors
/// No randomness.
pub fn load_or_make(state: &StateDir, signer: Signer, subject: &Subject) -> Result<Pending, KeyError> {
    let kept = state.read(file(signer)).unwrap_or_else(|error| {
        tracing::warn!(error = chain(&error), "failed to read the earlier certificate signing request");
        None
    });
    if let Some(pending) = kept.and_then(|bytes| decode(&bytes, subject)) {
        tracing::info!(csr = pending.name, "going on with the request of an earlier start");
        return Ok(pending);
    }
    let pending = Pending { key: Key::generate()?, name: new_name() };
    if let Err(error) = keep(state, signer, subject, &pending) {
        // Then a restart sends another one.
        tracing::warn!(error = chain(&error), "failed to keep the certificate signing request for the next start");
    }
    Ok(pending)
}

/// It is answered, or will not be.
pub fn forget(state: &StateDir, signer: Signer) {
    if let Err(error) = state.remove(file(signer)) {
        tracing::warn!(error = chain(&error), "failed to remove the answered certificate signing request");
    }
}

fn keep(state: &StateDir, signer: Signer, subject: &Subject, pending: &Pending) -> Result<(), StateError> {
    let kept = SavedRequest {
        version: VERSION,
        name: pending.name.clone(),
        key: pending.key.to_pem(),
        subject: digest(subject),
    };
    let bytes = serde_json::to_vec(&kept)
        .map_err(|error| StateError::Write { name: file(signer).to_owned(), source: error.into() })?;
    state.write(file(signer), &bytes)
}

fn decode(bytes: &[u8], subject: &Subject) -> Option<Pending> {
    let kept: SavedRequest = serde_json::from_slice(bytes).ok()?;
    let fits = kept.version == VERSION && kept.subject == digest(subject) && kept.name.starts_with("csr-");
    let key = Key::from_pem(kept.key.as_bytes()).filter(|_| fits)?;
    Some(Pending { key, name: kept.name })
}

fn digest(subject: &Subject) -> String {
    let words = format!("{subject:?}");
    Sha256::digest(words).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// As the server would choose it for `generateName: csr-`.
fn new_name() -> String {
    let mut random = [0_u8; 5];
    // Without randomness there is no key either; another request of the name `csr-bbbbb` would be told by its key.
    let _ = getrandom::fill(&mut random);
    let letter = |byte: u8| char::from(ALPHABET[usize::from(byte) % ALPHABET.len()]);
    format!("csr-{}", random.into_iter().map(letter).collect::<String>())
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::certificates::leaf::of_node;

    #[test]
    fn the_same_request_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let open = || StateDir::lock(OwnedFd::from(std::fs::File::open(folder.path()).unwrap())).unwrap();
        let subject = of_node("a");
        let first = load_or_make(&open(), Signer::Serving, &subject).unwrap();
        assert!(first.name.len() == 9 && first.name.starts_with("csr-"), "{}", first.name);
        let again = load_or_make(&open(), Signer::Serving, &subject).unwrap();
        assert_eq!((&again.name, again.key.to_pem()), (&first.name, first.key.to_pem()));
        let client = load_or_make(&open(), Signer::Client, &subject).unwrap();
        assert_ne!(client.key.to_pem(), first.key.to_pem());
        // With other addresses it is another request, and so it is after an answer.
        let mut moved = subject.clone();
        moved.addresses.insert("192.0.2.1".parse().unwrap());
        let other = load_or_make(&open(), Signer::Serving, &moved).unwrap();
        assert_ne!(other.key.to_pem(), first.key.to_pem());
        forget(&open(), Signer::Serving);
        assert_ne!(load_or_make(&open(), Signer::Serving, &moved).unwrap().key.to_pem(), other.key.to_pem());
        // What cannot be read is replaced.
        for bad in ["", "{}", "{\"version\":2}"] {
            std::fs::write(folder.path().join("pending-client.json"), bad).unwrap();
            let made = load_or_make(&open(), Signer::Client, &subject).unwrap();
            assert_ne!(made.key.to_pem(), client.key.to_pem());
        }
    }
}
