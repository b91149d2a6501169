//! Whose share of the workers a task takes, and whether it enters what others serve. A file system of another's may fall silent
//! when its server wants that, and a pod can be the server: what stays on this machine has workers that no such task takes.

use std::path::Path;

use bulkhead_sys::mountinfo::{Mount, MountInfo, innermost};
use bulkhead_types::PodUid;
use bulkhead_worker::Party;
use bulkhead_worker::shares::Kind;

use super::Task;
use crate::volumes::disk::place::{DiskPlace, Plugin};
use crate::volumes::local::Local;
use crate::volumes::sub_path::Root;
use crate::volumes::teardown;

/// File systems with servers; those of programs begin with "fuse".
const SERVED: &[&str] = &["9p", "afs", "autofs", "ceph", "cifs", "gfs2", "lustre", "nfs", "nfs4", "ocfs2", "smb3"];

/// What a task enters, as far as it says so itself.
#[derive(Debug, PartialEq, Eq)]
enum Entered<'a> {
    Known(Kind),
    /// Whatever is mounted in the pod's folder.
    Pod(&'a PodUid),
    /// A path of the host.
    Path(&'a Path),
}

/// For whom the task is, and of what kind.
pub async fn of(task: &Task) -> Party {
    let whose = whose(task);
    let kind = match entered(task) {
        Entered::Known(kind) => kind,
        Entered::Pod(pod) => {
            let pod = pod.clone();
            looked_up(move |mounts| teardown::is_foreign_below(mounts, &pod)).await
        }
        Entered::Path(path) => {
            let path = path.to_owned();
            looked_up(move |mounts| is_served(mounts, &path)).await
        }
    };
    Party { kind, whose }
}

/// Reads the list of mounts, on a thread of the pool. What is not known is foreign.
async fn looked_up(is_foreign: impl FnOnce(&[Mount<'_>]) -> bool + Send + 'static) -> Kind {
    let look = move || {
        let mut info = MountInfo::new();
        let mounts: Vec<Mount<'_>> = info.read()?.collect();
        Ok::<_, std::io::Error>(is_foreign(&mounts))
    };
    match tokio::task::spawn_blocking(look).await {
        Ok(Ok(false)) => Kind::Local,
        Ok(Ok(true) | Err(_)) | Err(_) => Kind::Foreign,
    }
}

/// Pure.
fn whose(task: &Task) -> String {
    match task {
        Task::SetUpEmptyDir { pod, .. }
        | Task::SetUpContent { pod, .. }
        | Task::PutContent { pod, .. }
        | Task::PrepareSubPath { pod, .. }
        | Task::CheckHostPath { pod, .. }
        | Task::SetUpLocal { pod, .. }
        | Task::SetUpNfs { pod, .. }
        | Task::LookLocal { pod, .. }
        | Task::LookBound { pod, .. }
        | Task::MapDisk { pod, .. }
        | Task::GiveLocal { pod, .. }
        | Task::OtherGroup { pod, .. }
        | Task::PrepareFlex { pod, .. }
        | Task::BindFlex { pod, .. }
        | Task::GiveFlex { pod, .. }
        | Task::UnbindFlex { pod, .. }
        | Task::EndFlex { pod, .. }
        | Task::TearDownPod { pod, .. }
        | Task::OpenEnvFile { pod, .. } => of_pod(pod),
        Task::PreparePublish { published, .. }
        | Task::CommitPublish { published, .. }
        | Task::GivePublished { published, .. }
        | Task::BeginUnpublish { published }
        | Task::EndPublish { published } => of_pod(&published.pod),
        // Of each volume its own: one that does not answer keeps nobody from asking for the pod's others.
        Task::AskPublished { published } => published.what(),
        Task::AskOnce { once } => once.what(),
        Task::MountDevice { place, .. } | Task::GrowXfs { place, .. } | Task::UnmountDevice { place } => {
            place.to_string()
        }
        Task::EndDevice { volume } => format!("local volume {volume}"),
        Task::PrepareStage { staged, .. }
        | Task::CommitStage { staged }
        | Task::BeginUnstage { staged }
        | Task::EndStage { staged } => staged.what(),
        Task::EndNameless { nameless } => nameless.what(),
        Task::OpenNodeLog { .. } => "the node's logs".to_owned(),
    }
}

fn of_pod(pod: &PodUid) -> String {
    format!("pod {pod}")
}

/// Pure.
fn entered(task: &Task) -> Entered<'_> {
    match task {
        // Folders that are made here; what somebody mounts into one shows when the pod goes.
        Task::SetUpEmptyDir { .. }
        | Task::SetUpContent { .. }
        | Task::PutContent { .. }
        | Task::OpenEnvFile { .. }
        | Task::EndDevice { .. } => Entered::Known(Kind::Local),
        Task::OpenNodeLog { .. } => Entered::Known(Kind::Node),
        Task::AskPublished { .. } | Task::AskOnce { .. } => Entered::Known(Kind::Question),
        Task::GivePublished { .. } | Task::GiveLocal { .. } | Task::GiveFlex { .. } => Entered::Known(Kind::Walk),
        Task::TearDownPod { mounted: Some(mounted), .. } => {
            Entered::Known(if mounted.is_foreign { Kind::Foreign } else { Kind::Local })
        }
        Task::TearDownPod { pod, mounted: None, .. } => Entered::Pod(pod),
        Task::CheckHostPath { path, .. } => Entered::Path(path),
        Task::PrepareSubPath { pod, wanted } => match &wanted.root {
            Root::EmptyDir | Root::Content(_) => Entered::Known(Kind::Local),
            Root::HostPath(path) => Entered::Path(path),
            Root::Local => Entered::Pod(pod),
            Root::Csi | Root::Fc | Root::Iscsi | Root::Nfs | Root::Flex(_) => Entered::Known(Kind::Foreign),
        },
        Task::SetUpLocal { local, .. }
        | Task::LookLocal { local, .. }
        | Task::LookBound { local, .. }
        | Task::OtherGroup { local, .. } => of_local(local),
        Task::MountDevice { place, .. }
        | Task::GrowXfs { place, .. }
        | Task::MapDisk { place, .. }
        | Task::UnmountDevice { place } => of_place(place),
        Task::SetUpNfs { .. }
        | Task::PrepareFlex { .. }
        | Task::BindFlex { .. }
        | Task::UnbindFlex { .. }
        | Task::EndFlex { .. }
        | Task::PrepareStage { .. }
        | Task::CommitStage { .. }
        | Task::BeginUnstage { .. }
        | Task::EndStage { .. }
        | Task::EndNameless { .. }
        | Task::PreparePublish { .. }
        | Task::CommitPublish { .. }
        | Task::BeginUnpublish { .. }
        | Task::EndPublish { .. } => Entered::Known(Kind::Foreign),
    }
}

fn of_local(local: &Local) -> Entered<'_> {
    match local.plugin {
        Plugin::Local => Entered::Path(&local.path),
        Plugin::Fc | Plugin::Iscsi | Plugin::Flex => Entered::Known(Kind::Foreign),
    }
}

fn of_place(place: &DiskPlace) -> Entered<'_> {
    Entered::Known(match place.plugin {
        Plugin::Local => Kind::Local,
        Plugin::Fc | Plugin::Iscsi | Plugin::Flex => Kind::Foreign,
    })
}

/// Whether the path, by its text, is on a file system with a server. Pure.
fn is_served(mounts: &[Mount<'_>], path: &Path) -> bool {
    innermost(mounts.iter(), path)
        .is_none_or(|mount| SERVED.contains(&&*mount.fs_type) || mount.fs_type.starts_with("fuse"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::empty_dir::Medium;
    use crate::volumes::teardown::{Mounted, Scope};
    use bulkhead_sys::mountinfo::parse;

    const MOUNTS: &[u8] = b"\
20 1 254:0 / / rw - ext4 /dev/vda rw
21 20 8:1 / /data rw - xfs /dev/sdb1 rw
22 20 0:40 / /mnt/share rw - nfs4 10.0.0.1:/ rw
23 20 0:41 / /mnt/program rw - fuse.sshfs x rw
";

    fn pod(uid: &str) -> PodUid {
        PodUid::parse(uid).unwrap()
    }

    #[test]
    fn paths_on_file_systems_with_servers() {
        let mounts: Vec<_> = parse(MOUNTS).collect();
        let table = [
            ("/", false),
            ("/data/x", false),
            ("/mnt", false),
            ("/mnt/share", true),
            ("/mnt/share/x", true),
            ("/mnt/shared", false),
            ("/mnt/program/x", true),
        ];
        for (path, served) in table {
            assert_eq!(is_served(&mounts, Path::new(path)), served, "{path}");
        }
        assert!(is_served(&[], Path::new("/")), "what is not known");
    }

    #[test]
    fn what_a_task_says_itself() {
        let empty_dir = Task::SetUpEmptyDir {
            pod: pod("u"),
            volume: bulkhead_types::VolumeName::parse("v").unwrap(),
            medium: Medium::Disk,
            group: None,
        };
        assert_eq!(entered(&empty_dir), Entered::Known(Kind::Local));
        let tear_down =
            |mounted| Task::TearDownPod { pod: pod("u"), scope: Scope::Everything, kept: Vec::new(), mounted };
        for (is_foreign, kind) in [(false, Kind::Local), (true, Kind::Foreign)] {
            let looked = tear_down(Some(Mounted { is_foreign, ..Mounted::default() }));
            assert_eq!(entered(&looked), Entered::Known(kind), "the mounts are not read again");
        }
        let tear_down = tear_down(None);
        assert_eq!(entered(&tear_down), Entered::Pod(&pod("u")));
        assert_eq!((whose(&empty_dir), whose(&tear_down)), ("pod u".to_owned(), "pod u".to_owned()));
        let flex = crate::volumes::flex::FlexVolume {
            driver: bulkhead_types::FlexDriver::parse("v/d").unwrap(),
            volume: bulkhead_types::VolumeName::parse("v").unwrap(),
        };
        let group = crate::volumes::empty_dir::Group { id: 1, on_root_mismatch: false };
        let give = Task::GiveFlex { pod: pod("u"), flex: flex.clone(), group };
        assert_eq!((entered(&give), whose(&give).as_str()), (Entered::Known(Kind::Walk), "pod u"));
        let bind = Task::BindFlex { pod: pod("u"), flex };
        assert_eq!(entered(&bind), Entered::Known(Kind::Foreign));
        let log = Task::OpenNodeLog { relative: None };
        assert_eq!(entered(&log), Entered::Known(Kind::Node));
    }
}
