//! One question, one call of a driver.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use bulkhead_config::NodeConfig;
use bulkhead_ipc::common::flex_reply::Outcome;
use bulkhead_ipc::common::flex_request::Act;
use bulkhead_ipc::common::{FlexReply, FlexRequest};
use bulkhead_types::{FlexDriver, PodUid, VolumeName};

use crate::calls::{self, Calls, Left};
use crate::verdict::{Answer, DEVICE_MAX, Verdict, verdict};
use crate::{driver, options, place};

/// A driver says what it can do, or how a volume is called.
const SAY: Duration = Duration::from_secs(30);
/// Upstream waits for ever. What is formatted or fetched first takes minutes.
const CALL: Duration = Duration::from_secs(10 * 60);

/// Where things are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The node's root directory as the operator wrote it: drivers are told their paths by this name, as upstream tells them, for
    /// one whose work a container does has no other. Links may be on its way and nowhere below it.
    pub root: PathBuf,
    /// `volumePluginDir`.
    pub drivers: PathBuf,
}

impl Places {
    pub fn of(config: &NodeConfig) -> Self {
        let drivers = PathBuf::from(&config.kubelet.volume_plugin_dir);
        Places { root: config.paths.root_dir.clone(), drivers }
    }
}

/// What is to be run.
struct Call {
    driver: FlexDriver,
    program: PathBuf,
    command: &'static str,
    arguments: Vec<OsString>,
    deadline: Duration,
}

/// Answers in upstream's words; and a driver that cannot be ended.
pub async fn answer(places: &Places, calls: &Calls, question: &FlexRequest) -> (FlexReply, Option<Left>) {
    let call = match call(places, question) {
        Ok(call) => call,
        Err(why) => return (failed(why), None),
    };
    let Some(place) = calls.place(&call.driver) else {
        return (failed(format!("too many calls of FlexVolume driver {} have not ended", call.driver)), None);
    };
    let Call { driver, program, command, arguments, deadline } = call;
    match calls::run(&program, arguments, deadline, place).await {
        Ok(calls::Outcome::Said(said)) => (reply(verdict(command, &said)), None),
        Ok(calls::Outcome::Killed) => {
            let message =
                format!("FlexVolume driver {driver} has not ended {command} within {deadline:?} and was killed");
            tracing::warn!("{message}");
            (late(message), None)
        }
        Ok(calls::Outcome::Left(left)) => {
            let message = format!(
                "FlexVolume driver {driver} has not ended {command} within {deadline:?}; it cannot be killed and is left behind"
            );
            tracing::warn!("{message}");
            (late(message), Some(left))
        }
        Err(error) => {
            (failed(format!("FlexVolume driver {driver}: {} cannot be run: {error}", program.display())), None)
        }
    }
}

fn call(places: &Places, question: &FlexRequest) -> Result<Call, String> {
    let driver = FlexDriver::parse(&question.driver).map_err(|error| error.to_string())?;
    let volume = || VolumeName::parse(&question.volume).map_err(|error| error.to_string());
    let pod = || PodUid::parse(&question.pod_uid).map_err(|error| error.to_string());
    let of_pod = |is_empty| place::of_pod(&places.root, &pod()?, &driver, &volume()?, is_empty).map(OsString::from);
    let of_device = |is_empty| place::of_device(&places.root, &driver, &volume()?, is_empty).map(OsString::from);
    let told = |pod: Option<&PodUid>| {
        let wanted = question.options.as_ref().ok_or("the question says nothing of the volume")?;
        options::json(pod, &volume()?, wanted).map(OsString::from)
    };
    let device = || device(&question.device).map(OsString::from);
    let (command, arguments, deadline) = match question.act() {
        Act::Unspecified => return Err("the question says nothing of what is to be done".to_owned()),
        Act::Init => ("init", Vec::new(), SAY),
        Act::GetVolumeName => ("getvolumename", vec![told(None)?], SAY),
        Act::WaitForAttach => ("waitforattach", vec![device()?, told(None)?], CALL),
        Act::MountDevice => ("mountdevice", vec![of_device(true)?, device()?, told(None)?], CALL),
        Act::UnmountDevice => ("unmountdevice", vec![of_device(false)?], CALL),
        Act::Mount => {
            let options = told(Some(&pod()?))?;
            ("mount", vec![of_pod(true)?, options], CALL)
        }
        Act::Unmount => ("unmount", vec![of_pod(false)?], CALL),
        Act::ExpandFs => {
            let sizes = [question.new_size, question.old_size].map(|bytes| OsString::from(bytes.to_string()));
            let [new, old] = sizes;
            ("expandfs", vec![told(None)?, device()?, of_pod(false)?, new, old], CALL)
        }
    };
    let program = driver::find(&places.drivers, &driver)?;
    let arguments = std::iter::once(OsString::from(command)).chain(arguments).collect();
    Ok(Call { driver, program, command, arguments, deadline })
}

/// The word for a device, the Node's or the driver's own, as it is: it becomes no option on the driver's command line.
fn device(word: &str) -> Result<&str, String> {
    if word.len() > DEVICE_MAX || word.contains('\0') || word.starts_with('-') {
        return Err(format!("the device's name has more than {DEVICE_MAX} bytes or NUL, or begins with '-'"));
    }
    Ok(word)
}

fn reply(verdict: Verdict) -> FlexReply {
    match verdict {
        Verdict::Done(Answer { capabilities, device }) => FlexReply {
            outcome: Outcome::Done.into(),
            capabilities: Some(capabilities),
            device,
            ..FlexReply::default()
        },
        Verdict::NotSupported => FlexReply { outcome: Outcome::NotSupported.into(), ..FlexReply::default() },
        Verdict::Failed(message) => failed(message),
    }
}

fn failed(message: String) -> FlexReply {
    FlexReply { outcome: Outcome::Failed.into(), message, ..FlexReply::default() }
}

fn late(message: String) -> FlexReply {
    FlexReply { outcome: Outcome::Late.into(), message, ..FlexReply::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_becomes_no_option() {
        let (longest, longer) = ("x".repeat(DEVICE_MAX), "x".repeat(DEVICE_MAX + 1));
        for (word, is_taken) in [
            ("", true),
            ("/dev/sdb", true),
            ("lun-7", true),
            (longest.as_str(), true),
            (longer.as_str(), false),
            ("-o", false),
            ("-", false),
            ("/dev/\0", false),
        ] {
            let found = device(word);
            assert_eq!(found.as_ref().ok(), Some(&word).filter(|_| is_taken), "{word:?}: {found:?}");
        }
    }
}
