//! Where the runtime writes what containers say.

use anyhow::{Result, ensure};
use tonic::Code;

use super::subject::{Does, Subject};
use crate::code;

/// A log whose file was given another name gets a new one when that is asked for, and not before.
pub async fn a_log_that_was_renamed(subject: &Subject) -> Result<()> {
    let pod = subject.pod("renamed")?;
    let (sandbox, container) = pod.runs(Does::Ignores).await?;
    ensure!(subject.has_log(&pod)?);
    subject.rename_log(&pod)?;
    ensure!(!subject.has_log(&pod)?);
    subject.reopen(&container).await?;
    ensure!(subject.has_log(&pod)?);
    ensure!(code(&subject.reopen("0123456789abcdef").await) == Code::NotFound);
    subject.stop(&container, 0).await?;
    let of_ended = code(&subject.reopen(&container).await);
    ensure!(![Code::Ok, Code::NotFound].contains(&of_ended), "{of_ended:?}");
    Ok(subject.remove_sandbox(&sandbox).await?)
}

/// A runtime that comes back opens the logs of what runs.
pub async fn logs_are_opened_again(subject: &Subject) -> Result<()> {
    let pod = subject.pod("again")?;
    let (sandbox, _) = pod.runs(Does::Ignores).await?;
    subject.goes()?;
    subject.rename_log(&pod)?;
    subject.comes()?;
    crate::eventually("the log is there", async || {
        ensure!(subject.has_log(&pod)?, "it is not");
        Ok(())
    })
    .await?;
    crate::eventually("it answers", async || Ok(subject.remove_sandbox(&sandbox).await?)).await
}
