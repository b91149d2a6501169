//! Containers' logs, as requests name them.

use bulkhead_ipc::volnetd as wire;
use bulkhead_ipc::volnetd::rotated_log::Pick as WirePick;
use bulkhead_types::{ContainerName, LogForm, LogStamp, Namespace, PodName, PodUid};

use super::{InvalidRequest, bad, container};

/// Far above the files that a log can have in practice, and far below what fills a message.
const MAX_REMOVALS: usize = 1000;

/// Names of a pod's log folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodLog {
    pub namespace: Namespace,
    pub name: PodName,
    pub uid: PodUid,
}

impl PodLog {
    pub fn dir_name(&self) -> String {
        bulkhead_types::pod_log_dir_name(&self.namespace, &self.name, &self.uid)
    }
}

/// A container's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPlace {
    pub pod: PodLog,
    pub container: ContainerName,
    /// `<n>` of `<n>.log`.
    pub number: u32,
}

/// A rotated log that is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removal {
    pub stamp: LogStamp,
    pub form: LogForm,
    /// Only while the other form is there.
    pub is_double: bool,
}

/// Which rotated log is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pick {
    /// This one, as the runtime wrote it.
    Plain(LogStamp),
    /// This one, plain or compressed.
    Any(LogStamp),
    /// The oldest one that is later than this.
    Next(LogStamp),
}

pub fn pod_log(id: Option<&wire::PodLogId>) -> Result<PodLog, InvalidRequest> {
    let id = id.ok_or(InvalidRequest::Missing { field: "pod" })?;
    Ok(PodLog {
        namespace: Namespace::parse(&id.namespace)?,
        name: PodName::parse(&id.name)?,
        uid: PodUid::parse(&id.uid)?,
    })
}

pub fn log_place(pod: Option<&wire::PodLogId>, name: &str, number: u32) -> Result<LogPlace, InvalidRequest> {
    Ok(LogPlace { pod: pod_log(pod)?, container: container(name)?, number })
}

pub fn log_stamp(text: &str) -> Result<LogStamp, InvalidRequest> {
    Ok(LogStamp::parse(text)?)
}

pub fn removals(files: &[wire::RotatedLogFile]) -> Result<Vec<Removal>, InvalidRequest> {
    if files.len() > MAX_REMOVALS {
        return Err(InvalidRequest::TooMany { field: "files", count: files.len(), max: MAX_REMOVALS });
    }
    files.iter().map(removal).collect()
}

fn removal(file: &wire::RotatedLogFile) -> Result<Removal, InvalidRequest> {
    let form = match file.form() {
        wire::LogForm::Plain => LogForm::Plain,
        wire::LogForm::Compressed => LogForm::Compressed,
        wire::LogForm::Unfinished => LogForm::Unfinished,
        wire::LogForm::Unspecified => {
            return Err(bad("form", &file.form.to_string(), "PLAIN, COMPRESSED or UNFINISHED"));
        }
    };
    Ok(Removal { stamp: log_stamp(&file.stamp)?, form, is_double: file.is_double })
}

pub fn pick(log: &wire::RotatedLog) -> Result<Pick, InvalidRequest> {
    let stamp = log_stamp(&log.stamp)?;
    match log.pick() {
        WirePick::Plain => Ok(Pick::Plain(stamp)),
        WirePick::Any => Ok(Pick::Any(stamp)),
        WirePick::Next => Ok(Pick::Next(stamp)),
        WirePick::Unspecified => Err(bad("pick", &log.pick.to_string(), "PLAIN, ANY or NEXT")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_and_forms_are_the_known_ones() {
        let file = |stamp: &str, form: i32| wire::RotatedLogFile { stamp: stamp.into(), form, ..Default::default() };
        assert!(removals(&[file("20260101-000000", 1), file("20260101-000000", 3)]).is_ok());
        for wrong in [file("20260101-000000", 0), file("20260101-000000", 9), file("../../etc/passwd", 1), file("", 1)]
        {
            assert!(removals(&[file("20260101-000000", 1), wrong.clone()]).is_err(), "{wrong:?}");
        }
        assert!(removals(&vec![file("20260101-000000", 1); MAX_REMOVALS + 1]).is_err());
        let log = |pick: i32| wire::RotatedLog { stamp: "20260101-000000".into(), pick, ..Default::default() };
        let stamp = LogStamp::parse("20260101-000000").unwrap();
        assert_eq!(pick(&log(3)), Ok(Pick::Next(stamp)));
        assert!(pick(&log(0)).is_err() && pick(&log(7)).is_err());
    }
}
