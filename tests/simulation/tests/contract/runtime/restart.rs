//! A runtime that is away, and a sandbox that dies.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bulkhead_cri::v1;

use super::subject::{Does, Subject};

/// What holds a sandbox dies, and with it what is in it.
pub async fn a_sandbox_dies(subject: &Subject) -> Result<()> {
    let pod = subject.pod("dies")?;
    let (sandbox, container) = pod.runs(Does::Ignores).await?;
    let ended = pod.create(&sandbox, "ended", 0, Does::Ends { after: 0, code: 4 }).await?;
    subject.start(&ended).await?;
    let before = subject.ended(&ended).await?;
    subject.sandbox_dies(&sandbox)?;
    crate::eventually("the sandbox is not ready", async || {
        let status = subject.sandbox_status(&sandbox).await?;
        ensure!(status.state() == v1::PodSandboxState::SandboxNotready, "{status:?}");
        Ok(())
    })
    .await?;
    let after = subject.ended(&container).await?;
    ensure!((after.exit_code, after.reason.as_str()) == (255, "Error"), "{after:?}");
    ensure!(subject.status(&ended).await? == before, "what had ended has changed");
    subject.stop_sandbox(&sandbox).await.context("stopping what has died")?;
    // containerd 2.1 refuses while it has not noticed yet that nobody is at the other end of the shim's connection ("ttrpc: closed").
    crate::eventually("what has died is removed", async || Ok(subject.remove_sandbox(&sandbox).await?)).await
}

/// What runs runs on, what ends meanwhile has ended, and nothing is forgotten.
pub async fn containers_run_on(subject: &Subject) -> Result<()> {
    let pod = subject.pod("restart")?;
    let (sandbox, container) = pod.runs(Does::Heeds).await?;
    let made = pod.create(&sandbox, "made", 0, Does::Heeds).await?;
    let ends = pod.create(&sandbox, "ends", 0, Does::Ends { after: 2, code: 6 }).await?;
    subject.start(&ends).await?;
    let before = subject.status(&container).await?;
    // Who waits for a stop when it goes has no answer, and what was begun is not finished.
    let deaf = pod.create(&sandbox, "deaf", 0, Does::Ignores).await?;
    subject.start(&deaf).await?;
    let going = async {
        // Time for the call to arrive; nothing tells when it has.
        tokio::time::sleep(Duration::from_millis(500)).await;
        subject.goes()
    };
    let (asked, gone) = tokio::join!(subject.stop(&deaf, 3), going);
    gone?;
    ensure!(asked.is_err(), "somebody has answered: {asked:?}");
    ensure!(subject.status(&container).await.is_err(), "somebody answers");
    // Longer than the grace and the container that ends.
    tokio::time::sleep(Duration::from_secs(3)).await;
    subject.comes()?;
    // A connection that broke fails once.
    let after = crate::eventually("it answers", async || Ok(subject.status(&container).await?)).await?;
    ensure!(after == before, "{after:?} in place of {before:?}");
    ensure!(subject.sandbox_status(&sandbox).await?.state() == v1::PodSandboxState::SandboxReady);
    let runs_on = subject.status(&deaf).await?;
    ensure!(runs_on.state() == v1::ContainerState::ContainerRunning, "{runs_on:?}");
    let ended = subject.status(&ends).await?;
    ensure!(ended.state() == v1::ContainerState::ContainerExited, "{ended:?}");
    // 1.6 asks the shim, 2.x may not find out how it ended.
    let told = (ended.exit_code, ended.reason.as_str());
    ensure!([(6, "Error"), (255, "Unknown")].contains(&told), "{ended:?}");
    subject.start(&made).await.context("starting what was made before")?;
    subject.stop(&container, 60).await?;
    subject.remove_sandbox(&sandbox).await?;
    Ok(())
}
