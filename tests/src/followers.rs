//! People who follow the logs of pods through the node's HTTPS API while its processes come and go: each asks again when
//! the answer ends, from the last line on, and says what it saw.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use bulkhead_testkit::LONG;
use bulkhead_testkit::https::Https;

use crate::moments::now;

/// Between two looks at whether the test is over, and between two tries of a server that is away.
const SLICE: Duration = Duration::from_millis(300);

/// Those who follow.
#[derive(Debug)]
pub struct Followers {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<Followed>>>,
}

/// What one of them saw.
#[derive(Debug, Clone, Default)]
pub struct Followed {
    pub pod: String,
    /// The number of the last line, which is also how many there were.
    pub lines: u64,
    pub ends: Vec<End>,
}

/// An answer that ended while it was being followed.
#[derive(Debug, Clone)]
pub struct End {
    /// Milliseconds since 1970.
    pub at: i64,
    /// Ended by the server, rather than broken.
    pub clean: bool,
    pub how: String,
}

impl Followers {
    /// Follows the container `main` of each of these pods, whose lines are `line 1`, `line 2` and so on.
    pub fn start(https: &Https, pods: &[String]) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let threads = pods
            .iter()
            .map(|pod| {
                let (https, over) = (https.clone(), Arc::clone(&over));
                let mut followed = Followed { pod: pod.clone(), ..Followed::default() };
                std::thread::spawn(move || {
                    let mut reader = Reader::default();
                    follow(&https, &over, &mut followed, &mut reader)
                        .with_context(|| format!("following the log of {}: {followed:?}", followed.pod))?;
                    Ok(followed)
                })
            })
            .collect();
        Self { over, threads }
    }

    /// Whether all of them still follow.
    ///
    /// # Errors
    /// Why one does not.
    pub fn check(&mut self) -> Result<()> {
        let Some(at) = self.threads.iter().position(JoinHandle::is_finished) else { return Ok(()) };
        match self.threads.swap_remove(at).join() {
            Ok(Err(error)) => Err(error),
            Ok(Ok(followed)) => bail!("it followed no longer: {followed:?}"),
            Err(_) => bail!("a follower panicked"),
        }
    }

    /// Ends them, each after one more line; gives what they saw.
    ///
    /// # Errors
    /// A line was lost, or no answer came any more.
    pub fn finish(self) -> Result<Vec<Followed>> {
        self.over.store(true, Ordering::SeqCst);
        self.threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a follower panicked"))?).collect()
    }
}

fn follow(https: &Https, over: &AtomicBool, followed: &mut Followed, reader: &mut Reader) -> Result<()> {
    let mut away = Instant::now();
    // The line that has to come after the test's end, so that each has followed to the very end.
    let mut last = None;
    loop {
        let since = reader.since.as_ref().map_or_else(String::new, |time| format!("&sinceTime={time}"));
        let path = format!("/containerLogs/default/{}/main?follow=true&timestamps=true{since}", followed.pod);
        let mut arriving = match https.open("GET", &path, &[]) {
            Ok(arriving) if arriving.status == 200 => arriving,
            refused => {
                let why = refused.map_or_else(|error| format!("{error:#}"), |answer| answer.status.to_string());
                ensure!(away.elapsed() < LONG, "no answer for {} s: {why}", LONG.as_secs());
                std::thread::sleep(SLICE);
                continue;
            }
        };
        arriving.set_limit(SLICE);
        reader.torn.clear();
        // Silence, while the process is stopped, is no end; neither is it progress.
        let mut heard = Instant::now();
        loop {
            match arriving.chunk() {
                Ok(Some(bytes)) => {
                    heard = Instant::now();
                    reader.take(&bytes)?;
                    followed.lines = reader.number;
                }
                Ok(None) => {
                    followed.ends.push(End { at: now(), clean: true, how: "ended".to_owned() });
                    break;
                }
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    ensure!(heard.elapsed() < LONG, "silence for {} s", LONG.as_secs());
                }
                Err(error) => {
                    followed.ends.push(End { at: now(), clean: false, how: error.to_string() });
                    break;
                }
            }
            if over.load(Ordering::SeqCst) {
                let last = *last.get_or_insert(reader.number);
                if reader.number > last {
                    return Ok(());
                }
            }
        }
        away = Instant::now();
    }
}

/// Puts lines together and counts them.
#[derive(Debug, Default)]
struct Reader {
    /// A line without its end.
    torn: Vec<u8>,
    /// The last whole line's.
    number: u64,
    /// The last whole line's time, to the second below.
    since: Option<String>,
}

impl Reader {
    /// Fails when a line is missing. Lines that were seen before come again after asking by the second.
    fn take(&mut self, bytes: &[u8]) -> Result<()> {
        self.torn.extend_from_slice(bytes);
        while let Some(end) = self.torn.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.torn.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            let (time, text) = line.split_once(' ').with_context(|| format!("no time in {line:?}"))?;
            let number = text.strip_prefix("line ").and_then(|number| number.parse::<u64>().ok());
            let number = number.with_context(|| format!("no line of the container's: {line:?}"))?;
            ensure!(number <= self.number + 1, "line {number} came after line {}", self.number);
            if number == self.number + 1 {
                self.number = number;
                self.since = Some(format!("{}Z", time.split(['.', 'Z']).next().unwrap_or_default()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_put_together_and_none_may_be_missing() {
        let mut reader = Reader::default();
        reader.take(b"2026-01-01T00:00:01.5Z line 1\n2026-01-01T00:00:02.").unwrap();
        assert_eq!((reader.number, reader.since.as_deref()), (1, Some("2026-01-01T00:00:01Z")));
        reader.take(b"1Z line 2\n2026-01-01T00:00:01.5Z line 1\n").unwrap();
        assert_eq!((reader.number, reader.since.as_deref()), (2, Some("2026-01-01T00:00:02Z")));
        reader.take(b"2026-01-01T00:00:02.9Z line 4\n").unwrap_err();
    }
}
