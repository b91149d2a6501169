use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use super::*;

fn folder(path: &Path) -> OwnedFd {
    std::fs::File::open(path).unwrap().into()
}

fn log(path: &Path) -> AuditLog {
    AuditLog::open(folder(path), IntCounter::new("dropped", "dropped").unwrap()).unwrap()
}

fn act(verb: &'static str, pod: &str) -> Act {
    Act { peer: Some(Role::Syncd), verb: verb.to_owned(), pod_uid: pod.into(), ..Act::default() }
}

/// All records, once so many are there.
async fn kept(log: &AuditLog, count: usize) -> Vec<Record> {
    loop {
        let (records, mut live) = log.read(&Filter::default()).unwrap();
        if records.len() >= count {
            return records;
        }
        live.recv().await.unwrap();
    }
}

#[tokio::test]
async fn each_act_leaves_one_record_and_restarts_number_on() {
    let temp = tempfile::tempdir().unwrap();
    let audit = log(temp.path());
    audit.begin(act("Volumes/PreparePod", "u")).ended(Ok("/pods/u".into()));
    let refused = Status::failed_precondition("stale");
    audit.begin(act("Volumes/TearDownPod", "u")).ended(Err(&refused));
    drop(audit.begin(act("Volumes/Prune", "")));
    let records = kept(&audit, 3).await;
    let told: Vec<_> = records.iter().map(|r| (r.sequence, r.verb.as_str(), r.code.as_str())).collect();
    let wanted = [
        (1, "Volumes/PreparePod", "OK"),
        (2, "Volumes/TearDownPod", "FAILED_PRECONDITION"),
        (3, "Volumes/Prune", "CANCELLED"),
    ];
    assert_eq!(told, wanted);
    assert_eq!((records[0].target.as_str(), records[1].message.as_str()), ("/pods/u", "stale"));
    assert_eq!(records[0].peer, "kubelet-syncd");

    // A cut in the middle of a line, then another life.
    let path = temp.path().join("audit.jsonl");
    let mut text = std::fs::read(&path).unwrap();
    text.truncate(text.len() - 7);
    std::fs::write(&path, text).unwrap();
    let audit = log(temp.path());
    audit.begin(act("Volumes/PreparePod", "v")).ended(Ok(String::new()));
    let records = kept(&audit, 3).await;
    assert_eq!(records.iter().map(|r| (r.sequence, r.verb.as_str())).next_back(), Some((3, "Volumes/PreparePod")));
    let newest = Filter { newest: Some(1), ..Filter::default() };
    assert_eq!(audit.read(&newest).unwrap().0, records[2..]);
    let failed = Filter { failed: true, pod_uid: Some("u".into()), ..Filter::default() };
    assert_eq!(audit.read(&failed).unwrap().0, records[1..2]);
}

#[tokio::test]
async fn the_disk_holds_a_bounded_number() {
    let temp = tempfile::tempdir().unwrap();
    let audit = log(temp.path());
    let long = "x".repeat(500);
    for _ in 0..12 {
        for _ in 0..1000 {
            audit.begin(Act { object: long.clone(), ..act("Volumes/PreparePod", "u") }).ended(Ok(String::new()));
        }
        // Until these are written.
        while !audit.0.queue.lock().records.is_empty() || audit.0.queue.lock().is_written {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let sizes: u64 = std::fs::read_dir(temp.path()).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum();
    assert!(sizes < 6 << 20, "{sizes}");
    let records = audit.read(&Filter::default()).unwrap().0;
    assert_eq!(records.last().map(|r| r.sequence), Some(12_000));
    assert!(records.windows(2).all(|pair| pair[0].sequence + 1 == pair[1].sequence), "none is missing in between");
    assert!(records.len() > 3000, "{}", records.len());
}

/// A disk that takes nothing: the acts go on, what is lost is counted, and told as soon as there is room.
#[tokio::test]
async fn a_full_disk_drops_and_counts() {
    let temp = tempfile::tempdir().unwrap();
    let audit = log(temp.path());
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let file = audit.0.store.lock().replace_file(full);
    for _ in 0..3 {
        audit.begin(act("Volumes/PreparePod", "u")).ended(Ok(String::new()));
    }
    while audit.0.dropped.get() < 3 || audit.0.queue.lock().is_written {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    audit.0.store.lock().replace_file(file);
    audit.begin(act("Volumes/TearDownPod", "u")).ended(Ok(String::new()));
    let records = kept(&audit, 1).await;
    assert_eq!((records.len(), records[0].dropped_before, records[0].sequence), (1, 3, 1));
}
