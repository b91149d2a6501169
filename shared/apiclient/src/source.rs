//! Where the kubeconfig and the files that it names, and those of the HTTPS server, come from: descriptors from
//! kubelet-volnetd. No path is opened here.

use std::collections::HashMap;
use std::fmt;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_config::kubeconfig::MAX_BYTES;
use bulkhead_ipc::broker::{BrokerClient, BrokerError};
use bulkhead_ipc::client::Link;
use bulkhead_ipc::volnetd::watches_client::WatchesClient;
use bulkhead_ipc::volnetd::{Credential, WatchKind, WatchRequest, credential, open_request::Kind};
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt as _, StreamExt as _};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::backoff::{Backoff, random_fraction};

/// What can be asked for. The four after the first are named by the kubeconfig's current context, the others by the node's
/// configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CredentialFile {
    Kubeconfig,
    ClientCertificate,
    ClientKey,
    ClusterCa,
    Token,
    ServingCertificate,
    ServingKey,
    ClientCa,
    /// Certificates and key that were signed for the node as a client, one after the other.
    ClientPair,
    /// The same for its server.
    ServingPair,
    /// The key of a request that is not answered yet.
    PendingClientKey,
}

impl CredentialFile {
    /// The configuration's own word for it.
    pub const fn name(self) -> &'static str {
        match self {
            CredentialFile::Kubeconfig => "kubeconfig",
            CredentialFile::ClientCertificate => "client-certificate",
            CredentialFile::ClientKey => "client-key",
            CredentialFile::ClusterCa => "certificate-authority",
            CredentialFile::Token => "tokenFile",
            CredentialFile::ServingCertificate => "tlsCertFile",
            CredentialFile::ServingKey => "tlsPrivateKeyFile",
            CredentialFile::ClientCa => "clientCAFile",
            CredentialFile::ClientPair => "kubelet-client-current.pem",
            CredentialFile::ServingPair => "kubelet-server-current.pem",
            CredentialFile::PendingClientKey => "kubelet-client.key.tmp",
        }
    }

    const fn kind(self) -> credential::Kind {
        match self {
            CredentialFile::Kubeconfig => credential::Kind::Kubeconfig,
            CredentialFile::ClientCertificate => credential::Kind::ClientCertificate,
            CredentialFile::ClientKey => credential::Kind::ClientKey,
            CredentialFile::ClusterCa => credential::Kind::ClusterCa,
            CredentialFile::Token => credential::Kind::Token,
            CredentialFile::ServingCertificate => credential::Kind::ServingCertificate,
            CredentialFile::ServingKey => credential::Kind::ServingKey,
            CredentialFile::ClientCa => credential::Kind::ClientCa,
            CredentialFile::ClientPair => credential::Kind::ClientPair,
            CredentialFile::ServingPair => credential::Kind::ServingPair,
            CredentialFile::PendingClientKey => credential::Kind::PendingClientKey,
        }
    }

    /// The same of the kubeconfig that a node begins with.
    const fn bootstrap_kind(self) -> credential::Kind {
        match self {
            CredentialFile::Kubeconfig => credential::Kind::BootstrapKubeconfig,
            CredentialFile::ClientCertificate => credential::Kind::BootstrapClientCertificate,
            CredentialFile::ClientKey => credential::Kind::BootstrapClientKey,
            CredentialFile::ClusterCa => credential::Kind::BootstrapClusterCa,
            CredentialFile::Token => credential::Kind::BootstrapToken,
            other => other.kind(),
        }
    }
}

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("is not there")]
    Missing,
    #[error("cannot be opened")]
    Broker(#[from] BrokerError),
    #[error("cannot be read")]
    Read(#[source] std::io::Error),
    #[error("is larger than {MAX_BYTES} bytes")]
    TooLarge,
}

impl SourceError {
    /// The other side is restarting or stuck: nothing is known about the file.
    pub fn is_unknown(&self) -> bool {
        use tonic::Code;
        matches!(self, SourceError::Broker(error)
            if matches!(error.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled))
    }
}

/// Gives credentials and tells when to look again.
pub trait CredentialSource: Send + Sync + 'static {
    /// The file's bytes as they are now.
    fn read(&self, file: CredentialFile) -> BoxFuture<'_, Result<Vec<u8>, SourceError>>;
    /// An item each time that something may have changed. Never ends.
    fn changes(&self) -> BoxStream<'static, ()>;
}

/// The real one.
#[derive(Debug, Clone)]
pub struct BrokerSource {
    broker: BrokerClient,
    volnetd: Link,
    changes: WatchKind,
    bootstrap: bool,
}

impl BrokerSource {
    /// The API server's credentials.
    pub fn new(broker: BrokerClient, volnetd: Link) -> Self {
        BrokerSource { broker, volnetd, changes: WatchKind::Credentials, bootstrap: false }
    }

    /// Those that a node begins with (`--bootstrap-kubeconfig`).
    pub fn bootstrap(broker: BrokerClient, volnetd: Link) -> Self {
        BrokerSource { bootstrap: true, ..Self::new(broker, volnetd) }
    }

    /// The HTTPS server's.
    pub fn serving(broker: BrokerClient, volnetd: Link) -> Self {
        BrokerSource { broker, volnetd, changes: WatchKind::Serving, bootstrap: false }
    }
}

impl CredentialSource for BrokerSource {
    fn read(&self, file: CredentialFile) -> BoxFuture<'_, Result<Vec<u8>, SourceError>> {
        async move {
            let kind = if self.bootstrap { file.bootstrap_kind() } else { file.kind() };
            let kind = Kind::Credential(Credential { kind: kind.into() });
            match self.broker.open(kind).await {
                Ok(descriptor) => read_all(descriptor).await,
                Err(error) if error.code() == tonic::Code::NotFound => Err(SourceError::Missing),
                Err(error) => Err(error.into()),
            }
        }
        .boxed()
    }

    fn changes(&self) -> BoxStream<'static, ()> {
        let backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
        let kind = self.changes;
        stream::unfold((self.volnetd.clone(), None, backoff), move |(volnetd, mut events, mut backoff)| async move {
            loop {
                match events.take() {
                    None => {
                        volnetd.ready().await;
                        events = open(&volnetd, kind).await;
                        if events.is_none() {
                            tokio::time::sleep(backoff.next(random_fraction())).await;
                            continue;
                        }
                        // What happened while nobody listened is not known.
                        return Some(((), (volnetd, events, backoff)));
                    }
                    Some(mut stream) => match stream.message().await {
                        Ok(Some(_)) => {
                            backoff.reset();
                            return Some(((), (volnetd, Some(stream), backoff)));
                        }
                        Ok(None) | Err(_) => tokio::time::sleep(backoff.next(random_fraction())).await,
                    },
                }
            }
        })
        .boxed()
    }
}

async fn open(volnetd: &Link, kind: WatchKind) -> Option<tonic::Streaming<bulkhead_ipc::volnetd::WatchEvent>> {
    const START: Duration = Duration::from_secs(5);
    let request = WatchRequest { kind: kind.into() };
    match tokio::time::timeout(START, WatchesClient::new(volnetd.channel()).watch(request)).await {
        Ok(Ok(stream)) => Some(stream.into_inner()),
        Ok(Err(status)) => {
            tracing::debug!(code = ?status.code(), "cannot watch credentials: {}", status.message());
            None
        }
        Err(_) => None,
    }
}

async fn read_all(descriptor: OwnedFd) -> Result<Vec<u8>, SourceError> {
    let read = move || {
        let mut bytes = Vec::new();
        std::fs::File::from(descriptor).take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map(|_| bytes)
    };
    let bytes = match tokio::task::spawn_blocking(read).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(error)) => return Err(SourceError::Read(error)),
        Err(error) => return Err(SourceError::Read(std::io::Error::other(error))),
    };
    if bytes.len() > MAX_BYTES { Err(SourceError::TooLarge) } else { Ok(bytes) }
}

/// Credentials from memory, for tests of whoever uses the client. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct MemorySource {
    files: Arc<Mutex<HashMap<CredentialFile, Vec<u8>>>>,
    changed: watch::Sender<()>,
}

impl fmt::Debug for MemorySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemorySource").finish_non_exhaustive()
    }
}

impl MemorySource {
    pub fn new(kubeconfig: &str) -> Self {
        let source = MemorySource { files: Arc::default(), changed: watch::Sender::new(()) };
        source.put(CredentialFile::Kubeconfig, kubeconfig);
        source
    }

    /// A kubeconfig for a server without credentials: `http://127.0.0.1:8080`.
    pub fn for_server(url: &str) -> Self {
        MemorySource::new(&format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: c}}}}]\nclusters: [{{name: c, cluster: {{server: \"{url}\"}}}}]\n"
        ))
    }

    /// Replaces a file and says so.
    pub fn put(&self, file: CredentialFile, content: impl AsRef<[u8]>) {
        self.put_all([(file, content)]);
    }

    /// Replaces several files at once and says so.
    pub fn put_all<T: AsRef<[u8]>>(&self, files: impl IntoIterator<Item = (CredentialFile, T)>) {
        let files = files.into_iter().map(|(file, content)| (file, content.as_ref().to_vec()));
        self.files.lock().extend(files);
        self.changed.send_replace(());
    }

    /// Takes a file away and says so.
    pub fn remove(&self, file: CredentialFile) {
        self.files.lock().remove(&file);
        self.changed.send_replace(());
    }
}

impl CredentialSource for MemorySource {
    fn read(&self, file: CredentialFile) -> BoxFuture<'_, Result<Vec<u8>, SourceError>> {
        let content = self.files.lock().get(&file).cloned();
        futures_util::future::ready(content.ok_or(SourceError::Missing)).boxed()
    }

    fn changes(&self) -> BoxStream<'static, ()> {
        let receiver = self.changed.subscribe();
        stream::unfold((receiver, self.changed.clone()), |(mut receiver, sender)| async move {
            receiver.changed().await.ok()?;
            Some(((), (receiver, sender)))
        })
        .boxed()
    }
}
