//! A container that comes to the limit of its memory: what is told of its end, and when. The kernel tells of the kill and of the process's
//! end on two ways, and so does the shim; which of them is first is open.

use anyhow::{Result, bail, ensure};
use bulkhead_cri::v1;
use bulkhead_cri::v1::ContainerEventType as Kind;

use super::events::{listen, next};
use super::subject::{Does, Known, Subject};

/// What a container that is killed for want of memory goes through, as its status tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Runs,
    /// The reason of an end that is to come.
    RunsExplained,
    Ended,
    EndedExplained,
}

impl Stage {
    /// With this exit code.
    fn of(status: &v1::ContainerStatus, code: i32) -> Result<Self> {
        let told = (status.state(), status.exit_code, status.reason.as_str());
        Ok(match told {
            (v1::ContainerState::ContainerRunning, 0, "") => Stage::Runs,
            (v1::ContainerState::ContainerRunning, 0, "OOMKilled") => Stage::RunsExplained,
            (v1::ContainerState::ContainerExited, found, "Error") if found == code => Stage::Ended,
            (v1::ContainerState::ContainerExited, found, "OOMKilled") if found == code => Stage::EndedExplained,
            _ => bail!("{told:?}"),
        })
    }

    /// Neither the end nor the reason is taken back.
    fn may_follow(self, before: Stage) -> bool {
        let of = |stage| match stage {
            Stage::Runs => (false, false),
            Stage::RunsExplained => (false, true),
            Stage::Ended => (true, false),
            Stage::EndedExplained => (true, true),
        };
        let ((was_over, was_known), (is_over, is_known)) = (of(before), of(self));
        was_over <= is_over && was_known <= is_known
    }
}

/// Looks until end and reason are known, and at all that is told before.
async fn until_explained(subject: &Subject, container: &str, code: i32) -> Result<(v1::ContainerStatus, Vec<Stage>)> {
    let begin = tokio::time::Instant::now();
    let (mut stages, mut ended) = (vec![Stage::Runs], None);
    loop {
        let status = subject.status(container).await?;
        let now = Stage::of(&status, code)?;
        let last = *stages.last().unwrap_or(&now);
        ensure!(now.may_follow(last), "{now:?} after {stages:?}");
        if now != last {
            stages.push(now);
        }
        if status.state() == v1::ContainerState::ContainerExited {
            // What was told of the end stays; the reason alone comes to it.
            let told = v1::ContainerStatus { reason: String::new(), ..status.clone() };
            ensure!(told.finished_at > 0 && told.started_at > 0, "{told:?}");
            ensure!(*ended.get_or_insert_with(|| told.clone()) == told, "{told:?} after {ended:?}");
        }
        if now == Stage::EndedExplained {
            return Ok((status, stages));
        }
        ensure!(begin.elapsed() < crate::PATIENCE, "no reason is told: {status:?}");
    }
}

/// Its exit code is that of SIGKILL; the reason comes before it, with it or after it, and stays.
pub async fn all_of_a_container_is_killed(subject: &Subject) -> Result<()> {
    let pod = subject.pod("memory")?;
    let sandbox = pod.sandbox().await?;
    for (attempt, known) in (0..).zip([Known::Before, Known::With, Known::After]) {
        let container = pod.create(&sandbox, "main", attempt, Does::Exceeds).await?;
        subject.start(&container).await?;
        subject.exceed(&container, known)?;
        let (told, stages) = until_explained(subject, &container, 137).await?;
        eprintln!("memory: {stages:?}");
        let sandbox = subject.sandbox_status(&sandbox).await?;
        ensure!(sandbox.state() == v1::PodSandboxState::SandboxReady, "{sandbox:?}");
        // Nothing is to be ended, and nothing is said anew.
        subject.stop(&container, 0).await?;
        ensure!(subject.status(&container).await? == told, "another one than {told:?}");
        subject.remove(&container).await?;
    }
    subject.remove_sandbox(&sandbox).await?;
    Ok(())
}

/// One process of it is killed, and not its first: it goes on with the reason of its end known, which that has whatever the code is.
pub async fn one_process_of_a_container_is_killed(subject: &Subject) -> Result<()> {
    let pod = subject.pod("memory-within")?;
    let sandbox = pod.sandbox().await?;
    for (attempt, code) in (0..).zip([3, 0]) {
        let container = pod.create(&sandbox, "main", attempt, Does::ExceedsWithin { after: 2, code }).await?;
        subject.start(&container).await?;
        subject.exceed(&container, Known::AndGoesOn)?;
        let (_, stages) = until_explained(subject, &container, code).await?;
        ensure!(stages == [Stage::Runs, Stage::RunsExplained, Stage::EndedExplained], "{stages:?}");
    }
    subject.remove_sandbox(&sandbox).await?;
    Ok(())
}

/// Of the end there is one event, with the exit code; of the reason there is none, whether it comes before or after.
pub async fn the_reason_is_no_event(subject: &Subject) -> Result<()> {
    let Some(mut events) = listen(subject, "memory-first").await? else { return Ok(()) };
    let pod = subject.pod("memory-events")?;
    let sandbox = pod.sandbox().await?;
    for (attempt, known) in (0..).zip([Known::Before, Known::With, Known::After]) {
        let container = pod.create(&sandbox, "main", attempt, Does::Exceeds).await?;
        subject.start(&container).await?;
        subject.exceed(&container, known)?;
        until_explained(subject, &container, 137).await?;
        // What is told of it next is that it goes.
        subject.remove(&container).await?;
        let mut kinds = Vec::new();
        while kinds.last() != Some(&Kind::ContainerDeletedEvent) {
            let event = next(&mut events, &[&container]).await?;
            kinds.push(event.container_event_type());
            if event.container_event_type() == Kind::ContainerStoppedEvent {
                let own = event.containers_statuses.iter().find(|status| status.id == container);
                let stage = own.map(|status| Stage::of(status, 137)).transpose()?;
                ensure!(matches!(stage, Some(Stage::Ended | Stage::EndedExplained)), "{event:?}");
            }
        }
        let (made, started) = (Kind::ContainerCreatedEvent, Kind::ContainerStartedEvent);
        let (stopped, deleted) = (Kind::ContainerStoppedEvent, Kind::ContainerDeletedEvent);
        ensure!(kinds == [made, started, stopped, deleted], "{kinds:?}");
    }
    subject.remove_sandbox(&sandbox).await?;
    Ok(())
}
