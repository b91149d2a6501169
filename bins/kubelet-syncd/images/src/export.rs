//! Keeps upstream's files of image pulls as our own records are, so that a node can change hands in both directions: read at the
//! start, written after each change. They are root's, so kubelet-volnetd reads and writes them; nothing of ours relies on them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_ipc::broker::{BrokerClient, BrokerError};
use bulkhead_ipc::volnetd::image_pull_record_file::Folder as WireFolder;
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_ipc::volnetd::{ImagePullRecordFile, ImagePullRecordFiles, State, StateKind};
use bulkhead_sys::memfd::{self, MemfdError};
use prost::Message as _;

use super::file_id::{FileId, Folder};
use super::manager::{ImageManager, ImageService, RecordStoreError};
use super::pull_files::{self, Checksum, Files, checksum};

/// Changes are gathered for so long: most pulls are over by then.
const SETTLE: Duration = Duration::from_secs(1);
/// After something failed.
const AGAIN: Duration = Duration::from_secs(30);
/// Files in one request: each is flushed to the disk, within the request's deadline.
const FILES_AT_ONCE: usize = 10;
/// What kubelet-volnetd passes at most, with names.
const BYTES_MAX: u64 = 16 << 20;

const KIND: StateKind = StateKind::ImagePullRecords;

#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error(transparent)]
    Broker(#[from] BrokerError),
    #[error(transparent)]
    Memfd(#[from] MemfdError),
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Decode(#[from] prost::DecodeError),
    #[error(transparent)]
    Store(#[from] RecordStoreError),
}

/// Upstream's files of one node.
#[derive(Debug)]
pub struct Export {
    broker: BrokerClient,
    /// None: they have not been read yet.
    there: Option<There>,
}

#[derive(Debug)]
struct There {
    /// No checksum: what stands in it is not known, or whether it is there.
    files: BTreeMap<FileId, Option<Checksum>>,
    /// Those of them that surely are there, and are to be noted.
    stand: BTreeSet<FileId>,
    /// Another kubelet's that are not understood. They stay, until there is something to write in their place.
    not_understood: BTreeSet<FileId>,
}

impl Export {
    /// Reads the files, before anybody asks who may use an image. Where that fails, our own records are what is known, and the files
    /// are read before the first is written.
    pub async fn begin<S: ImageService>(broker: BrokerClient, images: &ImageManager<S>) -> Self {
        let there = read(&broker, images).await.inspect_err(|error| {
            let error = error as &dyn std::error::Error;
            tracing::warn!(error, "failed to read upstream's image pull record files: trying again");
        });
        Export { broker, there: there.ok() }
    }

    /// Keeps the files up to date. Runs for ever.
    pub async fn keep<S: ImageService>(mut self, images: Arc<ImageManager<S>>) {
        loop {
            let mut told = false;
            while let Err(error) = self.write(&images).await {
                tell(&error, std::mem::replace(&mut told, true));
                // What was asked for may have been done all the same.
                self.there = None;
                tokio::time::sleep(AGAIN).await;
            }
            images.records_changed().await;
            tokio::time::sleep(SETTLE).await;
        }
    }

    async fn write<S: ImageService>(&mut self, images: &ImageManager<S>) -> Result<(), ExportError> {
        let there = match &mut self.there {
            Some(there) => there,
            none => none.insert(read(&self.broker, images).await?),
        };
        let changes = pull_files::changes(&there.files, &images.files(), &there.not_understood);
        // Where a file is noted and missing, its record is forgotten: it is noted after it was written, and not any more before
        // it is removed.
        let gone: BTreeSet<FileId> =
            changes.iter().filter(|(_, content)| content.is_none()).map(|(id, _)| id.clone()).collect();
        there.stand.retain(|id| !gone.contains(id));
        if !gone.is_empty() {
            images.files_go(&gone).await?;
        }
        let changes: Vec<_> = changes.into_iter().collect();
        for some in changes.chunks(FILES_AT_ONCE) {
            there.files.extend(some.iter().map(|(id, _)| (id.clone(), None)));
            let files = some.iter().map(|(id, content)| to_wire(id, content.as_ref())).collect();
            let message = ImagePullRecordFiles { files }.encode_to_vec();
            self.broker.put_state(KIND, memfd::sealed("image-pulls", &message)?).await?;
            for (id, content) in some {
                if let Some(content) = content {
                    there.files.insert(id.clone(), Some(checksum(content)));
                    there.stand.insert(id.clone());
                } else {
                    there.files.remove(id);
                }
            }
        }
        images.files_stand(&there.stand).await?;
        there.stand.clear();
        Ok(())
    }
}

fn tell(error: &ExportError, is_known: bool) {
    let error = error as &dyn std::error::Error;
    if is_known {
        tracing::debug!(error, "upstream's records of image pulls still wait");
    } else {
        tracing::warn!(error, "failed to write upstream's image pull record files");
    }
}

async fn read<S: ImageService>(broker: &BrokerClient, images: &ImageManager<S>) -> Result<There, ExportError> {
    let fd = broker.open(Kind::State(State { kind: KIND.into() })).await?;
    let wire = ImagePullRecordFiles::decode(&*memfd::read_sealed(&fd, BYTES_MAX)?)?;
    let files: Files = wire.files.into_iter().filter_map(from_wire).collect();
    let not_understood = images.take_files(&files).await?;
    let files: BTreeMap<_, _> = files.into_iter().map(|(id, content)| (id, content.as_deref().map(checksum))).collect();
    let stand = files.iter().filter(|(_, sum)| sum.is_some()).map(|(id, _)| id.clone()).collect();
    Ok(There { files, stand, not_understood })
}

fn from_wire(file: ImagePullRecordFile) -> Option<(FileId, Option<Vec<u8>>)> {
    let folder = match file.folder() {
        WireFolder::Pulling => Folder::Pulling,
        WireFolder::Pulled => Folder::Pulled,
        WireFolder::Unspecified => return None,
    };
    Some((FileId { folder, digest: file.digest }, file.content))
}

fn to_wire(id: &FileId, content: Option<&Vec<u8>>) -> ImagePullRecordFile {
    let folder = match id.folder {
        Folder::Pulling => WireFolder::Pulling,
        Folder::Pulled => WireFolder::Pulled,
    };
    ImagePullRecordFile { folder: folder.into(), digest: id.digest.clone(), content: content.cloned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_use::ImagesInUse;
    use crate::pull_records::{Owner, Policy, PullDecision, PullRecords, Secret, Source};
    use crate::{PullLimits, RecordStore};
    use bulkhead_cri::{CriError, v1};
    use bulkhead_ipc::broker::BrokerRequest;
    use jiff::Timestamp;
    use kubelet_edges::fixtures::broker_at;
    use std::sync::atomic::{AtomicBool, Ordering};

    use parking_lot::Mutex;

    const IMAGE: &str = "r.test/team/app:1";
    const ID: &str = "sha256:aaaa";

    /// Nobody asks it.
    struct NoRuntime;

    impl ImageService for NoRuntime {
        async fn image_status(&self, _: v1::ImageStatusRequest) -> Result<v1::ImageStatusResponse, CriError> {
            Ok(v1::ImageStatusResponse::default())
        }
        async fn pull_image(&self, _: v1::PullImageRequest) -> Result<v1::PullImageResponse, CriError> {
            Ok(v1::PullImageResponse::default())
        }
        async fn list_images(&self) -> Result<v1::ListImagesResponse, CriError> {
            Ok(v1::ListImagesResponse::default())
        }
    }

    #[derive(Default)]
    struct Disk(Mutex<Vec<u8>>);

    impl RecordStore for Disk {
        fn save(&self, records: &PullRecords) -> Result<(), RecordStoreError> {
            *self.0.lock() = serde_json::to_vec(records).unwrap();
            Ok(())
        }
    }

    /// As kubelet-volnetd answers.
    fn answer(
        files: &Mutex<Files>,
        is_away: &AtomicBool,
        request: BrokerRequest,
    ) -> Result<Option<std::os::fd::OwnedFd>, tonic::Status> {
        if is_away.load(Ordering::Relaxed) {
            return Err(tonic::Status::unavailable("away"));
        }
        let mut files = files.lock();
        if let BrokerRequest::PutState(KIND, fd) = request {
            let bytes = memfd::read_sealed(&fd, BYTES_MAX).unwrap();
            let put = ImagePullRecordFiles::decode(&*bytes).unwrap().files;
            assert!(put.len() <= FILES_AT_ONCE);
            for (id, content) in put.into_iter().filter_map(from_wire) {
                match content {
                    Some(content) => files.insert(id, Some(content)),
                    None => files.remove(&id),
                };
            }
            return Ok(None);
        }
        let files = files.iter().map(|(id, content)| to_wire(id, content.as_ref())).collect();
        let bytes = ImagePullRecordFiles { files }.encode_to_vec();
        Ok(Some(memfd::sealed("files", &bytes).unwrap()))
    }

    /// A node's disk, and a kubelet-volnetd that has upstream's files in a map.
    #[derive(Clone)]
    struct Machine {
        disk: Arc<Disk>,
        files: Arc<Mutex<Files>>,
        is_away: Arc<AtomicBool>,
        broker: BrokerClient,
        _folder: Arc<tempfile::TempDir>,
    }

    impl Machine {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let (files, is_away) = (Arc::<Mutex<Files>>::default(), Arc::<AtomicBool>::default());
            let served = (files.clone(), is_away.clone());
            let broker =
                broker_at(&folder.path().join("broker.sock"), move |request| answer(&served.0, &served.1, request));
            Machine { disk: Arc::default(), files, is_away, broker, _folder: Arc::new(folder) }
        }

        fn kept(&self) -> PullRecords {
            serde_json::from_slice(&self.disk.0.lock()).unwrap_or_default()
        }

        /// The next process.
        async fn start(&self) -> (ImageManager<NoRuntime>, Export) {
            let images = ImageManager::new(NoRuntime, PullLimits::default(), ImagesInUse::new(|| 0));
            let images = images.with_records(Policy::NeverVerifyPreloadedImages, self.kept(), self.disk.clone());
            let export = Export::begin(self.broker.clone(), &images).await;
            (images, export)
        }

        /// Another process has pulled the image with a secret, and its end.
        async fn pull(&self) {
            let mut records = self.kept();
            records.intend(IMAGE);
            let owner = Owner { namespace: "ns".into(), name: "a".into(), uid: "u".into() };
            let secret = Source::Secret(Secret { owner, hash: "h".into() });
            records.ended(IMAGE, Some((ID, Some(&secret))), Timestamp::now());
            self.disk.save(&records).unwrap();
            let (images, mut export) = self.start().await;
            export.write(&images).await.unwrap();
        }

        /// What a pod without credentials hears.
        fn anybody(&self) -> PullDecision {
            let policy = Policy::NeverVerifyPreloadedImages;
            self.kept().look(&policy, IMAGE, ID, Some(&[]), Timestamp::now())
        }

        fn names(&self) -> Vec<FileId> {
            self.files.lock().keys().cloned().collect()
        }
    }

    /// What upstream's node specs do (`test/e2e_node/util_kubeletconfig.go`, tempRemoveImagePulledRecord).
    #[tokio::test]
    async fn an_image_whose_file_is_removed_was_there_before_us_until_it_is_back() {
        let machine = Machine::new();
        machine.pull().await;
        assert_eq!(machine.names(), [FileId::pulled(ID)]);
        assert_eq!(machine.anybody(), PullDecision::MustPull);
        let moved = std::mem::take(&mut *machine.files.lock());
        let (images, mut export) = machine.start().await;
        assert_eq!(machine.anybody(), PullDecision::Allowed);
        export.write(&images).await.unwrap();
        assert_eq!(machine.names(), []);
        *machine.files.lock() = moved.clone();
        let (images, mut export) = machine.start().await;
        assert_eq!(machine.anybody(), PullDecision::MustPull);
        export.write(&images).await.unwrap();
        assert_eq!(*machine.files.lock(), moved);
    }

    #[tokio::test]
    async fn a_file_goes_with_its_record_and_is_not_missed_before_it_was_written() {
        let machine = Machine::new();
        machine.pull().await;
        let (images, mut export) = machine.start().await;
        images.prune(|_| false, Timestamp::now()).await;
        machine.is_away.store(true, Ordering::Relaxed);
        assert!(export.write(&images).await.is_err());
        assert_eq!(machine.names(), [FileId::pulled(ID)]);
        assert!(machine.kept().written.is_empty(), "it may be gone from here on");
        machine.is_away.store(false, Ordering::Relaxed);
        export.write(&images).await.unwrap();
        assert_eq!(machine.names(), []);
        // Pulled again, and the process ended before the file was written.
        let mut records = machine.kept();
        records.ended(IMAGE, Some((ID, None)), Timestamp::now());
        machine.disk.save(&records).unwrap();
        let (images, mut export) = machine.start().await;
        assert_eq!(machine.anybody(), PullDecision::Known { changed: false });
        export.write(&images).await.unwrap();
        assert_eq!(machine.names(), [FileId::pulled(ID)]);
    }

    #[tokio::test]
    async fn without_volnetd_nothing_is_forgotten_and_nothing_overwritten() {
        let machine = Machine::new();
        machine.pull().await;
        let others = FileId::pulled("sha256:bbbb");
        machine.files.lock().clear();
        machine.files.lock().insert(others.clone(), Some(b"not understood".to_vec()));
        machine.is_away.store(true, Ordering::Relaxed);
        let (images, mut export) = machine.start().await;
        assert_eq!(machine.anybody(), PullDecision::MustPull);
        assert!(export.write(&images).await.is_err());
        machine.is_away.store(false, Ordering::Relaxed);
        export.write(&images).await.unwrap();
        assert_eq!(machine.anybody(), PullDecision::Allowed, "its file was removed");
        assert_eq!(machine.names(), [others]);
    }

    #[tokio::test]
    async fn many_files_are_written_some_at_a_time_and_once() {
        let machine = Machine::new();
        let mut records = PullRecords::default();
        for i in 0..=2 * FILES_AT_ONCE {
            records.ended(IMAGE, Some((&format!("sha256:{i}"), None)), Timestamp::now());
        }
        machine.disk.save(&records).unwrap();
        let (images, mut export) = machine.start().await;
        export.write(&images).await.unwrap();
        assert_eq!(machine.names().len(), 2 * FILES_AT_ONCE + 1);
        machine.files.lock().clear();
        export.write(&images).await.unwrap();
        assert_eq!(machine.names(), [], "there is nothing new to write");
    }
}
