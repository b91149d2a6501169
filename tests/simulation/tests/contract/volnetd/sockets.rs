//! Watches, and what the broker opens.

use std::io::Read as _;

use anyhow::{Context as _, Result, ensure};
use bulkhead_ipc::volnetd as api;
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_ipc::volnetd::watch_event::Change;
use bulkhead_simulation::volumes::REGISTRATION;
use tonic::{Code, Streaming};

use super::subject::Subject;
use crate::code;

async fn watch(subject: &Subject, kind: api::WatchKind) -> Result<Streaming<api::WatchEvent>> {
    Ok(subject.watches().watch(api::WatchRequest { kind: kind.into() }).await?.into_inner())
}

async fn next(stream: &mut Streaming<api::WatchEvent>) -> Result<(Change, String)> {
    let event = tokio::time::timeout(crate::DEADLINE, stream.message()).await.context("nothing is told")??;
    let event = event.context("the watch ends")?;
    Ok((event.change(), event.name))
}

/// Who begins to watch looks at everything first.
pub async fn each_watch_begins_with_all_there_is(subject: &Subject) -> Result<()> {
    let none = subject.watches().watch(api::WatchRequest { kind: 0 }).await;
    ensure!(code(&none) == Code::InvalidArgument);
    for kind in [api::WatchKind::Manifests, api::WatchKind::Credentials, api::WatchKind::Plugins] {
        let first = next(&mut watch(subject, kind).await?).await?;
        ensure!(first == (Change::Rescan, String::new()), "{kind:?}: {first:?}");
    }
    Ok(())
}

/// A plugin is told once it listens, whether before a watch or after, and anew where another one has taken its place.
pub async fn a_plugin_comes_and_comes_again(subject: &Subject) -> Result<()> {
    let mut early = watch(subject, api::WatchKind::Plugins).await?;
    let mut told = Vec::new();
    while told.last() != Some(&(Change::Listed, String::new())) {
        told.push(next(&mut early).await?);
    }
    ensure!(told == [(Change::Rescan, String::new()), (Change::Listed, String::new())], "{told:?}");
    let name = || REGISTRATION.to_owned();
    subject.plugin_comes()?;
    ensure!(next(&mut early).await? == (Change::Added, name()));
    let mut late = watch(subject, api::WatchKind::Plugins).await?;
    let mut told = Vec::new();
    while told.last() != Some(&(Change::Listed, String::new())) {
        told.push(next(&mut late).await?);
    }
    ensure!(told[1..] == [(Change::Added, name()), (Change::Listed, String::new())], "{told:?}");
    subject.plugin_comes()?;
    for stream in [&mut early, &mut late] {
        let mut told = Vec::new();
        while told.last() != Some(&(Change::Added, name())) {
            told.push(next(stream).await?);
        }
        ensure!(told[0] == (Change::Removed, name()), "{told:?}");
    }
    Ok(())
}

fn content(file: std::os::fd::OwnedFd) -> Result<String> {
    let mut text = String::new();
    std::fs::File::from(file).read_to_string(&mut text)?;
    Ok(text)
}

/// Manifests, sockets and state files, there and not.
pub async fn what_the_broker_opens(subject: &Subject) -> Result<()> {
    let broker = subject.broker();
    let manifest = |name: &str| Kind::Manifest(api::Manifest { name: name.to_owned(), ..Default::default() });
    std::fs::write(subject.manifests().join("a.yaml"), "kind: Pod").context("writing a manifest")?;
    ensure!(content(broker.open(manifest("a.yaml")).await?)? == "kind: Pod");
    let folder = std::fs::File::from(broker.open(manifest("")).await?);
    ensure!(folder.metadata()?.is_dir());
    let refused = |kind: Kind| {
        let broker = broker.clone();
        async move { broker.open(kind).await.err().map(|error| error.code()) }
    };
    ensure!(refused(manifest("none.yaml")).await == Some(Code::NotFound));
    let registration = "none.sock".to_owned();
    let socket = api::PluginSocket { registration, ..Default::default() };
    ensure!(refused(Kind::PluginSocket(socket)).await == Some(Code::NotFound));
    let runtime = || Kind::RuntimeSocket(api::RuntimeSocket::default());
    let away = refused(runtime()).await;
    ensure!(away == Some(Code::NotFound), "a runtime without a socket: {away:?}");

    let kind = api::StateKind::CpuManager;
    let state = || Kind::State(api::State { kind: kind.into() });
    ensure!(refused(state()).await == Some(Code::NotFound));
    for text in ["{\"one\":1}", "{}"] {
        let file = bulkhead_sys::memfd::sealed("state", text.as_bytes()).context("a memfd")?;
        broker.put_state(kind, file).await?;
        ensure!(content(broker.open(state()).await?)? == text);
    }
    subject.restart()?;
    let kept = crate::eventually("it answers", async || content(broker.open(state()).await?)).await?;
    ensure!(kept == "{}", "{kept}");
    Ok(())
}
