//! A file system that falls silent: FUSE, served by a thread that answers a little until it is told to stop, and then takes
//! every request and answers none. Whoever asked waits in the kernel, where no signal ends it, until the file system goes.
//!
//! Numbers and layouts: linux/fuse.h, version 7.31.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const READDIR: u32 = 28;
const BATCH_FORGET: u32 = 42;

/// Bytes of fuse_in_header.
const HEADER: usize = 40;
/// The kernel gives no request to a buffer below FUSE_MIN_READ_BUFFER plus what max_write may bring.
const BUFFER: usize = 1 << 18;

/// Mounted until dropped; then everybody who waits for it gets an error.
#[derive(Debug)]
pub struct SilentFs {
    point: PathBuf,
    silent: Arc<AtomicBool>,
    unanswered: Arc<AtomicUsize>,
    /// Of one that nobody serves yet.
    _device: Option<File>,
}

impl SilentFs {
    /// Whether this machine has FUSE.
    pub fn is_possible() -> bool {
        Path::new("/dev/fuse").exists()
    }

    /// Mounts it. It answers what a walk needs, every name being a directory, until [`Self::fall_silent`].
    ///
    /// # Errors
    /// No FUSE on this machine, or the mount is refused.
    pub fn mount(point: &Path) -> Result<Self> {
        Self::served(point, false, None)
    }

    /// The same, which refuses everything with an errno.
    ///
    /// # Errors
    /// As [`Self::mount`].
    pub fn mount_refusing(point: &Path, errno: i32) -> Result<Self> {
        Self::served(point, false, Some(errno))
    }

    /// The same, silent to whoever lists a folder: a walk begins, and goes no further.
    ///
    /// # Errors
    /// As [`Self::mount`].
    pub fn mount_unlistable(point: &Path) -> Result<Self> {
        Self::served(point, true, None)
    }

    fn served(point: &Path, unlistable: bool, refusal: Option<i32>) -> Result<Self> {
        let device = connect(point)?;
        let (silent, unanswered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let told = (silent.clone(), unanswered.clone());
        std::thread::spawn(move || serve(device, &told.0, unlistable, refusal, &told.1));
        Ok(SilentFs { point: point.to_owned(), silent, unanswered, _device: None })
    }

    /// The same, silent from the start.
    ///
    /// # Errors
    /// As [`Self::mount`].
    pub fn mount_silent(point: &Path) -> Result<Self> {
        let mounted = Self::mount(point)?;
        mounted.fall_silent();
        Ok(mounted)
    }

    /// The same, served by nobody any more: whoever looks at it is told so at once.
    ///
    /// # Errors
    /// As [`Self::mount`].
    pub fn mount_dead(point: &Path) -> Result<Self> {
        drop(connect(point)?);
        Ok(SilentFs { point: point.to_owned(), silent: Arc::default(), unanswered: Arc::default(), _device: None })
    }

    /// The same, served by nobody yet: requests are not even taken, and whoever waits for one can be killed.
    ///
    /// # Errors
    /// As [`Self::mount`].
    pub fn mount_unserved(point: &Path) -> Result<Self> {
        let device = Some(connect(point)?);
        Ok(SilentFs { point: point.to_owned(), silent: Arc::default(), unanswered: Arc::default(), _device: device })
    }

    pub fn fall_silent(&self) {
        self.silent.store(true, Ordering::SeqCst);
    }

    /// Requests that were taken and not answered.
    pub fn unanswered(&self) -> usize {
        self.unanswered.load(Ordering::SeqCst)
    }
}

impl Drop for SilentFs {
    fn drop(&mut self) {
        // MNT_FORCE aborts the connection: the thread's read ends, and so do all requests. A file system that another
        // namespace has mounted too is aborted all the same.
        let _ = umount2(&self.point, MntFlags::MNT_FORCE);
        let _ = umount2(&self.point, MntFlags::MNT_DETACH);
    }
}

/// Mounts it; who holds what is given serves it.
fn connect(point: &Path) -> Result<File> {
    let device = File::options().read(true).write(true).open("/dev/fuse").context("opening /dev/fuse")?;
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
    mount(Some("silent"), point, Some("fuse"), MsFlags::empty(), Some(options.as_str()))
        .with_context(|| format!("mounting FUSE on {}", point.display()))?;
    Ok(device)
}

fn serve(mut device: File, silent: &AtomicBool, unlistable: bool, refusal: Option<i32>, unanswered: &AtomicUsize) {
    let mut buffer = vec![0; BUFFER];
    // ENODEV: it was unmounted.
    while let Ok(read) = device.read(&mut buffer) {
        let (Some(opcode), Some(unique), Some(node)) = (word(&buffer, 4), long(&buffer, 8), long(&buffer, 16)) else {
            return;
        };
        if read < HEADER || [FORGET, BATCH_FORGET].contains(&opcode) {
            continue;
        }
        let is_unanswered = silent.load(Ordering::SeqCst) || (unlistable && opcode == READDIR);
        if is_unanswered && opcode != INIT {
            unanswered.fetch_add(1, Ordering::SeqCst);
            continue;
        }
        let body = match opcode {
            INIT => init(),
            _ if refusal.is_some() => Vec::new(),
            // Every name is the directory 2.
            LOOKUP => [[2_u64, 0, 0, 0].map(u64::to_le_bytes).concat(), vec![0; 8], attributes(2)].concat(),
            GETATTR => [vec![0; 16], attributes(node)].concat(),
            OPENDIR => vec![0; 16],
            _ => Vec::new(),
        };
        // ENOSYS for what is not known.
        let error: i32 = if body.is_empty() { -refusal.unwrap_or(38) } else { 0 };
        let length = u32::try_from(16 + body.len()).unwrap_or(u32::MAX);
        let answer = [&length.to_le_bytes()[..], &error.to_le_bytes(), &unique.to_le_bytes(), &body].concat();
        let _ = device.write_all(&answer);
    }
}

fn word(buffer: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(buffer.get(at..at + 4)?.try_into().ok()?))
}

fn long(buffer: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(buffer.get(at..at + 8)?.try_into().ok()?))
}

/// fuse_init_out: version 7.31, 4 KiB a write.
fn init() -> Vec<u8> {
    let mut body = [7_u32, 31, 4096, 0].map(u32::to_le_bytes).concat();
    body.extend([16_u16, 12].map(u16::to_le_bytes).concat());
    body.extend([4096_u32, 1].map(u32::to_le_bytes).concat());
    body.resize(64, 0);
    body
}

/// fuse_attr of a directory that everybody may enter.
fn attributes(node: u64) -> Vec<u8> {
    let mut body = [node, 4096, 8, 0, 0, 0].map(u64::to_le_bytes).concat();
    body.extend([0_u32, 0, 0, 0o040_755, 2, 0, 0, 0, 4096, 0].map(u32::to_le_bytes).concat());
    body
}
