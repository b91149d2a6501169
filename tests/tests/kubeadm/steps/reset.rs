//! `kubeadm reset`: the service stops, all mounts go in the order of /proc/mounts, all sandboxes, all files.

use anyhow::{Result, ensure};
use bulkhead_tests::checklist::Checklist;
use bulkhead_tests::installed;

use super::host::Host;

const FOLDER: &str = "/var/lib/kubelet";

/// Everything that reset does.
pub fn reset(host: &Host, list: &mut Checklist) -> Result<()> {
    let machine = &host.machine;
    let pod = host.pod()?;
    list.holds("reset: `systemctl stop` ends every process of the agent and no container; 10250 is free", || {
        machine.check(&["systemctl", "stop", "kubelet"])?;
        let left = installed::processes(machine)?;
        ensure!(left.is_empty(), "{left:?}");
        ensure!(machine.fingerprint()? == pod);
        host.port_is_free()
    });
    list.holds("reset: whoever connects or looks does not bring it back", || {
        let sockets = machine.shell("ls /run/kubelet/*.sock 2>/dev/null || true")?;
        ensure!(sockets.is_empty(), "{sockets}");
        ensure!(host.systemctl(&["is-active", "kubelet"])?.1 == "inactive");
        ensure!(installed::processes(machine)?.is_empty());
        Ok(())
    });
    list.holds("reset: all mounts below /var/lib/kubelet can be taken away in the order of /proc/mounts", || {
        ensure!(!below(host)?.is_empty(), "there is none: nothing was tried");
        // umount(2) without flags, as kubeadm does it; -c: no link is looked for.
        machine.shell(&format!(
            "cut -d' ' -f2 /proc/mounts | grep '^{FOLDER}/' | while read -r target; do umount -c \"$target\"; done"
        ))?;
        ensure!(below(host)?.is_empty(), "{:?}", below(host)?);
        Ok(())
    });
    list.holds("reset: all sandboxes can be stopped and removed over CRI", || {
        let cri = machine.cri()?;
        for sandbox in cri.sandboxes()? {
            cri.stop_sandbox(&sandbox.id)?;
            cri.remove_sandbox(&sandbox.id)?;
        }
        ensure!(cri.sandboxes()?.is_empty() && cri.containers()?.is_empty());
        Ok(())
    });
    list.holds("reset: the folders can be emptied, and nothing writes or mounts there any more", || {
        machine.shell(&format!(
            "find /etc/kubernetes/manifests /etc/kubernetes/pki {FOLDER} -mindepth 1 -delete
             rm -f /etc/kubernetes/*.conf"
        ))?;
        let left = machine.shell(&format!("find {FOLDER} -mindepth 1"))?;
        ensure!(left.is_empty() && below(host)?.is_empty() && installed::processes(machine)?.is_empty(), "{left}");
        Ok(())
    });
    Ok(())
}

/// Mounts below the folder, not the one that it may be itself.
fn below(host: &Host) -> Result<Vec<String>> {
    let all = host.machine.mounts_below(FOLDER)?;
    Ok(all.into_iter().filter(|mount| !mount.ends_with(&format!(" {FOLDER}"))).collect())
}
