//! What is refused, with which code, and what is not, though nothing is to be done.

use anyhow::{Context as _, Result, ensure};
use bulkhead_cri::v1;
use tonic::{Code, Status};

use super::subject::{Does, Subject};
use crate::code;

/// By a code that nobody takes for "it is gone". Which one it is differs between releases.
fn is_refused<T>(answer: &Result<T, Status>) -> bool {
    !matches!(code(answer), Code::Ok | Code::NotFound)
}

/// A sandbox's name is its pod's with the attempt, a container's that of the pod with its own name and attempt: it is taken in all
/// sandboxes of the pod, until the container is removed.
pub async fn names_are_reserved(subject: &Subject) -> Result<()> {
    let mut pod = subject.pod("names")?;
    let first = pod.sandbox().await?;
    ensure!(is_refused(&pod.sandbox().await), "two sandboxes of a name");
    let container = pod.create(&first, "main", 0, Does::Ends { after: 0, code: 0 }).await?;
    ensure!(is_refused(&pod.create(&first, "main", 0, Does::Ignores).await), "two containers of a name");
    subject.start(&container).await?;
    subject.ended(&container).await?;
    ensure!(is_refused(&pod.create(&first, "main", 0, Does::Ignores).await), "beside one that has ended");
    subject.stop_sandbox(&first).await?;
    ensure!(is_refused(&pod.sandbox().await), "beside one that is not ready");
    pod.attempt(1);
    let second = pod.sandbox().await?;
    ensure!(is_refused(&pod.create(&second, "main", 0, Does::Ignores).await), "in another sandbox of the pod");
    pod.create(&second, "main", 1, Does::Ignores).await.context("another attempt")?;
    pod.create(&second, "other", 0, Does::Ignores).await.context("another name")?;
    subject.remove(&container).await?;
    pod.create(&second, "main", 0, Does::Ignores).await.context("the name of one that was removed")?;
    subject.remove_sandbox(&first).await?;
    pod.attempt(0);
    let third = pod.sandbox().await.context("the name of a sandbox that was removed")?;
    for sandbox in [second, third] {
        subject.remove_sandbox(&sandbox).await?;
    }
    Ok(())
}

/// Who asks for what is gone wants to know; who wants it gone has it.
pub async fn what_is_unknown(subject: &Subject) -> Result<()> {
    let (id, words) = ("0123456789abcdef", subject.exec_words(true));
    ensure!(code(&subject.status(id).await) == Code::NotFound);
    ensure!(code(&subject.sandbox_status(id).await) == Code::NotFound);
    ensure!(code(&subject.start(id).await) == Code::NotFound);
    ensure!(code(&subject.exec(id, words).await) == Code::NotFound);
    ensure!(code(&subject.put_on_cpus(id, "0").await) == Code::NotFound);
    let pod = subject.pod("unknown")?;
    ensure!(code(&pod.create(id, "main", 0, Does::Ignores).await) == Code::NotFound);
    ensure!(code(&subject.remove(id).await) == Code::Ok);
    ensure!(code(&subject.remove_sandbox(id).await) == Code::Ok);
    // Newer ones of containerd take it for stopped, older ones do not know it.
    for stopped in [code(&subject.stop(id, 1).await), code(&subject.stop_sandbox(id).await)] {
        ensure!([Code::Ok, Code::NotFound].contains(&stopped), "{stopped:?}");
    }
    Ok(())
}

/// Once more is as good as once.
pub async fn everything_may_be_asked_twice(subject: &Subject) -> Result<()> {
    let pod = subject.pod("twice")?;
    let (sandbox, container) = pod.runs(Does::Ignores).await?;
    ensure!(code(&subject.start(&container).await) == Code::Unknown, "what runs is started");
    for _ in 0..2 {
        subject.stop(&container, 0).await?;
    }
    for _ in 0..2 {
        subject.stop_sandbox(&sandbox).await?;
    }
    for _ in 0..2 {
        subject.remove(&container).await?;
    }
    for _ in 0..2 {
        subject.remove_sandbox(&sandbox).await?;
    }
    Ok(())
}

/// A sandbox that was stopped has ended all that ran in it, and nothing begins there.
pub async fn nothing_begins_in_a_sandbox_that_has_stopped(subject: &Subject) -> Result<()> {
    let pod = subject.pod("stopped")?;
    let (sandbox, runs) = pod.runs(Does::Ignores).await?;
    let made = pod.create(&sandbox, "made", 0, Does::Ignores).await?;
    subject.stop_sandbox(&sandbox).await?;
    let ended = subject.status(&runs).await?;
    ensure!(ended.state() == v1::ContainerState::ContainerExited, "{ended:?}");
    ensure!((ended.exit_code, ended.reason.as_str()) == (137, "Error"), "{ended:?}");
    let still = subject.status(&made).await?;
    ensure!(still.state() == v1::ContainerState::ContainerCreated, "{still:?}");
    // containerd 1.x looks for the sandbox's task first, 2.x makes the container, which cannot be started.
    match pod.create(&sandbox, "late", 0, Does::Ignores).await {
        Ok(late) => ensure!(is_refused(&subject.start(&late).await), "made and started in what has stopped"),
        Err(refused) => ensure!(refused.code() == Code::NotFound, "{refused:?}"),
    }
    ensure!(is_refused(&subject.start(&made).await), "started in what has stopped");
    subject.remove_sandbox(&sandbox).await?;
    ensure!(code(&subject.status(&made).await) == Code::NotFound);
    Ok(())
}
