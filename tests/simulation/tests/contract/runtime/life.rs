//! What a pod's sandbox and containers go through, and what is told of them.

use anyhow::{Context as _, Result, ensure};
use bulkhead_cri::v1;
use tonic::Code;

use super::subject::{Does, Subject};
use crate::code;

/// From nothing to nothing, and what is told at each step.
pub async fn a_pods_life(subject: &Subject) -> Result<()> {
    let mut pod = subject.pod("life")?;
    pod.attempt(3);
    let sandbox = pod.sandbox().await?;
    let status = subject.sandbox_status(&sandbox).await?;
    ensure!(status.id == sandbox && status.state() == v1::PodSandboxState::SandboxReady, "{status:?}");
    ensure!(status.metadata == pod.config.metadata, "{status:?}");
    ensure!(status.labels == pod.config.labels && status.annotations == pod.config.annotations, "{status:?}");
    ensure!(status.created_at > 0, "{status:?}");
    let address = status.network.as_ref().map(|network| network.ip.clone()).unwrap_or_default();
    address.parse::<std::net::IpAddr>().with_context(|| format!("its address: {status:?}"))?;

    let container = pod.create(&sandbox, "main", 2, Does::Heeds).await?;
    let asked = pod.container("main", 2, Does::Heeds);
    let made = subject.status(&container).await?;
    ensure!(made.id == container && made.state() == v1::ContainerState::ContainerCreated, "{made:?}");
    ensure!(made.metadata == asked.metadata, "{made:?}");
    ensure!(made.labels == asked.labels && made.annotations == asked.annotations, "{made:?}");
    ensure!(
        made.image.as_ref().map(|image| &image.image) == asked.image.as_ref().map(|image| &image.image),
        "{made:?}"
    );
    ensure!(
        !made.image_ref.is_empty() && made.log_path == format!("{}/main/2.log", pod.config.log_directory),
        "{made:?}"
    );
    ensure!(made.created_at >= status.created_at, "{made:?}");
    ensure!((made.started_at, made.finished_at, made.exit_code) == (0, 0, 0) && made.reason.is_empty(), "{made:?}");

    subject.start(&container).await?;
    let runs = subject.status(&container).await?;
    ensure!(runs.state() == v1::ContainerState::ContainerRunning && runs.created_at == made.created_at, "{runs:?}");
    ensure!(runs.started_at >= runs.created_at && runs.finished_at == 0, "{runs:?}");
    ensure!(runs.exit_code == 0 && runs.reason.is_empty(), "{runs:?}");

    subject.stop(&container, 60).await?;
    let ended = subject.status(&container).await?;
    ensure!(ended.state() == v1::ContainerState::ContainerExited, "{ended:?}");
    ensure!((ended.exit_code, ended.reason.as_str()) == (143, "Error"), "{ended:?}");
    ensure!(ended.started_at == runs.started_at && ended.finished_at >= ended.started_at, "{ended:?}");
    ensure!(subject.sandbox_status(&sandbox).await?.state() == v1::PodSandboxState::SandboxReady);

    subject.stop_sandbox(&sandbox).await?;
    let stopped = subject.sandbox_status(&sandbox).await?;
    ensure!(stopped.state() == v1::PodSandboxState::SandboxNotready, "{stopped:?}");
    ensure!(stopped.network.as_ref().is_none_or(|network| network.ip.is_empty()), "its address is free: {stopped:?}");
    ensure!(stopped.metadata == pod.config.metadata && stopped.created_at == status.created_at, "{stopped:?}");
    let still = subject.status(&container).await?;
    ensure!(still == ended, "{still:?}");

    subject.remove(&container).await?;
    ensure!(code(&subject.status(&container).await) == Code::NotFound);
    let left = v1::ContainerFilter { pod_sandbox_id: sandbox.clone(), ..Default::default() };
    ensure!(subject.list_containers(left).await?.is_empty());
    subject.remove_sandbox(&sandbox).await?;
    ensure!(code(&subject.sandbox_status(&sandbox).await) == Code::NotFound);
    let left = v1::PodSandboxFilter { id: sandbox, ..Default::default() };
    ensure!(subject.list_sandboxes(left).await?.is_empty());
    Ok(())
}

/// Exit codes and the words for them; what has ended does not begin again.
pub async fn what_ends_by_itself(subject: &Subject) -> Result<()> {
    let pod = subject.pod("ends")?;
    let sandbox = pod.sandbox().await?;
    for (attempt, exit, reason) in [(0, 0, "Completed"), (1, 3, "Error")] {
        let container = pod.create(&sandbox, "main", attempt, Does::Ends { after: 0, code: exit }).await?;
        subject.start(&container).await?;
        let ended = subject.ended(&container).await?;
        ensure!((ended.exit_code, ended.reason.as_str()) == (exit, reason), "{ended:?}");
        // The start is noted when it is answered, the end when it was: of one that ends at once the end may be before the start.
        ensure!(ended.started_at >= ended.created_at && ended.finished_at >= ended.created_at, "{ended:?}");
        ensure!(code(&subject.start(&container).await) == Code::Unknown, "it starts again");
        subject.stop(&container, 1).await.context("stopping what has ended")?;
        ensure!(subject.status(&container).await? == ended, "a stop changes nothing");
    }
    ensure!(subject.sandbox_status(&sandbox).await?.state() == v1::PodSandboxState::SandboxReady);
    subject.remove_sandbox(&sandbox).await?;
    Ok(())
}

/// By id, state, sandbox and labels, and by all of them.
pub async fn lists_are_filtered(subject: &Subject) -> Result<()> {
    let mut pod = subject.pod("lists")?;
    let old = pod.sandbox().await?;
    subject.stop_sandbox(&old).await?;
    pod.attempt(1);
    let (sandbox, runs) = pod.runs(Does::Heeds).await?;
    let made = pod.create(&sandbox, "other", 0, Does::Ignores).await?;
    let ended = pod.create(&sandbox, "other", 1, Does::Ends { after: 0, code: 0 }).await?;
    subject.start(&ended).await?;
    subject.ended(&ended).await?;

    let mine = pod.config.labels.clone();
    let mut strange = mine.clone();
    strange.insert("io.kubernetes.pod.uid".to_owned(), "another".to_owned());
    let state = |state: v1::PodSandboxState| Some(v1::PodSandboxStateValue { state: state.into() });
    let of_labels = v1::PodSandboxFilter { label_selector: mine.clone(), ..Default::default() };
    let (ready, not) = (v1::PodSandboxState::SandboxReady, v1::PodSandboxState::SandboxNotready);
    for (filter, mut wanted) in [
        (of_labels.clone(), vec![&old, &sandbox]),
        (v1::PodSandboxFilter { state: state(ready), ..of_labels.clone() }, vec![&sandbox]),
        (v1::PodSandboxFilter { state: state(not), ..of_labels.clone() }, vec![&old]),
        (v1::PodSandboxFilter { id: old.clone(), ..Default::default() }, vec![&old]),
        (v1::PodSandboxFilter { id: old.clone(), state: state(ready), ..Default::default() }, vec![]),
        (v1::PodSandboxFilter { id: "unknown".to_owned(), ..Default::default() }, vec![]),
        (v1::PodSandboxFilter { label_selector: strange.clone(), ..Default::default() }, vec![]),
    ] {
        let all = subject.list_sandboxes(filter.clone()).await?;
        let mut found: Vec<&String> = all.iter().map(|one| &one.id).collect();
        found.sort();
        wanted.sort();
        ensure!(found == wanted, "{filter:?}: {found:?} in place of {wanted:?}");
        for one in &all {
            let status = subject.sandbox_status(&one.id).await?;
            ensure!((&one.metadata, one.state, one.created_at) == (&status.metadata, status.state, status.created_at));
            ensure!((&one.labels, &one.annotations) == (&status.labels, &status.annotations), "{one:?}");
        }
    }

    let state = |state: v1::ContainerState| Some(v1::ContainerStateValue { state: state.into() });
    let of_labels = v1::ContainerFilter { label_selector: mine, ..Default::default() };
    let in_sandbox = v1::ContainerFilter { pod_sandbox_id: sandbox.clone(), ..Default::default() };
    for (filter, mut wanted) in [
        (of_labels.clone(), vec![&runs, &made, &ended]),
        (in_sandbox.clone(), vec![&runs, &made, &ended]),
        (v1::ContainerFilter { pod_sandbox_id: old.clone(), ..Default::default() }, vec![]),
        (v1::ContainerFilter { state: state(v1::ContainerState::ContainerRunning), ..of_labels.clone() }, vec![&runs]),
        (v1::ContainerFilter { state: state(v1::ContainerState::ContainerCreated), ..of_labels }, vec![&made]),
        (v1::ContainerFilter { state: state(v1::ContainerState::ContainerExited), ..in_sandbox }, vec![&ended]),
        (v1::ContainerFilter { id: made.clone(), ..Default::default() }, vec![&made]),
        (v1::ContainerFilter { id: "unknown".to_owned(), ..Default::default() }, vec![]),
        (v1::ContainerFilter { label_selector: strange, ..Default::default() }, vec![]),
    ] {
        let all = subject.list_containers(filter.clone()).await?;
        let mut found: Vec<&String> = all.iter().map(|one| &one.id).collect();
        found.sort();
        wanted.sort();
        ensure!(found == wanted, "{filter:?}: {found:?} in place of {wanted:?}");
        for one in &all {
            let status = subject.status(&one.id).await?;
            ensure!((&one.metadata, one.state, one.created_at) == (&status.metadata, status.state, status.created_at));
            ensure!((&one.labels, &one.annotations) == (&status.labels, &status.annotations), "{one:?}");
            ensure!((&one.image_ref, &one.pod_sandbox_id) == (&status.image_ref, &sandbox), "{one:?} {status:?}");
        }
    }
    for sandbox in [old, sandbox] {
        subject.remove_sandbox(&sandbox).await?;
    }
    Ok(())
}

/// No state of a container or a sandbox keeps it from being removed.
pub async fn what_is_removed_is_stopped_first(subject: &Subject) -> Result<()> {
    let pod = subject.pod("removed")?;
    let (sandbox, container) = pod.runs(Does::Ignores).await?;
    subject.remove(&container).await.context("removing a container that runs")?;
    ensure!(code(&subject.status(&container).await) == Code::NotFound);
    // Its name is free again.
    let container = pod.create(&sandbox, "main", 0, Does::Ignores).await?;
    subject.remove(&container).await.context("removing a container that was not started")?;
    let container = pod.create(&sandbox, "main", 0, Does::Ignores).await?;
    subject.start(&container).await?;
    subject.remove_sandbox(&sandbox).await.context("removing a sandbox with a container that runs")?;
    ensure!(code(&subject.status(&container).await) == Code::NotFound);
    ensure!(code(&subject.sandbox_status(&sandbox).await) == Code::NotFound);
    // So is the sandbox's.
    let sandbox = pod.sandbox().await?;
    subject.remove_sandbox(&sandbox).await?;
    Ok(())
}

/// What probes build on, and what holds a container on its CPUs.
pub async fn a_command_in_a_container(subject: &Subject) -> Result<()> {
    let pod = subject.pod("exec")?;
    let sandbox = pod.sandbox().await?;
    let container = pod.create(&sandbox, "main", 0, Does::Heeds).await?;
    ensure!(code(&subject.exec(&container, subject.exec_words(true)).await) == Code::Unknown, "before its start");
    subject.put_on_cpus(&container, "0").await.context("CPUs of a container that was not started")?;
    subject.start(&container).await?;
    ensure!(subject.exec(&container, subject.exec_words(true)).await? == 0);
    ensure!(subject.exec(&container, subject.exec_words(false)).await? == 1);
    subject.put_on_cpus(&container, "0").await.context("CPUs of a container that runs")?;
    subject.stop(&container, 60).await?;
    ensure!(code(&subject.exec(&container, subject.exec_words(true)).await) == Code::Unknown, "after its end");
    subject.put_on_cpus(&container, "0").await.context("CPUs of a container that has ended")?;
    subject.remove_sandbox(&sandbox).await?;
    Ok(())
}

/// It is killed with its container, and its caller hears of that.
pub async fn a_command_goes_with_its_container(subject: &Subject) -> Result<()> {
    let pod = subject.pod("command-goes")?;
    let sandbox = pod.sandbox().await?;
    let container = pod.create(&sandbox, "main", 0, Does::Heeds).await?;
    subject.start(&container).await?;
    let end = async {
        crate::eventually("the command begins", async || {
            ensure!(subject.exec(&container, subject.begun_words()).await? == 0, "not yet");
            Ok(())
        })
        .await?;
        subject.stop(&container, 60).await.context("stopping its container")
    };
    let (code, ended) = tokio::join!(subject.exec(&container, subject.lasting_words()), end);
    ended?;
    ensure!(code.context("the command")? == 137, "its exit code");
    subject.remove_sandbox(&sandbox).await?;
    Ok(())
}
