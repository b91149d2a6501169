//! State files as released versions wrote them. What was once written is read for ever; no file here is ever changed.

use std::sync::Arc;

use bulkhead_daemon::StateDir;
use bulkhead_ipc::common::Cursor;
use kubelet_statusd::events::backlog::Backlog;

const EVENTS: &str = include_str!("state/v1/events.json");

fn read(content: &str) -> (tempfile::TempDir, Backlog) {
    let temp = tempfile::tempdir().unwrap();
    std::fs::write(temp.path().join("events.json"), content).unwrap();
    let folder: std::os::fd::OwnedFd = std::fs::File::open(temp.path()).unwrap().into();
    let backlog = Backlog::read(Arc::new(StateDir::lock(folder).unwrap()));
    (temp, backlog)
}

#[tokio::test]
async fn events_that_wait_outlive_the_version_that_wrote_them() {
    let epoch = 11_400_714_819_323_198_485;
    let later = EVENTS.replacen("{\"epoch\"", "{\"version\":2,\"later\":[1],\"epoch\"", 1);
    for (content, kept) in [(EVENTS.to_owned(), false), (later, true)] {
        let (temp, backlog) = read(&content);
        assert_eq!(backlog.position(), Some(Cursor { epoch, seq: 7 }));
        let event = backlog.oldest().await;
        assert_eq!((event.reason.as_str(), event.pod_name.as_str()), ("BackOff", "web"));
        assert_eq!(event.cursor, Some(Cursor { epoch, seq: 6 }));
        let copy = std::fs::read_to_string(temp.path().join("events.json.version-2"));
        assert_eq!(copy.ok(), kept.then_some(content));
    }
}
