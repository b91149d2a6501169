//! Rotation of containers' logs on a real runtime: which files there are, what followers see, and that no death of a process and no
//! full disk loses a line, or leaves one twice.

use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::cluster::client::Credential;
use bulkhead_testkit::https::{Arriving, Https};
use bulkhead_testkit::{IDLE, LONG, Lab, Node, Pod, Release, eventually, processes};
use bulkhead_tests::disk::Disk;
use bulkhead_tests::rotated::{LogFolder, are_contiguous, content, counting};
use bulkhead_tests::{lab, lab_alone, lab_on};
use bulkhead_types::{LogForm, LogStamp};
use nix::sys::signal::Signal;
use serde_json::json;

const FILES: usize = 4;

fn start(lab: &Lab, folder: Option<&Path>, size: &str, files: usize) -> Result<(Node, Https)> {
    let node = lab.node("alpha");
    let node = folder.map_or_else(|| lab.node("alpha"), |folder| node.in_folder(folder));
    let node = node
        .config("containerLogMaxSize", json!(size))
        .config("containerLogMaxFiles", json!(files))
        .config("containerLogMaxWorkers", json!(2))
        .config("containerLogMonitorInterval", json!("3s"))
        .config("evictionHard", json!({"memory.available": "50Mi"}))
        .start()?;
    Ok((node, Https::new((lab.netns().address(), 10250).into(), &Credential::Nothing)))
}

fn counter(name: &str, line: usize, burst: u32, pause: &str) -> Pod {
    Pod::busybox(name, &counting(line, burst, pause)).empty_dir("go", "", None, "/go").restart_policy("Never")
}

fn end(node: &Node, pod: &str) -> Result<()> {
    let running = node.wait_running(pod, 1)?;
    let (code, output) = node.cri()?.exec(&running.main().id, &["touch", "/go/go"])?;
    ensure!(code == 0, "touch ended with {code}: {output}");
    Ok(())
}

fn path(pod: &str, query: &str) -> String {
    format!("/containerLogs/default/{pod}-alpha/main?{query}")
}

fn follow(https: &Https, pod: &str) -> Result<Arriving> {
    let arriving = https.open("GET", &path(pod, "follow=true"), &[])?;
    ensure!(arriving.status == 200, "{}", arriving.status);
    Ok(arriving)
}

/// What a follower was shown.
#[derive(Debug, Default)]
struct Shown {
    lines: u64,
    /// The first line that is not the one that was due.
    wrong: Option<String>,
    end: String,
}

/// Takes all of it, and looks at each line.
fn take(mut arriving: Arriving) -> std::thread::JoinHandle<Result<Shown>> {
    std::thread::spawn(move || {
        arriving.set_limit(LONG);
        let (mut shown, mut rest) = (Shown::default(), Vec::new());
        while let Some(piece) = arriving.chunk()? {
            rest.extend_from_slice(&piece);
            while let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=at).collect();
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                if line == shown.lines.to_string() {
                    shown.lines += 1;
                } else {
                    shown.end.clone_from(&line);
                    if !line.starts_with("last ") {
                        shown.wrong.get_or_insert(line);
                    }
                }
            }
        }
        shown.end += &String::from_utf8_lossy(&rest);
        Ok(shown)
    })
}

fn saw_everything(follower: std::thread::JoinHandle<Result<Shown>>) -> Result<u64> {
    let shown = follower.join().map_err(|_| anyhow::anyhow!("the follower panicked"))??;
    ensure!(shown.wrong.is_none() && shown.end == format!("last {}", shown.lines - 1), "{shown:?}");
    Ok(shown.lines)
}

/// Waits until there are as many files as there may be, and all as they must be.
fn wait_settled(node: &Node, pod: &str, files: usize) -> Result<LogFolder> {
    eventually(&format!("{files} files of the log of {pod}"), LONG, || {
        let log = LogFolder::read(node, pod)?;
        ensure!(log.files() == files, "{log:#?}");
        log.is_settled().map(|()| log)
    })
}

/// All that is on the disk is there once; looked at again where a rotation came in between.
fn is_whole(node: &Node, pod: &str) -> Result<Vec<u64>> {
    eventually(&format!("the log of {pod} is whole"), LONG, || {
        let log = LogFolder::read(node, pod)?;
        log.is_settled()?;
        let numbers = log.numbers()?;
        are_contiguous(&numbers)?;
        Ok(numbers)
    })
}

/// Until another log was rotated.
fn next_rotation(node: &Node, pod: &str) -> Result<LogStamp> {
    let newest =
        || -> Result<Option<LogStamp>> { Ok(LogFolder::read(node, pod)?.rotated.last().map(|(stamp, ..)| *stamp)) };
    let before = newest()?;
    eventually(&format!("the log of {pod} is rotated"), LONG, || {
        let now = newest()?;
        ensure!(now > before, "{now:?}");
        now.context("no stamp")
    })
}

fn rotates(lab: &Lab) -> Result<()> {
    let (node, https) = start(lab, None, "64Ki", FILES)?;
    node.write(&Pod::busybox("quiet", &format!("echo hello; {IDLE}")))?;
    node.write(&counter("slow", 20, 50, "0.05"))?;
    node.write(&counter("other", 20, 50, "0.1"))?;
    node.wait_running("slow", 1)?;
    node.wait_running("other", 1)?;
    let follower = take(follow(&https, "slow")?);

    // Several logs at once; of each the newest rotated one stays as it was, and there never are too many.
    for pod in ["slow", "other"] {
        wait_settled(&node, pod, FILES)?;
    }
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(7) {
        for pod in ["slow", "other"] {
            let log = LogFolder::read(&node, pod)?;
            ensure!(log.rotated.len() < FILES, "{log:#?}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let numbers = is_whole(&node, "slow")?;
    ensure!(numbers.first() > Some(&0), "the oldest have gone");
    let log = LogFolder::read(&node, "slow")?;
    for (_, _, path) in &log.rotated {
        let stat = std::fs::metadata(path)?;
        ensure!((stat.uid(), stat.mode() & 0o7777) == (0, 0o640), "{} {:o}", path.display(), stat.mode());
    }
    let links = std::fs::read_dir("/var/log/containers")?.flatten().map(|entry| entry.path());
    let link = links.into_iter().find(|link| std::fs::read_link(link).ok() == log.current);
    ensure!(link.is_some(), "log collectors find the current file by a link");

    // Whoever does not follow is shown the current file, as by upstream.
    let shown = eventually("the beginning of the current file", LONG, || {
        let shown = https.get(&path("slow", "limitBytes=200"))?;
        let shown = String::from_utf8_lossy(&shown.body).into_owned();
        let current = content(&LogFolder::read(&node, "slow")?.current.context("no current file")?)?;
        let first = current.split(' ').nth(3).context("nothing is written")?;
        ensure!(shown.starts_with(&format!("{first} ")), "{first} {shown}");
        Ok(shown)
    })?;
    ensure!(!shown.starts_with("0 "), "{shown}");

    end(&node, "slow")?;
    let lines = saw_everything(follower)?;
    ensure!(lines > *numbers.last().context("no lines")?, "{lines}");
    let quiet = LogFolder::read(&node, "quiet")?;
    ensure!(quiet.files() == 1 && quiet.is_settled().is_ok(), "{quiet:?}");
    node.finish()
}

#[test]
fn logs_are_rotated_and_followers_see_every_line() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    rotates(&lab)
}

#[test]
fn a_newer_runtime_opens_new_logs_too() -> Result<()> {
    let Some(lab) = lab_on(Release::V2_1)? else { return Ok(()) };
    rotates(&lab)
}

fn containerd(lab: &Lab) -> Result<i32> {
    let all = processes::with_argument_below(&lab.folder());
    let found = all.into_iter().find(|pid| processes::program(*pid).is_some_and(|name| name.ends_with("containerd")));
    found.context("no containerd")
}

/// The name that the current log gets from somebody who then ends.
fn rename_current(node: &Node, pod: &str) -> Result<PathBuf> {
    eventually("a current file is renamed", LONG, || {
        let log = LogFolder::read(node, pod)?;
        let newest = log.rotated.last().map(|(stamp, ..)| *stamp);
        let stamp = newest.and_then(LogStamp::next).or(LogStamp::new(2020, 1, 1, 0, 0, 0)).context("no stamp")?;
        let current = log.current.context("no current file")?;
        let rotated = PathBuf::from(format!("{}.{stamp}", current.display()));
        std::fs::rename(&current, &rotated)?;
        Ok(rotated)
    })
}

#[test]
fn no_death_at_any_step_loses_a_line_or_leaves_one_twice() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let (node, https) = start(&lab, None, "256Ki", 60)?;
    node.write(&counter("steady", 60, 100, "0.05"))?;
    node.write(&counter("ends", 60, 100, "0.05"))?;
    node.wait_running("steady", 1)?;
    node.wait_running("ends", 1)?;
    let follower = take(follow(&https, "steady")?);
    wait_settled(&node, "steady", 3)?;

    // Each process, just as a log was rotated and another one is compressed.
    for daemon in ["kubelet-evictiond", "kubelet-syncd", "kubelet-volnetd", "kubelet-evictiond", "kubelet-syncd"] {
        next_rotation(&node, "steady")?;
        node.kill_daemon(daemon)?;
    }
    let seen = is_whole(&node, "steady")?;
    ensure!(seen.first() == Some(&0), "none has gone yet: {seen:?}");

    // Between the rename and the runtime's new file, which a runtime that stands still never makes.
    let runtime = containerd(&lab)?;
    eventually("a log that is too large", LONG, || {
        let current = LogFolder::read(&node, "steady")?.current.context("no current file")?;
        let bytes = std::fs::metadata(&current)?.len();
        ensure!(bytes >= 256 << 10, "{bytes} bytes");
        Ok(())
    })?;
    processes::signal(runtime, Signal::SIGSTOP);
    let stopped = eventually("a log is renamed, and no new one there", LONG, || {
        let log = LogFolder::read(&node, "steady")?;
        ensure!(log.current.is_none(), "{log:?}");
        Ok(())
    });
    node.kill_daemon("kubelet-syncd")?;
    node.kill_daemon("kubelet-volnetd")?;
    processes::signal(runtime, Signal::SIGCONT);
    stopped?;
    is_whole(&node, "steady")?;
    // And at a start: nobody is left who knows of it.
    node.kill_daemon("kubelet-evictiond")?;
    node.kill_daemon("kubelet-syncd")?;
    rename_current(&node, "steady")?;
    is_whole(&node, "steady")?;

    // What a process left that was ended between two steps: both forms, or what upstream had begun.
    let log = eventually("a compressed log", LONG, || {
        let log = LogFolder::read(&node, "steady")?;
        log.is_settled()?;
        ensure!(log.rotated.first().is_some_and(|(_, form, _)| *form == LogForm::Compressed), "{log:?}");
        Ok(log)
    })?;
    let compressed = &log.rotated.first().context("no rotated log")?.2;
    let plain = compressed.with_extension("");
    let text = content(compressed)?;
    std::fs::write(plain.with_extension("half"), &text)?;
    // As after a power cut: the name is there, the content is not.
    std::fs::write(compressed, "")?;
    std::fs::rename(plain.with_extension("half"), &plain)?;
    std::fs::write(format!("{}.tmp", plain.display()), "half of it")?;
    eventually("what was left is finished", LONG, || {
        ensure!(!plain.exists() && content(compressed)? == text, "{:?}", LogFolder::read(&node, "steady")?);
        LogFolder::read(&node, "steady")?.is_settled()
    })?;
    ensure!(is_whole(&node, "steady")?.first() == Some(&0));

    // The container ends before anybody could have its runtime open a new file.
    let running = node.wait_running("ends", 1)?;
    let evictiond = node.pids().get("kubelet-evictiond").copied().context("no kubelet-evictiond")?;
    processes::signal(evictiond, Signal::SIGSTOP);
    let renamed = rename_current(&node, "ends")?;
    let (code, output) = node.cri()?.exec(&running.main().id, &["touch", "/go/go"])?;
    ensure!(code == 0, "{output}");
    eventually("it has ended", LONG, || {
        ensure!(content(&renamed)?.contains(" last "), "not yet");
        Ok(())
    })?;
    processes::signal(evictiond, Signal::SIGKILL);
    eventually("its log is shown", LONG, || {
        let shown = https.get(&path("ends", "tailLines=1"))?;
        let text = String::from_utf8_lossy(&shown.body).into_owned();
        ensure!(shown.status == 200 && text.starts_with("last "), "{} {text}", shown.status);
        Ok(())
    })?;
    // What was the newest rotated one is the current one now.
    eventually("all of it is there once", LONG, || {
        let log = LogFolder::read(&node, "ends")?;
        ensure!(log.rotated.iter().all(|(_, form, _)| *form == LogForm::Compressed), "{log:#?}");
        let numbers = log.numbers()?;
        are_contiguous(&numbers)?;
        ensure!(!renamed.exists() && numbers.first() == Some(&0), "{log:#?}");
        Ok(())
    })?;

    let before = is_whole(&node, "steady")?;
    end(&node, "steady")?;
    let lines = saw_everything(follower)?;
    ensure!(lines >= before.len() as u64, "{lines}");
    let all = is_whole(&node, "steady")?;
    ensure!(all.first() == Some(&0) && all.len() as u64 == lines, "{} of {lines}", all.len());
    node.finish()
}

/// Fills a disk to the last block; answers the file.
fn fill(disk: &Path) -> Result<PathBuf> {
    let filler = disk.join("filler");
    let file = std::fs::File::options().create(true).append(true).open(&filler)?;
    for size in [1 << 20, 4096, 512] {
        let block = vec![b'x'; size];
        while (&file).write_all(&block).is_ok() {}
    }
    Ok(filler)
}

#[test]
fn a_full_disk_cuts_no_log() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let disk = Disk::new(&lab, "logs", 128)?;
    let (node, https) = start(&lab, Some(disk.path()), "256Ki", 60)?;
    node.write(&counter("steady", 60, 100, "0.05"))?;
    node.wait_running("steady", 1)?;
    wait_settled(&node, "steady", 4)?;
    let filler = fill(disk.path())?;
    let before = is_whole(&node, "steady").or_else(|_| LogFolder::read(&node, "steady")?.numbers())?;
    // Some rounds of it; whatever is done, of what was written nothing goes.
    let began = Instant::now();
    let mut largest: std::collections::HashMap<u64, u64> = std::collections::HashMap::new();
    while began.elapsed() < Duration::from_secs(10) {
        if let Some(Ok(stat)) = LogFolder::read(&node, "steady")?.current.map(std::fs::metadata) {
            let largest = largest.entry(stat.ino()).or_default();
            ensure!(stat.size() >= *largest, "the current file was cut from {largest} to {} bytes", stat.size());
            *largest = stat.size();
        }
        fill(disk.path())?;
        std::thread::sleep(Duration::from_millis(50));
    }
    std::fs::remove_file(filler)?;
    wait_settled(&node, "steady", LogFolder::read(&node, "steady")?.files() + 1)?;
    let after = LogFolder::read(&node, "steady")?.numbers()?;
    ensure!(after.len() > before.len() && after.starts_with(&before), "{} lines became {}", before.len(), after.len());
    let shown = https.get(&path("steady", "tailLines=1"))?;
    ensure!(shown.status == 200, "{}", shown.status);
    node.finish()?;
    drop(disk);
    Ok(())
}

/// 20 MB/s, rotated every 3 s.
#[test]
fn a_follower_of_a_fast_log_loses_nothing_or_is_told() -> Result<()> {
    let Some(lab) = lab_alone()? else { return Ok(()) };
    let (node, https) = start(&lab, None, "1Mi", 5)?;
    // Some 20 MB/s.
    node.write(&counter("fast", 1000, 5000, "0.15"))?;
    node.wait_running("fast", 1)?;
    let mut stalled = follow(&https, "fast")?;
    stalled.chunk()?;
    let follower = take(follow(&https, "fast")?);
    let began = Instant::now();
    let mut written = 0;
    let mut rotations = 0;
    while rotations < 7 {
        let stamp = next_rotation(&node, "fast")?;
        let log = LogFolder::read(&node, "fast")?;
        let rotated = log.rotated.into_iter().find(|(other, ..)| *other == stamp);
        written += rotated.map_or(0, |(.., path)| std::fs::metadata(path).map_or(0, |stat| stat.len()));
        rotations += 1;
    }
    let (megabytes, seconds) = (written / 1_000_000, began.elapsed().as_secs_f64());
    eprintln!("{megabytes} MB in {rotations} rotations and {seconds:.1} s");

    // Who stood still for more rotations than there are files reads what it has open, and is told. Before anything else: who is
    // nobody in particular may stall for 30 s.
    let mut rest = Vec::new();
    while let Some(piece) = stalled.chunk()? {
        rest.extend_from_slice(&piece);
    }
    let rest = String::from_utf8_lossy(&rest);
    let last = rest.rsplit('\n').next().unwrap_or_default();
    ensure!(last.starts_with("failed to read log file: the log was rotated faster than it was read"), "{last}");

    end(&node, "fast")?;
    let lines = saw_everything(follower)?;
    eprintln!("{lines} lines were followed");
    node.finish()
}

/// The stamps' order is that of time, whatever the clock does; a name that is taken stays.
#[test]
fn names_that_are_taken_stay() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let (node, _) = start(&lab, None, "64Ki", 6)?;
    node.write(&counter("steady", 60, 100, "0.05"))?;
    node.wait_running("steady", 1)?;
    let log = eventually("a log", LONG, || LogFolder::read(&node, "steady"))?;
    let future = log.current.context("no log")?.with_extension("log.29991231-235959");
    let kept = std::fs::File::create(&future)?;
    kept.write_all_at(b"kept\n", 0)?;
    let stamp = next_rotation(&node, "steady")?;
    ensure!(stamp.as_str() == "30000101-000000", "{stamp}");
    eventually("it is compressed, as the others", LONG, || {
        let compressed = PathBuf::from(format!("{}.gz", future.display()));
        ensure!(content(&compressed)? == "kept\n", "{}", compressed.display());
        Ok(())
    })?;
    is_whole(&node, "steady")?;
    node.finish()
}
