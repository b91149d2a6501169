//! StopContainer: signals, grace, and who asks for it.

use std::time::Duration;

use anyhow::{Result, ensure};
use bulkhead_cri::v1;

use super::subject::{Does, Subject};

/// Longer than any call here is waited for: what waits for the end of such a grace fails.
const ENDLESS: i64 = 600;

fn begun() -> i64 {
    bulkhead_simulation::world::World::wall()
}

const SECOND: i64 = 1_000_000_000;

/// Who heeds the signal ends with a code of its own, and is not waited for longer.
pub async fn a_signal_is_heeded(subject: &Subject) -> Result<()> {
    let pod = subject.pod("heeds")?;
    let (sandbox, container) = pod.runs(Does::Heeds).await?;
    subject.stop(&container, ENDLESS).await?;
    let ended = subject.status(&container).await?;
    ensure!(ended.state() == v1::ContainerState::ContainerExited, "it is told of when the stop is answered: {ended:?}");
    ensure!((ended.exit_code, ended.reason.as_str()) == (143, "Error"), "{ended:?}");
    subject.remove_sandbox(&sandbox).await?;
    Ok(())
}

/// Who does not is killed, then and not before; at once where there is no grace.
pub async fn grace_is_given_and_no_more(subject: &Subject) -> Result<()> {
    let pod = subject.pod("grace")?;
    let sandbox = pod.sandbox().await?;
    for (attempt, grace) in [(0, 2), (1, 0)] {
        let container = pod.create(&sandbox, "main", attempt, Does::Ignores).await?;
        subject.start(&container).await?;
        let begin = begun();
        subject.stop(&container, grace).await?;
        let ended = subject.status(&container).await?;
        ensure!(ended.state() == v1::ContainerState::ContainerExited, "{ended:?}");
        ensure!((ended.exit_code, ended.reason.as_str()) == (137, "Error"), "{ended:?}");
        ensure!(ended.finished_at >= begin + grace * SECOND, "{begin}: {ended:?}");
    }
    subject.remove_sandbox(&sandbox).await?;
    Ok(())
}

/// It ends during its grace, and not because of the signal.
pub async fn an_end_of_its_own_is_not_waited_past(subject: &Subject) -> Result<()> {
    let pod = subject.pod("own-end")?;
    let (sandbox, container) = pod.runs(Does::Ends { after: 2, code: 9 }).await?;
    subject.stop(&container, ENDLESS).await?;
    let ended = subject.status(&container).await?;
    ensure!((ended.state(), ended.exit_code) == (v1::ContainerState::ContainerExited, 9), "{ended:?}");
    subject.remove_sandbox(&sandbox).await?;
    Ok(())
}

/// The one with the shorter grace ends it, and both have their answer.
pub async fn two_may_ask(subject: &Subject) -> Result<()> {
    let pod = subject.pod("two-ask")?;
    let (sandbox, container) = pod.runs(Does::Ignores).await?;
    let (patient, other) = tokio::join!(subject.stop(&container, ENDLESS), subject.stop(&container, 1));
    patient?;
    other?;
    let ended = subject.status(&container).await?;
    ensure!((ended.state(), ended.exit_code) == (v1::ContainerState::ContainerExited, 137), "{ended:?}");
    subject.remove_sandbox(&sandbox).await?;
    Ok(())
}

/// Who has asked for a stop and goes leaves the signal behind, and no kill at the end of the grace: whoever comes has to ask again.
pub async fn who_goes_kills_nobody(subject: &Subject) -> Result<()> {
    let pod = subject.pod("who-goes")?;
    let (sandbox, container) = pod.runs(Does::Ignores).await?;
    let gone = tokio::time::timeout(Duration::from_secs(1), subject.stop(&container, 2)).await;
    ensure!(gone.is_err(), "{gone:?}");
    let begin = tokio::time::Instant::now();
    while begin.elapsed() < Duration::from_secs(3) {
        let status = subject.status(&container).await?;
        ensure!(status.state() == v1::ContainerState::ContainerRunning, "{status:?}");
        tokio::time::sleep(crate::LOOK_EVERY).await;
    }
    subject.stop(&container, 0).await?;
    subject.remove_sandbox(&sandbox).await?;
    Ok(())
}
