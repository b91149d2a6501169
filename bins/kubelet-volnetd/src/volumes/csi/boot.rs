//! What a boot ends: mounts go, and `vol_data.json` stays. So the boot in which this process was last ready is kept, and in another
//! one, or where none is kept because another kubelet has had the node, all that is found is uncertain: its driver is asked again.
//! So it is where the journal was damaged. A disk that is full then keeps no node from coming up: it may be there to be cleaned. What
//! could not be written down is found out again by the next process, as the boot is not kept before.

use std::io::Read as _;
use std::path::Path;

use bulkhead_sys::open;
use bulkhead_types::chain;
use rustix::fs::AtFlags;
use rustix::io::Errno;

use super::super::VolumeError;
use super::list;
use crate::journal;
use crate::node::{BOOT, Node};

const OF_THE_KERNEL: &str = "/proc/sys/kernel/random/boot_id";

/// Makes everything uncertain where it has to be. To be called before anybody is served.
///
/// # Errors
/// The volumes cannot be listed: nobody could rely on what is told then.
pub fn look(node: &Node) -> Result<(), VolumeError> {
    let list_error = |path: &str| {
        let path = path.into();
        move |source| VolumeError::List { path, source }
    };
    let now = std::fs::read(OF_THE_KERNEL).map_err(list_error(OF_THE_KERNEL))?;
    let whole = !node.journal.was_damaged() && !node.staging.was_damaged();
    if whole && kept(node).is_some_and(|kept| kept == now) {
        return Ok(());
    }
    let (count, written) = list::nothing_is_certain(node)?;
    if count > 0 {
        tracing::info!(
            count,
            "volumes of CSI drivers are uncertain: another boot, another kubelet's node, or a damaged journal"
        );
    }
    let kept = written.map_err(|error| chain(&error)).and_then(|()| {
        journal::replace(node.state(), Path::new(BOOT), &now, 0o600).map_err(|error| format!("writing {BOOT}: {error}"))
    });
    if let Err(error) = kept {
        tracing::warn!(error, "what is uncertain of volumes cannot be written down: the next start finds it out again");
    }
    Ok(())
}

/// All that is found is uncertain at [`look`], in this process or the next. On return that is on the disk.
///
/// # Errors
/// Of the disk.
pub fn forget(node: &Node) -> std::io::Result<()> {
    match rustix::fs::unlinkat(node.state(), BOOT, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(rustix::fs::fsync(node.state())?),
        Err(errno) => Err(errno.into()),
    }
}

fn kept(node: &Node) -> Option<Vec<u8>> {
    let file = std::fs::File::from(open::regular_beneath(node.state(), BOOT).ok()?);
    let mut text = Vec::new();
    file.take(256).read_to_end(&mut text).ok()?;
    Some(text)
}
