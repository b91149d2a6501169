//! Real files, written, renamed and cut while they are followed.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use futures_util::StreamExt as _;

use super::*;
use crate::logs::options::Streams;
use crate::logs::transcript::{Rules, Transcript};

const RULES: Rules = Rules { since: None, timestamps: false, limit: None, lines: None, streams: Streams::All };

/// The log's place in a folder, and what its opener says.
#[derive(Debug)]
struct Place {
    folder: tempfile::TempDir,
    /// So many answers to come are none.
    away: AtomicU32,
    asked: AtomicU32,
    forgotten: AtomicBool,
}

#[derive(Debug, Clone)]
struct Opener(Arc<Place>);

impl Source for Opener {
    async fn open(&self) -> Result<File, NoFile> {
        self.0.asked.fetch_add(1, Ordering::Relaxed);
        if self.0.away.load(Ordering::Relaxed) > 0 {
            self.0.away.fetch_sub(1, Ordering::Relaxed);
            return Err(NoFile::Away(bulkhead_ipc::broker::BrokerError::Protocol { what: "test", problem: "away" }));
        }
        File::open(self.0.path()).map_err(|_| NoFile::Missing)
    }

    async fn open_after(&self, stamp: LogStamp) -> Result<File, NoFile> {
        let after = self.0.rotated().into_iter().find(|(other, _)| *other > stamp).ok_or(NoFile::Missing)?;
        File::open(after.1).map_err(|_| NoFile::Missing)
    }

    async fn is_kept(&self, stamp: LogStamp) -> Result<bool, NoFile> {
        Ok(self.0.rotated().iter().any(|(other, _)| *other == stamp))
    }

    async fn is_forgotten(&self) -> bool {
        self.0.forgotten.load(Ordering::Relaxed)
    }
}

impl Place {
    fn new() -> Arc<Self> {
        let place = Place {
            folder: tempfile::tempdir().unwrap(),
            away: AtomicU32::new(0),
            asked: AtomicU32::new(0),
            forgotten: AtomicBool::new(false),
        };
        Arc::new(place)
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("0.log")
    }

    fn writer(&self) -> File {
        File::options().create(true).append(true).open(self.path()).unwrap()
    }

    /// By their stamps; plain before compressed.
    fn rotated(&self) -> Vec<(LogStamp, PathBuf)> {
        let all = std::fs::read_dir(self.folder.path()).unwrap().flatten();
        let stamp = |path: &Path| Some(bulkhead_types::parse_rotated_log_name(path.file_name()?.to_str()?)?.1);
        let mut all: Vec<_> = all.filter_map(|entry| Some((stamp(&entry.path())?, entry.path()))).collect();
        all.sort();
        all
    }

    /// As kubelet-evictiond has it done: no more than `kept` rotated files, and all but the newest compressed.
    fn rotate(&self, second: usize, kept: usize) -> LogStamp {
        let stamp = LogStamp::parse(&format!("20260101-0000{second:02}")).unwrap();
        let before = self.rotated();
        let excess = (before.len() + 1).saturating_sub(kept);
        for (_, path) in before.iter().take(excess) {
            std::fs::remove_file(path).unwrap();
        }
        for (_, path) in before.iter().skip(excess).filter(|(_, path)| path.extension().unwrap() != "gz") {
            let file = File::create(format!("{}.gz", path.display())).unwrap();
            let mut encoder = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
            encoder.write_all(&std::fs::read(path).unwrap()).unwrap();
            encoder.finish().unwrap();
            std::fs::remove_file(path).unwrap();
        }
        self.rename(&format!("0.log.{stamp}"));
        stamp
    }

    fn rename(&self, to: &str) {
        std::fs::rename(self.path(), self.folder.path().join(to)).unwrap();
    }
}

struct Client {
    pieces: Pin<Box<dyn Stream<Item = Result<Bytes, BoxError>> + Send>>,
    life: watch::Sender<Life>,
    growth: Growth,
    got: Vec<u8>,
}

impl Client {
    fn start(place: &Arc<Place>, rules: Rules, tail: Option<u64>) -> Self {
        let (life, alive) = watch::channel(Life::Runs);
        let growth = Growth::default();
        let source = Opener(place.clone());
        let following = Following { source, life: alive, growth: growth.clone(), name: "0.log".to_owned() };
        let reading = Reading::new(File::open(place.path()).unwrap(), Transcript::new(rules), tail).unwrap();
        Client { pieces: Box::pin(pieces(reading, Some(following))), life, growth, got: Vec::new() }
    }

    async fn next(&mut self) -> Option<Bytes> {
        let piece = tokio::time::timeout(Duration::from_secs(20), self.pieces.next()).await;
        let piece = piece.unwrap_or_else(|_| panic!("nothing after {:?}", String::from_utf8_lossy(&self.got)));
        piece.map(Result::unwrap)
    }

    /// Reads until so much text has come; gives all so far.
    async fn until(&mut self, text: &str) -> String {
        while !String::from_utf8_lossy(&self.got).contains(text) {
            let piece = self.next().await;
            self.got.extend_from_slice(&piece.unwrap_or_else(|| panic!("ended before {text:?}")));
        }
        String::from_utf8_lossy(&self.got).into_owned()
    }

    async fn rest(&mut self) -> String {
        while let Some(piece) = self.next().await {
            self.got.extend_from_slice(&piece);
        }
        String::from_utf8_lossy(&self.got).into_owned()
    }
}

fn line(text: impl std::fmt::Display) -> String {
    format!("2026-01-02T03:04:05.000000001Z stdout F {text}\n")
}

fn say(file: &mut File, text: impl std::fmt::Display) {
    file.write_all(line(text).as_bytes()).unwrap();
}

async fn whole(path: &Path, rules: Rules, tail: Option<u64>) -> String {
    let reading = Reading::new(File::open(path).unwrap(), Transcript::new(rules), tail).unwrap();
    let mut pieces = std::pin::pin!(pieces::<Opener>(reading, None));
    let mut all = Vec::new();
    while let Some(piece) = pieces.next().await {
        // Taken, and let go of.
        all.extend_from_slice(&piece.unwrap());
    }
    String::from_utf8(all).unwrap()
}

fn numbers(range: std::ops::Range<usize>) -> String {
    range.map(|number| format!("{number}\n")).collect()
}

#[tokio::test]
async fn to_the_end() {
    let place = Place::new();
    std::fs::write(place.path(), "").unwrap();
    assert_eq!(whole(&place.path(), RULES, None).await, "");
    let text: String = (0..20_000).map(line).collect();
    std::fs::write(place.path(), text + "2026-01-02T03:04:05Z stdout F torn").unwrap();
    assert_eq!(whole(&place.path(), RULES, None).await, numbers(0..20_000) + "torn");
    let rules = |lines| Rules { lines: Some(lines), ..RULES };
    assert_eq!(whole(&place.path(), rules(3), Some(3)).await, numbers(19_997..20_000));
    assert_eq!(whole(&place.path(), rules(15_000), Some(15_000)).await, numbers(5000..20_000));
    assert_eq!(whole(&place.path(), rules(0), Some(0)).await, "");
    let limited = Rules { limit: Some(100_003), ..RULES };
    assert_eq!(whole(&place.path(), limited, None).await, numbers(0..20_000)[..100_003]);
    let later = Rules { since: Some((4_000_000_000, 0)), ..RULES };
    assert_eq!(whole(&place.path(), later, None).await, "");
}

#[tokio::test]
async fn what_is_written_comes_at_once_and_the_end_is_the_containers() {
    let place = Place::new();
    let mut writer = place.writer();
    (0..3).for_each(|number| say(&mut writer, number));
    let mut client = Client::start(&place, RULES, Some(1));
    assert_eq!(client.until("2\n").await, "2\n");
    for number in 3..40 {
        say(&mut writer, number);
        client.until(&format!("{number}\n")).await;
    }
    let halves = line("in two");
    writer.write_all(&halves.as_bytes()[..30]).unwrap();
    tokio::time::timeout(Duration::from_millis(100), client.pieces.next()).await.unwrap_err();
    writer.write_all(&halves.as_bytes()[30..]).unwrap();
    client.until("in two\n").await;
    // Written between our last look and the end: still shown. A line that never ends is not.
    say(&mut writer, "last");
    writer.write_all(b"2026-01-02T03:04:05Z stdout F torn").unwrap();
    client.life.send_replace(Life::Ended);
    assert_eq!(client.rest().await, numbers(2..40) + "in two\nlast\n");
    assert_eq!(place.asked.load(Ordering::Relaxed), 0, "nobody is asked while nothing hints at another file");
}

#[test]
fn a_little_growth_needs_no_thread() {
    let place = Place::new();
    let mut writer = place.writer();
    let mut reading = Reading::new(File::open(place.path()).unwrap(), Transcript::new(RULES), None).unwrap();
    say(&mut writer, "a");
    assert_eq!(reading.advance().unwrap().out, b"a\n");
    // A file system may be unable to say what is in memory (tmpfs), and the kernel may have dropped it: then a thread reads.
    let mut next = || {
        let piece = reading.advance_at_once().unwrap_or_else(|| reading.advance().unwrap());
        (String::from_utf8(piece.out).unwrap(), piece.moved, reading.at_end)
    };
    assert_eq!(next(), (String::new(), false, true));
    say(&mut writer, "b");
    say(&mut writer, "c");
    assert_eq!(next().0, "b\nc\n");
    // More than is read in one go, and an end in the middle of a line.
    for number in 0..100 {
        say(&mut writer, number);
    }
    writer.write_all(line("last").split_at(30).0.as_bytes()).unwrap();
    let mut all = String::new();
    loop {
        let (out, moved, _) = next();
        all += &out;
        if !moved {
            break;
        }
    }
    assert_eq!(all, numbers(0..100));
}

#[tokio::test]
async fn a_limit_ends_it() {
    let place = Place::new();
    say(&mut place.writer(), "first");
    let mut client = Client::start(&place, Rules { limit: Some(8), ..RULES }, None);
    client.until("first\n").await;
    say(&mut place.writer(), "second");
    assert_eq!(client.rest().await, "first\nse");
}

#[tokio::test]
async fn nothing_is_lost_over_rotations() {
    let place = Place::new();
    let mut writer = place.writer();
    let mut client = Client::start(&place, RULES, None);
    let mut number = 0;
    for round in 0..4 {
        for _ in 0..50 {
            say(&mut writer, number);
            number += 1;
        }
        client.until(&format!("{}\n", number - 1)).await;
        place.rename(&format!("0.log.{round}"));
        // The writer does not know yet.
        for _ in 0..3 {
            say(&mut writer, number);
            number += 1;
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
        // Nobody may be there to ask for a while.
        place.away.store(round, Ordering::Relaxed);
        let mut next = place.writer();
        say(&mut writer, number);
        number += 1;
        std::mem::swap(&mut writer, &mut next);
        say(&mut writer, number);
        number += 1;
    }
    client.until(&format!("{}\n", number - 1)).await;
    client.life.send_replace(Life::Ended);
    assert_eq!(client.rest().await, numbers(0..number));
}

#[tokio::test]
async fn an_end_right_after_a_rotation() {
    let place = Place::new();
    let mut writer = place.writer();
    say(&mut writer, 0);
    let mut client = Client::start(&place, RULES, None);
    client.until("0\n").await;
    say(&mut writer, 1);
    place.rename("0.log.1");
    say(&mut place.writer(), 2);
    client.life.send_replace(Life::Ended);
    assert_eq!(client.rest().await, numbers(0..3));

    let mut client = Client::start(&place, RULES, None);
    client.until("2\n").await;
    place.rename("0.log.2");
    client.life.send_replace(Life::Ended);
    assert_eq!(client.rest().await, "2\n", "nothing came to its place");
}

/// Writes this many lines to each of so many files, all but the last rotated.
fn rotations(place: &Place, rounds: std::ops::Range<usize>, lines: usize, kept: usize) {
    for round in rounds {
        let mut writer = place.writer();
        (round * lines..(round + 1) * lines).for_each(|number| say(&mut writer, number));
        place.rotate(round, kept);
    }
}

/// More than is on its way to a client that takes nothing.
const MANY: usize = 20_000;

#[tokio::test]
async fn rotations_that_were_missed_are_read_in_their_order() {
    for ends_first in [false, true] {
        let place = Place::new();
        let mut writer = place.writer();
        (0..MANY).for_each(|number| say(&mut writer, number));
        let mut client = Client::start(&place, RULES, None);
        client.until("0\n").await;
        place.rotate(0, 4);
        // Four rotated files are kept: it may stand still for as many rotations.
        rotations(&place, 1..4, MANY, 4);
        say(&mut place.writer(), 4 * MANY);
        if ends_first {
            client.life.send_replace(Life::Ended);
        } else {
            client.until(&format!("{}\n", 4 * MANY)).await;
            rotations(&place, 5..6, 1, 4);
            say(&mut place.writer(), "last");
            client.until("last\n").await;
            client.life.send_replace(Life::Ended);
        }
        let expected = numbers(0..4 * MANY + 1) + if ends_first { "" } else { "5\nlast\n" };
        assert!(client.rest().await == expected, "in order, and each line once");
    }
}

#[tokio::test]
async fn who_falls_behind_is_told() {
    let place = Place::new();
    let mut writer = place.writer();
    (0..MANY).for_each(|number| say(&mut writer, number));
    let mut client = Client::start(&place, RULES, None);
    client.until("0\n").await;
    place.rotate(0, 2);
    rotations(&place, 1..4, 10, 2);
    say(&mut place.writer(), "current");
    let expected = numbers(0..MANY) + "failed to read log file: " + LOST;
    assert!(client.rest().await == expected, "what it holds is read to its end, and no gap is passed over in silence");
}

#[tokio::test]
async fn a_failure_stands_on_a_line_of_its_own() {
    let place = Place::new();
    let mut writer = place.writer();
    say(&mut writer, "whole");
    writer.write_all(b"2026-01-02T03:04:05Z stdout P half\n").unwrap();
    let mut client = Client::start(&place, RULES, None);
    client.until("half").await;
    place.rotate(0, 2);
    rotations(&place, 1..4, 10, 2);
    say(&mut place.writer(), "current");
    assert_eq!(client.rest().await, format!("whole\nhalf\nfailed to read log file: {LOST}"));
}

#[tokio::test]
async fn a_log_that_goes_with_its_container_is_no_gap() {
    let place = Place::new();
    let mut writer = place.writer();
    (0..MANY).for_each(|number| say(&mut writer, number));
    let mut client = Client::start(&place, RULES, None);
    client.until("0\n").await;
    place.rotate(0, 4);
    for (_, path) in place.rotated() {
        std::fs::remove_file(path).unwrap();
    }
    client.life.send_replace(Life::Ended);
    assert!(client.rest().await == numbers(0..MANY));
}

#[tokio::test]
async fn a_file_that_is_cut_begins_anew() {
    let place = Place::new();
    let mut writer = place.writer();
    (0..5).for_each(|number| say(&mut writer, number));
    let mut client = Client::start(&place, RULES, None);
    client.until("4\n").await;
    std::fs::copy(place.path(), place.folder.path().join("0.log.1")).unwrap();
    writer.set_len(0).unwrap();
    while client.growth.files() > 0 {
        // It has seen the cut when it has let go of the wait.
        let waited = tokio::time::timeout(Duration::from_millis(50), client.pieces.next()).await;
        waited.unwrap_err();
        if growth::shape(&writer).unwrap().size == 0 {
            break;
        }
    }
    tokio::time::timeout(Duration::from_millis(200), client.pieces.next()).await.unwrap_err();
    (5..7).for_each(|number| say(&mut writer, number));
    client.until("6\n").await;
    client.life.send_replace(Life::Ended);
    assert_eq!(client.rest().await, numbers(0..7));
}

#[tokio::test]
async fn a_removed_log_is_followed_until_the_pod_is_forgotten() {
    let place = Place::new();
    let mut writer = place.writer();
    let mut client = Client::start(&place, RULES, None);
    std::fs::remove_file(place.path()).unwrap();
    say(&mut writer, "still here");
    client.until("still here\n").await;
    place.forgotten.store(true, Ordering::Relaxed);
    assert_eq!(client.rest().await, "still here\n");
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_read_nothing_more() {
    let place = Place::new();
    let mut writer = place.writer();
    (0..20_000).for_each(|number| say(&mut writer, number));
    let mut client = Client::start(&place, RULES, None);
    let mut untaken = vec![client.next().await.unwrap(), client.next().await.unwrap()];
    tokio::time::timeout(Duration::from_millis(100), client.pieces.next()).await.unwrap_err();
    for _ in 0..5 {
        client.got.extend_from_slice(&untaken.remove(0));
        untaken.push(client.next().await.unwrap());
        tokio::time::timeout(Duration::from_millis(20), client.pieces.next()).await.unwrap_err();
    }
    untaken.drain(..).for_each(|piece| client.got.extend_from_slice(&piece));
    client.life.send_replace(Life::Ended);
    assert_eq!(client.rest().await, numbers(0..20_000));
}

#[tokio::test]
async fn who_goes_leaves_nothing_open() {
    let place = Place::new();
    say(&mut place.writer(), "x");
    let open = |path: &Path| {
        let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        all.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|link| link == path)).count()
    };
    let path = place.path().canonicalize().unwrap();
    let mut clients = Vec::new();
    for _ in 0..50 {
        let mut client = Client::start(&place, RULES, None);
        client.until("x\n").await;
        clients.push(client);
    }
    assert_eq!(open(&path), 50);
    drop(clients);
    tokio::time::timeout(Duration::from_secs(10), async {
        while open(&path) > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap();
}
