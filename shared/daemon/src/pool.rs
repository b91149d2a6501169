//! Whether the pool of threads for blocking work still takes work. Said, and no reason for a restart.
//!
//! A mount that hangs keeps its thread, and with as many of them as there are threads nothing else is done. A new process
//! would not do better: it would hang on the same mounts, while the old one, which the kernel cannot end, still held the
//! lock of the state folder. So the beat goes on, and the operator is told.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::progress::Heartbeat;

/// For doing nothing in the pool.
const PATIENCE: Duration = Duration::from_secs(10);

/// What to say of the pool. Pure.
fn words(full_for: Option<Duration>) -> Option<String> {
    let seconds = full_for?.as_secs();
    Some(format!(
        "every thread for blocking work has been busy for {seconds} s: file systems that hang? What needs none goes on"
    ))
}

/// Tries the pool whenever the watchdog asks, and tells `say` of a change: what is wrong, or that nothing is any more.
/// Never ends.
pub(crate) async fn watch(heartbeat: Heartbeat, mut say: impl FnMut(Option<String>)) -> std::convert::Infallible {
    loop {
        heartbeat.asked().await;
        let began = Instant::now();
        let mut nothing = tokio::task::spawn_blocking(|| ());
        let waiting = heartbeat.waits_on();
        let mut told = false;
        while timeout(PATIENCE, &mut nothing).await.is_err() {
            if !std::mem::replace(&mut told, true) {
                say(words(Some(began.elapsed())));
            }
        }
        drop(waiting);
        if told {
            say(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::{Beat, Progress};
    use std::sync::Arc;

    use parking_lot::Mutex;

    #[test]
    fn a_full_pool_is_reported_and_holds_no_heartbeat_back() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let (release, held) = std::sync::mpsc::channel::<()>();
            let hung = tokio::task::spawn_blocking(move || held.recv());
            let progress = Progress::default();
            let said = Arc::new(Mutex::new(Vec::new()));
            let log = said.clone();
            let (told, mut news) = tokio::sync::mpsc::unbounded_channel();
            let heartbeat = progress.register("pool", Duration::from_secs(1));
            let watching = tokio::spawn(watch(heartbeat, move |words| {
                log.lock().push(words);
                let _ = told.send(());
            }));
            progress.beat();
            news.recv().await.unwrap();
            assert!(said.lock()[0].as_ref().unwrap().contains("file systems that hang"));
            assert_eq!(progress.beat(), Beat::Send, "longer than its bound, and no reason for a restart");
            release.send(()).unwrap();
            news.recv().await.unwrap();
            assert_eq!(said.lock()[1], None);
            hung.await.unwrap().unwrap();
            watching.abort();
        });
    }
}
