//! Upstream's files `cpu_manager_state` and `memory_manager_state` in the root directory: read at the start, and written before what
//! they say is relied on. They are root's, so kubelet-volnetd opens and replaces them.

use std::fs::File;
use std::io::Read as _;

use bulkhead_ipc::broker::{BrokerClient, BrokerError};
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_ipc::volnetd::{State, StateKind};
use bulkhead_sys::memfd;
use kubelet_container_manager::ContainerManager as Managers;
use kubelet_container_manager::checkpoint::{CheckpointError, cpu, memory};
use kubelet_container_manager::manager::{Found, StateFile};
use parking_lot::Mutex;
use tonic::Code;

/// What volnetd takes of one file.
const BYTES_MAX: u64 = 16 << 20;

/// Why a file could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    #[error(transparent)]
    Broker(#[from] BrokerError),
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Content(#[from] CheckpointError),
}

impl StateFileError {
    /// kubelet-volnetd does not answer.
    pub fn is_away(&self) -> bool {
        matches!(self, StateFileError::Broker(error) if matches!(error.code(), Code::Unavailable | Code::DeadlineExceeded))
    }
}

/// A state file as it is; None: there is none.
///
/// # Errors
/// It cannot be had.
pub async fn read(broker: &BrokerClient, kind: StateKind) -> Result<Option<Vec<u8>>, StateFileError> {
    let fd = match broker.open(Kind::State(State { kind: kind.into() })).await {
        Ok(fd) => fd,
        Err(error) if error.code() == Code::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut bytes = Vec::new();
    File::from(fd).take(BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Both files.
#[derive(Debug)]
pub struct StateFiles {
    broker: BrokerClient,
    /// One writes at a time: what is older may not come last.
    writing: tokio::sync::Mutex<()>,
}

impl StateFiles {
    pub fn new(broker: BrokerClient) -> Self {
        StateFiles { broker, writing: tokio::sync::Mutex::default() }
    }

    /// The files as they are.
    ///
    /// # Errors
    /// One cannot be had; that there is none is no error.
    pub async fn read(&self) -> Result<Found, StateFileError> {
        Ok(Found {
            cpu: read(&self.broker, StateKind::CpuManager).await?,
            memory: read(&self.broker, StateKind::MemoryManager).await?,
        })
    }

    /// Writes what has changed since it was last written.
    ///
    /// # Errors
    /// kubelet-volnetd is away or could not write.
    pub async fn write(&self, managers: &Mutex<Managers>) -> Result<(), StateFileError> {
        let _one = self.writing.lock().await;
        let files = managers.lock().state_to_write()?;
        for file in files {
            self.broker.put_state(kind(&file), memfd::sealed(file.name, &file.content)?).await?;
            managers.lock().written(file);
        }
        Ok(())
    }
}

fn kind(file: &StateFile) -> StateKind {
    match file.name {
        cpu::FILE => StateKind::CpuManager,
        memory::FILE => StateKind::MemoryManager,
        _ => StateKind::Unspecified,
    }
}
