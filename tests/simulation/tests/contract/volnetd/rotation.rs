//! Logs of containers that are rotated. (Who may have the files themselves is kubelet-evictiond, which nobody is here.)

use anyhow::{Result, ensure};
use bulkhead_ipc::volnetd as api;
use bulkhead_ipc::volnetd::open_request::Kind;
use tonic::{Code, Status};

use super::subject::Subject;
use crate::code;

const POD: &str = "rotated";
const MAIN: &str = "main";

fn pod() -> Option<api::PodLogId> {
    Some(api::PodLogId { namespace: "default".to_owned(), name: "pod".to_owned(), uid: POD.to_owned() })
}

async fn rotate(subject: &Subject) -> Result<String, Status> {
    let guard = subject.guard().await.ok();
    let request = api::RotateContainerLogRequest { pod: pod(), container: MAIN.to_owned(), restart_count: 0, guard };
    Ok(subject.files().rotate_container_log(request).await?.into_inner().stamp)
}

async fn restore(subject: &Subject, stamp: &str) -> Result<bool, Status> {
    let (guard, stamp) = (subject.guard().await.ok(), stamp.to_owned());
    let container = MAIN.to_owned();
    let request = api::RestoreContainerLogRequest { pod: pod(), container, restart_count: 0, stamp, guard };
    Ok(subject.files().restore_container_log(request).await?.into_inner().restored)
}

async fn remove(subject: &Subject, stamp: &str, is_double: bool) -> Result<(), Status> {
    let (guard, container) = (subject.guard().await.ok(), MAIN.to_owned());
    let file = api::RotatedLogFile { stamp: stamp.to_owned(), form: api::LogForm::Plain.into(), is_double };
    let files = vec![file.clone(), api::RotatedLogFile { is_double: false, ..file }];
    let request = api::RemoveRotatedLogsRequest { pod: pod(), container, restart_count: 0, files, guard };
    subject.files().remove_rotated_logs(request).await.map(drop)
}

/// Whether there is a file that a runtime writes into.
async fn is_there(subject: &Subject) -> Result<bool> {
    let log = api::ContainerLog { pod: pod(), container: MAIN.to_owned(), restart_count: 0 };
    match subject.broker().open(Kind::ContainerLog(log)).await {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Code::NotFound => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Its names, one after the other; none takes another one's, and only the newest comes back.
pub async fn a_logs_names(subject: &Subject) -> Result<()> {
    let request = api::PrepareLogDirectoryRequest { pod: pod(), container: MAIN.to_owned() };
    subject.files().prepare_log_directory(request).await?;
    ensure!(code(&rotate(subject).await) == Code::NotFound, "nothing was written");
    ensure!(!is_there(subject).await?);
    subject.log_comes(POD, MAIN)?;
    ensure!(is_there(subject).await?);
    let first = rotate(subject).await?;
    ensure!(!is_there(subject).await?);
    ensure!(code(&rotate(subject).await) == Code::NotFound, "it was rotated");
    subject.log_comes(POD, MAIN)?;
    let second = rotate(subject).await?;
    ensure!(first < second, "{first} {second}");

    ensure!(code(&restore(subject, &first).await) == Code::FailedPrecondition, "it is not the newest");
    ensure!(restore(subject, &second).await? && is_there(subject).await?);
    ensure!(code(&restore(subject, &second).await) == Code::NotFound, "it has its name back");
    let third = rotate(subject).await?;
    ensure!(first < third, "{first} {third}");
    subject.log_comes(POD, MAIN)?;
    ensure!(!restore(subject, &third).await?, "there is another one");

    ensure!(code(&remove(subject, &first, true).await) == Code::FailedPrecondition, "it is the only form");
    for _ in 0..2 {
        remove(subject, &first, false).await?;
    }
    ensure!(code(&restore(subject, &first).await) == Code::NotFound, "it is gone");
    for bad in ["", "now", "20260101-000060"] {
        ensure!(code(&restore(subject, bad).await) == Code::InvalidArgument, "{bad:?}");
        ensure!(code(&remove(subject, bad, false).await) == Code::InvalidArgument, "{bad:?}");
    }
    Ok(())
}
