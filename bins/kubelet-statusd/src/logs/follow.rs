//! A log as it is read for one client: to its end, or for as long as the container runs.
//!
//! The client pulls: nothing is read before it takes what was read before, and when it goes, this goes with it. Of what it
//! has not taken there are [`UNTAKEN`] pieces at most, wherever on the way they are: a piece counts until it is let go of,
//! which a server does once it is written. Between two pieces a follower holds its descriptor and an unfinished line.
//!
//! ```text
//!                  grown, cut                          quiet for a moment
//!   reading <-------------------- at its end --------------------------------> reading the next file
//!      |                              | renamed, and the next file is there -----^
//!      | ended, and read to the end   | ended: read once more
//!      v                              v
//!     over                         reading
//! ```
//!
//! Rotation: the old file is read to its end, and for [`SETTLE`] longer, because its writer lets go of it a moment after
//! the next file is there. That it was renamed is seen by its own descriptor, and so is its stamp; only then kubelet-volnetd is
//! asked. After it come the rotated files with later stamps, in their order and compressed by then, and then the current one.
//! While the file that was read is kept, all that came after it is; when it is not, what came next may be gone too, and whoever
//! follows is told.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_types::LogStamp;
use bytes::Bytes;
use futures_util::Stream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use super::growth::{self, Growth, Shape};
use super::lives::Life;
use super::reading::{Piece, Reading};
use super::source::{NoFile, Source};
use crate::server::answer::BoxError;

/// Pieces that a client may leave untaken.
const UNTAKEN: usize = 2;
/// A rotated file that has not grown for so long has no writer any more.
const SETTLE: Duration = Duration::from_millis(100);
/// Pauses between two questions for the next file.
const LOOK: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// The file's place is looked at now and then although nothing hints at a change.
const AUDIT: Duration = Duration::from_secs(60);
/// The same where the descriptor does not tell the file's name.
const AUDIT_NAMELESS: Duration = Duration::from_secs(5);
/// What the kernel adds to the name of a file that was removed.
const REMOVED: &str = " (deleted)";
const COMPRESSED: &str = ".gz";
/// For so long the next file of a container that has ended is asked for.
const LAST_LOOK: Duration = Duration::from_secs(5);

/// What following takes.
#[derive(Debug)]
pub struct Following<S> {
    pub source: S,
    pub life: watch::Receiver<Life>,
    pub growth: Growth,
    /// The log file's own name.
    pub name: String,
}

/// The file that comes after the one that is read.
#[derive(Debug)]
enum Next {
    /// Nothing hints at one.
    None,
    /// The one that is read is not at its place any more; when to ask again.
    Wanted { at: Instant, pause: Duration },
    /// It is there; the old one was at its end, unchanged, since.
    There { file: Successor, quiet_since: Instant },
    /// The one that comes next may be gone.
    Lost,
}

#[derive(Debug)]
enum Successor {
    Current(File),
    /// A file that was rotated has no writer, and nor has the one before it.
    Rotated(File),
}

#[derive(Debug)]
struct Follower<S> {
    following: Following<S>,
    next: Next,
    grown: Instant,
    audited: Instant,
    names_tell: bool,
    /// The container has ended: what is there is all there will be.
    ended: Option<Instant>,
}

#[derive(Debug)]
struct Log<S> {
    /// `None`: over.
    reading: Option<Reading>,
    follower: Option<Follower<S>>,
    untaken: Arc<Semaphore>,
    /// What was given last ends in the middle of a line.
    in_line: bool,
}

/// A piece on its way to the client.
struct Untaken {
    bytes: Vec<u8>,
    _counts: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Untaken {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The log piece by piece. Never fails: what goes wrong after the beginning is told in words at the end, as upstream
/// does.
pub fn pieces<S: Source>(
    reading: Reading,
    following: Option<Following<S>>,
) -> impl Stream<Item = Result<Bytes, BoxError>> + Send + 'static {
    let now = Instant::now();
    let follower = following.map(|following| Follower {
        following,
        next: Next::None,
        grown: now,
        audited: now,
        names_tell: true,
        ended: None,
    });
    let log = Log { reading: Some(reading), follower, untaken: Arc::new(Semaphore::new(UNTAKEN)), in_line: false };
    futures_util::stream::unfold(log, |mut log| async move {
        let piece = log.next().await?;
        Some((Ok(piece), log))
    })
}

impl<S: Source> Log<S> {
    async fn next(&mut self) -> Option<Bytes> {
        let counts = self.untaken.clone().acquire_owned().await.ok()?;
        let bytes = match self.read().await? {
            Ok(bytes) => bytes,
            Err(error) => failure(&error, self.in_line),
        };
        self.in_line = bytes.last().is_some_and(|byte| *byte != b'\n');
        Some(Bytes::from_owner(Untaken { bytes, _counts: counts }))
    }

    async fn read(&mut self) -> Option<io::Result<Vec<u8>>> {
        loop {
            // A client that goes leaves the file to the thread that reads it, which then closes it.
            let mut reading = self.reading.take()?;
            let mut at_once = None;
            if reading.at_end {
                let more = match &mut self.follower {
                    Some(follower) => follower.more(&mut reading).await,
                    None => Ok(None),
                };
                match more {
                    Ok(Some(rest)) => {
                        reading.at_end = false;
                        if !rest.is_empty() {
                            self.reading = Some(reading);
                            return Some(Ok(rest));
                        }
                        // A thread costs a follower of few lines more than all else that is done for them.
                        at_once = reading.advance_at_once();
                    }
                    Ok(None) => return self.end(reading).map(Ok),
                    Err(error) => return Some(Err(error)),
                }
            }
            let (reading, piece) = match at_once {
                Some(piece) => (reading, Ok(piece)),
                None => {
                    let work = tokio::task::spawn_blocking(move || {
                        let piece = reading.advance();
                        (reading, piece)
                    });
                    work.await.ok()?
                }
            };
            let Piece { out, moved } = match piece {
                Ok(piece) => piece,
                Err(error) => return Some(Err(error)),
            };
            if let Some(follower) = &mut self.follower
                && moved
            {
                follower.grown = Instant::now();
            }
            if reading.transcript.is_done() {
                say_malformed(&reading);
            } else {
                self.reading = Some(reading);
            }
            if !out.is_empty() {
                return Some(Ok(out));
            }
        }
    }

    /// The last words. Who follows is not shown a line that never ended.
    fn end(&self, mut reading: Reading) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        if self.follower.is_none() {
            reading.transcript.finish(&mut out);
        }
        say_malformed(&reading);
        (!out.is_empty()).then_some(out)
    }
}

/// Shown at the end, as other failures are.
const LOST: &str = "the log was rotated faster than it was read, lines of it are gone (see containerLogMaxFiles)";

/// On a line of its own, whatever was given before it.
fn failure(error: &io::Error, in_line: bool) -> Vec<u8> {
    let end = if in_line { "\n" } else { "" };
    format!("{end}failed to read log file: {error}").into()
}

fn say_malformed(reading: &Reading) {
    let lines = reading.transcript.malformed();
    if lines > 0 {
        tracing::warn!(lines, "skipped unreadable lines of container log");
    }
}

impl<S: Source> Follower<S> {
    /// At the end of the file: waits until there may be more, and says what is to be given before that. `None`: there
    /// will be no more.
    async fn more(&mut self, reading: &mut Reading) -> io::Result<Option<Vec<u8>>> {
        loop {
            let shape = growth::shape(&reading.file)?;
            if !reading.is_compressed() {
                if shape.size < reading.offset {
                    reading.begin_anew();
                    return Ok(Some(Vec::new()));
                }
                if shape.size > reading.offset {
                    return Ok(Some(Vec::new()));
                }
            }
            if self.ended.is_none() && *self.following.life.borrow_and_update() == Life::Ended {
                // It may have written between our last look and its end.
                self.ended = Some(Instant::now());
                return Ok(Some(Vec::new()));
            }
            self.look_for_next(&reading.file, shape).await;
            match std::mem::replace(&mut self.next, Next::None) {
                Next::There { file: Successor::Rotated(file), .. } => {
                    if growth::shape(&reading.file)?.size != shape.size {
                        continue;
                    }
                    return Ok(Some(self.go_on(reading, file)));
                }
                Next::There { file: Successor::Current(file), quiet_since }
                    if self.ended.is_some() || quiet_since.elapsed() >= SETTLE =>
                {
                    if growth::shape(&reading.file)? != shape {
                        // Another one may have been rotated meanwhile.
                        self.next = Next::There { file: Successor::Current(file), quiet_since: Instant::now() };
                        continue;
                    }
                    return Ok(Some(self.go_on(reading, file)));
                }
                Next::Lost => return Err(io::Error::other(LOST)),
                next => self.next = next,
            }
            match (self.ended, &self.next) {
                (Some(since), Next::Wanted { .. }) if since.elapsed() < LAST_LOOK => {}
                (Some(_), _) => return Ok(None),
                (None, _) => {}
            }
            if self.is_forgotten().await {
                return Ok(None);
            }
            self.wait(&reading.file, shape).await;
        }
    }

    fn go_on(&mut self, reading: &mut Reading, file: File) -> Vec<u8> {
        self.grown = Instant::now();
        let is_compressed = place_of(&file).is_some_and(|place| place.ends_with(COMPRESSED));
        reading.go_on_in(Arc::new(file), is_compressed)
    }

    /// Finds out whether another file is at the log's place.
    async fn look_for_next(&mut self, file: &Arc<File>, shape: Shape) {
        let now = Instant::now();
        if matches!(self.next, Next::None) {
            let audit = if self.names_tell { AUDIT } else { AUDIT_NAMELESS };
            let renamed = self.names_tell && name_of(file).is_some_and(|name| name != self.following.name);
            if !renamed && now < self.audited + audit && (self.ended.is_none() || self.names_tell) {
                return;
            }
            self.next = Next::Wanted { at: now, pause: LOOK.0 };
        }
        let Next::Wanted { at, pause } = self.next else { return };
        if now < at {
            return;
        }
        self.audited = now;
        self.next = match self.successor(file, shape).await {
            Ok(next) => next,
            // After its end nothing comes to where nothing is.
            Err(NoFile::Missing | NoFile::Refused(_)) if self.ended.is_some() => Next::None,
            Err(_) => Next::Wanted { at: Instant::now() + pause, pause: (pause * 2).min(LOOK.1) },
        };
    }

    /// The file after this one. The current one is opened first: if then none was rotated after this one, it is the next.
    async fn successor(&mut self, file: &Arc<File>, shape: Shape) -> Result<Next, NoFile> {
        let source = &self.following.source;
        let current = source.open().await;
        if let Ok(current) = &current
            && growth::shape(current).is_ok_and(|found| found.id == shape.id)
        {
            // It is at its place: its name is none that tells anything.
            self.names_tell = name_of(file).is_some_and(|name| name == self.following.name);
            return Ok(Next::None);
        }
        let next = match stamp_of(file, &self.following.name) {
            None => Successor::Current(current?),
            Some(stamp) => {
                let next = match source.open_after(stamp).await {
                    Ok(rotated) => Successor::Rotated(rotated),
                    Err(NoFile::Missing) => Successor::Current(current?),
                    Err(error) => return Err(error),
                };
                // The oldest go first: while this one is kept, none after it has gone.
                if !source.is_kept(stamp).await? {
                    return Ok(Next::Lost);
                }
                next
            }
        };
        Ok(Next::There { file: next, quiet_since: Instant::now() })
    }

    /// The log is gone from its place for a while, and nobody knows the pod: kubelet-syncd was away when it went.
    async fn is_forgotten(&mut self) -> bool {
        let asks = matches!(self.next, Next::Wanted { pause, .. } if pause == LOOK.1);
        asks && self.following.source.is_forgotten().await
    }

    /// Until the file is another than it was, the container has ended, or it is time to look.
    async fn wait(&mut self, file: &Arc<File>, shape: Shape) {
        let at = match &self.next {
            Next::None => self.audited + if self.names_tell { AUDIT } else { AUDIT_NAMELESS },
            Next::Wanted { at, .. } => *at,
            Next::There { quiet_since, .. } => *quiet_since + SETTLE,
            // It is acted on at once.
            Next::Lost => Instant::now(),
        };
        let grown = self.following.growth.wait(file, shape, self.grown);
        let life = &mut self.following.life;
        tokio::select! {
            _ = grown => {
                if let Next::There { quiet_since, .. } = &mut self.next {
                    *quiet_since = Instant::now();
                }
            }
            // Its end has been seen: nothing more is told of it.
            changed = life.changed(), if self.ended.is_none() => {
                if changed.is_err() {
                    tokio::time::sleep_until(at).await;
                }
            }
            () = tokio::time::sleep_until(at) => {}
        }
    }
}

/// The name under which the kernel knows an open file at the moment; another one after it was renamed, and with a word
/// added after it was removed.
fn name_of(file: &File) -> Option<String> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    Some(path.file_name()?.to_str()?.to_owned())
}

/// That name, or the last one that it had.
fn place_of(file: &File) -> Option<String> {
    let name = name_of(file)?;
    Some(name.strip_suffix(REMOVED).unwrap_or(&name).to_owned())
}

/// What a rotated file has in its name that the log named so has not. `None`: it is not rotated, or by somebody else.
fn stamp_of(file: &File, log: &str) -> Option<LogStamp> {
    let name = place_of(file)?;
    let stamp = name.strip_prefix(log)?.strip_prefix('.')?;
    LogStamp::parse(stamp.strip_suffix(COMPRESSED).unwrap_or(stamp)).ok()
}

#[cfg(test)]
#[path = "follow_tests.rs"]
mod tests;
