//! Events of the CRI, where there are some.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bulkhead_cri::v1;
use bulkhead_cri::v1::ContainerEventType as Kind;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tonic::Code;

use super::subject::{Does, Subject};
use crate::code;

pub type Events = UnboundedReceiver<v1::ContainerEventResponse>;

/// Nothing where it has none for all who listen: the stream of 1.7 is for one listener, 1.6 has none.
pub async fn listen(subject: &Subject, name: &str) -> Result<Option<Events>> {
    if !subject.tells_events() {
        return Ok(None);
    }
    let (sender, mut events) = unbounded_channel();
    let mut client = subject.runtime.clone();
    tokio::spawn(async move {
        let mut stream = client.get_container_events(v1::GetEventsRequest {}).await?.into_inner();
        while let Some(event) = stream.message().await? {
            if sender.send(event).is_err() {
                break;
            }
        }
        Ok::<(), tonic::Status>(())
    });
    // containerd answers with the first event and not before, so it is when one comes that somebody is listened to.
    let pod = subject.pod(name)?;
    loop {
        let sandbox = pod.sandbox().await?;
        let first = tokio::time::timeout(Duration::from_secs(2), events.recv()).await;
        subject.remove_sandbox(&sandbox).await?;
        if let Ok(first) = first {
            first.context("no stream")?;
            return Ok(Some(events));
        }
    }
}

/// The next event of any of these.
pub async fn next(events: &mut Events, ids: &[&str]) -> Result<v1::ContainerEventResponse> {
    loop {
        let event = tokio::time::timeout(crate::DEADLINE, events.recv()).await.context("no event comes")?;
        let event = event.context("the stream ends")?;
        if ids.contains(&event.container_id.as_str()) {
            return Ok(event);
        }
    }
}

fn kinds(events: &[(String, Kind)], id: &str) -> Vec<Kind> {
    events.iter().filter(|(of, _)| of == id).map(|(_, kind)| *kind).collect()
}

/// Made, started, ended and removed, of containers and of the sandbox, also where they go with it.
pub async fn each_change_is_told(subject: &Subject) -> Result<()> {
    let Some(mut events) = listen(subject, "events-first").await? else { return Ok(()) };
    let pod = subject.pod("events")?;
    let (sandbox, asked) = pod.runs(Does::Heeds).await?;
    let own = pod.create(&sandbox, "own", 0, Does::Ends { after: 0, code: 1 }).await?;
    subject.start(&own).await?;
    subject.ended(&own).await?;
    subject.stop(&asked, 60).await?;
    subject.remove(&asked).await?;
    let beside = pod.create(&sandbox, "beside", 0, Does::Ignores).await?;
    subject.start(&beside).await?;
    subject.stop_sandbox(&sandbox).await?;
    subject.remove_sandbox(&sandbox).await?;

    let ids = [&sandbox, &asked, &own, &beside].map(String::as_str);
    let mut told: Vec<(String, Kind)> = Vec::new();
    while told.last() != Some(&(sandbox.clone(), Kind::ContainerDeletedEvent)) {
        let event = next(&mut events, &ids).await.with_context(|| format!("after {told:?}"))?;
        told.push((event.container_id.clone(), event.container_event_type()));
    }
    let (made, started) = (Kind::ContainerCreatedEvent, Kind::ContainerStartedEvent);
    let (stopped, deleted) = (Kind::ContainerStoppedEvent, Kind::ContainerDeletedEvent);
    for id in ids {
        ensure!(kinds(&told, id) == [made, started, stopped, deleted], "{id}: {:?} of {told:?}", kinds(&told, id));
    }
    Ok(())
}

/// An event has the sandbox and all containers of the pod, as they are when it is told.
pub async fn an_event_says_what_the_pod_is_then(subject: &Subject) -> Result<()> {
    let Some(mut events) = listen(subject, "says-first").await? else { return Ok(()) };
    let pod = subject.pod("says")?;
    let (sandbox, first) = pod.runs(Does::Ignores).await?;
    let second = pod.create(&sandbox, "second", 0, Does::Ends { after: 0, code: 7 }).await?;
    subject.start(&second).await?;
    let event = loop {
        let event = next(&mut events, &[&second]).await?;
        if event.container_event_type() == Kind::ContainerStoppedEvent {
            break event;
        }
    };
    ensure!(event.created_at > 0, "{event:?}");
    let told = event.pod_sandbox_status.context("no sandbox")?;
    ensure!((&told.id, told.state()) == (&sandbox, v1::PodSandboxState::SandboxReady), "{told:?}");
    ensure!(told.metadata == pod.config.metadata, "{told:?}");
    let mut all: Vec<_> = event.containers_statuses.iter().map(|c| (c.id.clone(), c.state(), c.exit_code)).collect();
    let mut wanted = vec![
        (first, v1::ContainerState::ContainerRunning, 0),
        (second.clone(), v1::ContainerState::ContainerExited, 7),
    ];
    all.sort();
    wanted.sort();
    ensure!(all == wanted, "{all:?}");

    // One of what is gone has nothing of it.
    subject.remove(&second).await?;
    let event = next(&mut events, &[&second]).await?;
    ensure!(event.container_event_type() == Kind::ContainerDeletedEvent, "{event:?}");
    ensure!(event.containers_statuses.iter().all(|status| status.id != second), "{event:?}");
    ensure!(code(&subject.status(&second).await) == Code::NotFound);
    subject.remove_sandbox(&sandbox).await?;
    Ok(())
}
