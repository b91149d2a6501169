//! Those who follow logs through the HTTPS API, and the floor: one thread that hears of each change of the files by inotify and copies
//! what is new into as many plain sockets.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::https::{Counted, Https};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::AsyncReadExt as _;

use crate::cluster::NAMESPACE;
use crate::measure::own_cpu;

/// Streams that are open.
#[derive(Debug)]
pub struct Followers {
    streams: Vec<Counted>,
    bytes: Arc<AtomicU64>,
}

impl Followers {
    /// `count` streams, of the logs of these pods in turn.
    ///
    /// # Errors
    /// One was refused.
    pub fn start(https: &Https, pods: &[String], count: usize) -> Result<Self> {
        let bytes = Arc::new(AtomicU64::new(0));
        let mut streams = Vec::with_capacity(count);
        for (index, pod) in (0..count).zip(pods.iter().cycle()) {
            // With a line at once, so that nobody waits for the answer's beginning.
            let path = format!("/containerLogs/{NAMESPACE}/{pod}/main?follow=true&tailLines=1");
            let answer = https.open("GET", &path, &[]).with_context(|| format!("follower {index}"))?;
            ensure!(answer.status == 200, "follower {index}: {}", answer.status);
            streams.push(answer.counted(bytes.clone()));
        }
        Ok(Self { streams, bytes })
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// # Errors
    /// Some follow no longer.
    pub fn check(&self) -> Result<()> {
        let ended = self.streams.iter().filter(|stream| stream.is_over()).count();
        ensure!(ended == 0, "{ended} of {} followers' answers have ended", self.streams.len());
        Ok(())
    }
}

/// Nanoseconds of a core for so many streams of these files over `time`, and the bytes that went through them.
///
/// # Errors
/// A file cannot be read, or a socket was not emptied.
pub fn floor(files: &[PathBuf], count: usize, time: Duration) -> Result<(u64, u64)> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let bytes = Arc::new(AtomicU64::new(0));
    let mut senders: Vec<Vec<UnixStream>> = files.iter().map(|_| Vec::new()).collect();
    for index in 0..count {
        let (sender, receiver) = UnixStream::pair()?;
        receiver.set_nonblocking(true)?;
        let _inside = runtime.enter();
        let mut receiver = tokio::net::UnixStream::from_std(receiver)?;
        let bytes = bytes.clone();
        runtime.spawn(async move {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = receiver.read(&mut buffer).await {
                bytes.fetch_add(length as u64, Ordering::Relaxed);
            }
        });
        let place = index.checked_rem(senders.len()).context("no files to follow")?;
        senders[place].push(sender);
    }
    let copied = std::thread::scope(|scope| scope.spawn(|| copy(files, &senders, time)).join());
    let cpu_ns = copied.map_err(|_| anyhow::anyhow!("the copying thread panicked"))??;
    runtime.shutdown_background();
    Ok((cpu_ns, bytes.load(Ordering::Relaxed)))
}

fn copy(paths: &[PathBuf], senders: &[Vec<UnixStream>], time: Duration) -> Result<u64> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC)?;
    let mut files = HashMap::new();
    for (path, senders) in paths.iter().zip(senders) {
        let mut file = File::open(path).with_context(|| path.display().to_string())?;
        file.seek(SeekFrom::End(0))?;
        files.insert(inotify.add_watch(path, AddWatchFlags::IN_MODIFY)?, (file, senders));
    }
    let (begin, before) = (Instant::now(), own_cpu()?);
    let mut buffer = Vec::new();
    while let Some(left) = time.checked_sub(begin.elapsed()) {
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        if poll(&mut [PollFd::new(inotify.as_fd(), PollFlags::POLLIN)], timeout)? == 0 {
            break;
        }
        for event in inotify.read_events()? {
            let Some((file, senders)) = files.get_mut(&event.wd) else { continue };
            buffer.clear();
            file.read_to_end(&mut buffer)?;
            for mut sender in senders.iter() {
                sender.write_all(&buffer)?;
            }
        }
    }
    Ok(own_cpu()?.saturating_sub(before))
}
