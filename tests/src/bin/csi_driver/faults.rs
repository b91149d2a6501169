//! What the driver is to do wrong: a file `faults.json`, a list of objects, of which the first that fits a call is obeyed.
//!
//! `call` is the method's name (`NodeStageVolume`, `GetInfo`), `volume` a volume's handle (absent: any), `act` one of
//!
//! | act | the driver |
//! |---|---|
//! | `fail` | does nothing and answers with `code` and `message` |
//! | `work-then-fail` | does its work, then answers so |
//! | `hang` | waits until the object is gone from the file, then does its work and answers |
//! | `late` | waits for `milliseconds`, then does its work and answers |
//! | `lie` | answers well and does nothing |
//! | `smaller` | does its work, and says that the volume is half as large as it was asked to be (NodeExpandVolume) |
//! | `link` | makes of the target a symbolic link to `to`, and answers well |
//! | `big` | answers with more than 4 MiB (calls whose answers have room for that) |
//! | `die` | is gone, without an answer |

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tonic::{Code, Status};

/// Between two looks whether a call may go on.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// How a call goes on after its fault, if it has one.
#[derive(Debug)]
pub(crate) enum Course {
    Work,
    WorkThenFail(Status),
    Lie,
    Smaller,
    Link(PathBuf),
    Big,
}

/// Waits, dies or fails as the file says.
pub(crate) async fn meet(file: &Path, call: &str, volume: &str) -> Result<Course, Status> {
    let Some(fault) = find(file, call, volume) else { return Ok(Course::Work) };
    let text = |field: &str| fault[field].as_str().unwrap_or_default().to_owned();
    let failure = || Status::new(code(&text("code")), text("message"));
    match text("act").as_str() {
        "fail" => return Err(failure()),
        "work-then-fail" => return Ok(Course::WorkThenFail(failure())),
        "hang" => {
            while find(file, call, volume).is_some_and(|now| now == fault) {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
        "late" => tokio::time::sleep(Duration::from_millis(fault["milliseconds"].as_u64().unwrap_or_default())).await,
        "lie" => return Ok(Course::Lie),
        "smaller" => return Ok(Course::Smaller),
        "link" => return Ok(Course::Link(text("to").into())),
        "big" => return Ok(Course::Big),
        "die" => {
            let _ = kill(Pid::this(), Signal::SIGKILL);
        }
        other => return Err(Status::internal(format!("there is no fault {other:?}"))),
    }
    Ok(Course::Work)
}

fn find(file: &Path, call: &str, volume: &str) -> Option<Value> {
    // The file is replaced in one step: it is whole, or not there.
    let all: Value = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
    let fits = |one: &&Value| one["call"] == call && (one["volume"].is_null() || one["volume"] == volume);
    all.as_array()?.iter().find(fits).cloned()
}

/// A code by the name that gRPC gives it.
fn code(name: &str) -> Code {
    let all = (1..=16).map(Code::from_i32);
    all.into_iter().find(|code| screaming(*code) == name).unwrap_or(Code::Internal)
}

/// `Code::DeadlineExceeded` is DEADLINE_EXCEEDED.
pub(crate) fn screaming(code: Code) -> String {
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}
