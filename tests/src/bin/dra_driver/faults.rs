//! What the driver is to do wrong: a file `faults.json`, a list of objects.
//!
//! `call` is the method's name, `act` one of
//!
//! | act | the driver |
//! |---|---|
//! | `fail` | does nothing and answers the whole call with INTERNAL and `message` |
//! | `hang` | waits until the object is gone from the file |
//! | `claim` | says `message` of the claim named `claim`, and works for all others |

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tonic::Status;

/// Between two looks whether a call may go on.
const LOOK_EVERY: Duration = Duration::from_millis(10);

fn all(state: &Path, call: &str) -> Vec<Value> {
    // The file is replaced in one step: it is whole, or not there.
    let bytes = std::fs::read(state.join("faults.json")).unwrap_or_default();
    let all: Vec<Value> = serde_json::from_slice(&bytes).unwrap_or_default();
    all.into_iter().filter(|one| one["call"] == call).collect()
}

/// Waits or fails as the file says.
pub(crate) async fn meet(state: &Path, call: &str) -> Result<(), Status> {
    while all(state, call).iter().any(|one| one["act"] == "hang") {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    match all(state, call).iter().find(|one| one["act"] == "fail") {
        Some(fault) => Err(Status::internal(fault["message"].as_str().unwrap_or_default())),
        None => Ok(()),
    }
}

/// What is said of one claim instead of its devices.
pub(crate) fn of_claim(state: &Path, call: &str, claim: &str) -> Option<String> {
    let faults = all(state, call);
    let fault = faults.iter().find(|one| one["act"] == "claim" && one["claim"] == claim)?;
    fault["message"].as_str().map(str::to_owned)
}
