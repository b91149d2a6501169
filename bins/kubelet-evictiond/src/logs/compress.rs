//! One rotated log becomes its compressed form: read from a descriptor, written into a file that has no name, which kubelet-volnetd
//! links in once it is on the disk, in place of the plain one, if that still is what was read. Ended anywhere, all of it is there
//! once, or the next pass finds both forms and begins anew.

use std::fs::File;
use std::io::{self, Read as _, Write as _};

use bulkhead_ipc::broker::{BrokerClient, BrokerError};
use bulkhead_ipc::syncd::ContainerLogPlace;
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_ipc::volnetd::rotated_log::Pick;
use bulkhead_ipc::volnetd::{CompressedLog, PodLogId, RotatedLog};
use bulkhead_types::LogStamp;
use flate2::Compression;
use flate2::write::GzEncoder;
use tokio_util::sync::CancellationToken;

/// Read at once.
const CHUNK: usize = 128 * 1024;
/// Lines of logs are alike: more effort costs several times as much and saves little.
const LEVEL: Compression = Compression::new(3);
/// Why there is no compressed form.
#[derive(Debug, thiserror::Error)]
pub enum CompressError {
    #[error(transparent)]
    Broker(#[from] BrokerError),
    #[error("failed to compress")]
    Io(#[from] io::Error),
    #[error("it is still written to")]
    Grows,
    #[error("this process ends")]
    Stopped,
}

/// Compresses a rotated log of this container.
///
/// # Errors
/// See [`CompressError`]. The plain form is there.
pub async fn compress(
    broker: &BrokerClient,
    log: &ContainerLogPlace,
    stamp: LogStamp,
    stop: &CancellationToken,
) -> Result<(), CompressError> {
    let pod = PodLogId { namespace: log.namespace.clone(), name: log.name.clone(), uid: log.pod_uid.clone() };
    let (container, restart_count) = (log.container.clone(), log.number);
    let wanted =
        CompressedLog { pod: Some(pod.clone()), container, restart_count, stamp: stamp.to_string(), plain_bytes: 0 };
    let plain = Kind::RotatedLog(RotatedLog {
        pod: Some(pod),
        container: wanted.container.clone(),
        restart_count,
        stamp: wanted.stamp.clone(),
        pick: Pick::Plain.into(),
    });
    let plain = File::from(broker.open(plain).await?);
    let compressed = File::from(broker.open(Kind::CompressedLog(wanted.clone())).await?);
    let stop = stop.clone();
    let work = tokio::task::spawn_blocking(move || write(&plain, compressed, || stop.is_cancelled()));
    let (compressed, plain_bytes) = work.await.map_err(io::Error::other)??;
    broker.link_compressed_log(CompressedLog { plain_bytes, ..wanted }, compressed.into()).await?;
    Ok(())
}

/// Answers the file, which is on the disk, and how many bytes were read. Blocks.
fn write(plain: &File, compressed: File, is_over: impl Fn() -> bool) -> Result<(File, u64), CompressError> {
    let of = |file: &File| file.metadata().map(|now| (now.len(), now.modified().ok()));
    let before = of(plain)?;
    let mut encoder = GzEncoder::new(compressed, LEVEL);
    let (mut chunk, mut bytes) = (vec![0; CHUNK], 0);
    loop {
        if is_over() {
            return Err(CompressError::Stopped);
        }
        let mut reader = plain;
        let read = match reader.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        encoder.write_all(chunk.get(..read).unwrap_or_default())?;
        bytes += read as u64;
    }
    let compressed = encoder.finish()?;
    compressed.sync_all()?;
    if bytes != before.0 || of(plain)? != before {
        return Err(CompressError::Grows);
    }
    Ok((compressed, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::io::{Seek as _, SeekFrom};

    fn plain(contents: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(contents).unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        file
    }

    #[test]
    fn what_is_compressed_is_whole() {
        let line = b"2026-01-01T00:00:00.000000000Z stdout F hello\n".repeat(20_000);
        for contents in [&b""[..], b"x", &line] {
            let (mut file, bytes) = write(&plain(contents), tempfile::tempfile().unwrap(), || false).unwrap();
            assert_eq!(bytes, contents.len() as u64);
            assert!(file.metadata().unwrap().len() < 100 + contents.len() as u64 / 10);
            file.seek(SeekFrom::Start(0)).unwrap();
            let mut again = Vec::new();
            flate2::read::GzDecoder::new(file).read_to_end(&mut again).unwrap();
            assert!(again == contents);
        }
    }

    #[test]
    fn what_grows_meanwhile_or_is_cut_short_is_not_kept() {
        let growing = plain(&vec![b'x'; CHUNK * 3]);
        let (mut writer, rounds) = (growing.try_clone().unwrap(), Cell::new(0));
        let grow = || {
            if rounds.replace(rounds.get() + 1) == 3 {
                std::os::unix::fs::FileExt::write_at(&writer, b"more", CHUNK as u64 * 3).unwrap();
            }
            false
        };
        assert!(matches!(write(&growing, tempfile::tempfile().unwrap(), grow), Err(CompressError::Grows)));
        writer.seek(SeekFrom::Start(0)).unwrap();
        let stopped = write(&writer, tempfile::tempfile().unwrap(), || true);
        assert!(matches!(stopped, Err(CompressError::Stopped)));
        let full = File::options().write(true).open("/dev/full").unwrap();
        let error = write(&plain(&vec![b'x'; CHUNK]), full, || false).unwrap_err();
        assert!(matches!(error, CompressError::Io(error) if error.kind() == io::ErrorKind::StorageFull));
    }
}
