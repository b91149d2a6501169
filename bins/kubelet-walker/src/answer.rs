//! A request: what it may name, and what is measured for it.

use std::path::{Path, PathBuf};
use std::time::Instant;

use bulkhead_ipc::common::walk_request::What;
use bulkhead_ipc::common::{
    ContainerLogFigures, ContainerLogFiles, ContainerLogId, FolderFigures, PodLogFigures, VolumeFigures,
    WalkContainerLogs, WalkPodLogs, WalkReply, WalkRequest, WalkVolumes,
};
use bulkhead_types::{ContainerName, IdError, InstancePaths, Namespace, PodName, PodUid, VolumeName, chain};
use bulkhead_worker::Message;
use prost::Message as _;

use crate::measure;

/// The plugins whose volumes the node agent itself makes, by upstream's names.
const PLUGINS: [&str; 5] = [
    "kubernetes.io/empty-dir",
    "kubernetes.io/configmap",
    "kubernetes.io/secret",
    "kubernetes.io/projected",
    "kubernetes.io/downward-api",
];

/// Far above the containers that a node has.
const MAX_LOGS: usize = 20_000;

/// Why a request is not answered with figures.
#[derive(Debug, thiserror::Error)]
pub enum WalkError {
    #[error("the request is not understood")]
    Decode(#[from] prost::DecodeError),
    #[error("the request asks for nothing that is known here")]
    Nothing,
    #[error("{0:?}: an absolute path is wanted")]
    Relative(String),
    #[error("{0:?}: none of the plugins whose volumes are measured")]
    Plugin(String),
    #[error("{0} logs are asked for, at most {MAX_LOGS} may be")]
    TooMany(usize),
    #[error(transparent)]
    Id(#[from] IdError),
    #[error("failed to examine {path}")]
    Io { path: PathBuf, source: std::io::Error },
}

/// What a worker does with a request.
pub fn answer(paths: &InstancePaths, request: &Message) -> Message {
    let reply = WalkRequest::decode(&*request.bytes).map_err(WalkError::from).and_then(|asked| measured(paths, asked));
    let reply = reply.unwrap_or_else(|error| WalkReply { error: chain(&error), ..WalkReply::default() });
    Message::of(reply.encode_to_vec())
}

fn measured(paths: &InstancePaths, request: WalkRequest) -> Result<WalkReply, WalkError> {
    match request.what.ok_or(WalkError::Nothing)? {
        What::FileSystem(path) => {
            if !path.starts_with('/') {
                return Err(WalkError::Relative(path));
            }
            let figures =
                measure::file_system(Path::new(&path)).map_err(|source| WalkError::Io { path: path.into(), source })?;
            Ok(WalkReply { file_system: Some(figures), ..WalkReply::default() })
        }
        What::Volumes(volumes) => Ok(WalkReply { volumes: of_volumes(paths, volumes)?, ..WalkReply::default() }),
        What::ContainerLogs(logs) => {
            Ok(WalkReply { container_logs: of_container_logs(paths, &logs)?, ..WalkReply::default() })
        }
        What::PodLogs(logs) => Ok(WalkReply { pod_logs: Some(of_logs(paths, &logs)?), ..WalkReply::default() }),
    }
}

fn of_volumes(paths: &InstancePaths, asked: WalkVolumes) -> Result<Vec<VolumeFigures>, WalkError> {
    let pod = PodUid::parse(&asked.pod_uid)?;
    let mut figures = Vec::with_capacity(asked.volumes.len());
    for volume in asked.volumes {
        let plugin = PLUGINS.into_iter().find(|known| *known == volume.plugin);
        let plugin = plugin.ok_or(WalkError::Plugin(volume.plugin))?;
        let name = VolumeName::parse(&volume.name)?;
        let started = Instant::now();
        // One that is being made or taken away is left out.
        let Ok(measured) = measure::volume(&paths.volume(&pod, plugin, &name)) else { continue };
        figures.push(VolumeFigures {
            name: volume.name,
            file_system: Some(measured.fs),
            folder: Some(measured.folder),
            is_mount: measured.is_mount,
            seconds: started.elapsed().as_secs_f64(),
        });
    }
    Ok(figures)
}

fn of_logs(paths: &InstancePaths, asked: &WalkPodLogs) -> Result<PodLogFigures, WalkError> {
    let pod = PodUid::parse(&asked.pod_uid)?;
    let folder = paths.pod_logs(&Namespace::parse(&asked.namespace)?, &PodName::parse(&asked.name)?, &pod);
    let mut figures = PodLogFigures { file_system: measure::file_system(&folder).ok(), ..PodLogFigures::default() };
    for container in &asked.containers {
        let name = ContainerName::parse(container)?;
        if let Ok(files) = measure::files(&folder.join(name.as_str())) {
            figures.containers.push(ContainerLogFigures { container: container.clone(), files: Some(files) });
        }
    }
    let mut other = FolderFigures::default();
    for one in measure::files(&folder).ok().into_iter().chain(measure::file(&paths.etc_hosts(&pod))) {
        other.bytes = other.bytes.saturating_add(one.bytes);
        other.inodes = other.inodes.saturating_add(one.inodes);
    }
    figures.other = Some(other);
    Ok(figures)
}

fn of_container_logs(paths: &InstancePaths, asked: &WalkContainerLogs) -> Result<Vec<ContainerLogFiles>, WalkError> {
    if asked.logs.len() > MAX_LOGS {
        return Err(WalkError::TooMany(asked.logs.len()));
    }
    let files = |log: &ContainerLogId| {
        let pod = PodUid::parse(&log.pod_uid)?;
        let folder = paths.pod_logs(&Namespace::parse(&log.namespace)?, &PodName::parse(&log.name)?, &pod);
        let folder = folder.join(ContainerName::parse(&log.container)?.as_str());
        // What cannot be listed is not known, and none of the others is.
        Ok(measure::log_files(&folder, log.restart_count).unwrap_or_default())
    };
    asked.logs.iter().map(files).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_ipc::common::WalkVolume;

    fn asked(root: &Path, what: What) -> WalkReply {
        let paths = InstancePaths { root_dir: root.into(), run_dir: root.into(), pod_logs_dir: root.join("logs") };
        let request = Message::of(WalkRequest { what: Some(what) }.encode_to_vec());
        WalkReply::decode(&*answer(&paths, &request).bytes).unwrap()
    }

    fn volumes(pod: &str, plugin: &str, names: &[&str]) -> What {
        let volume = |name: &&str| WalkVolume { plugin: plugin.into(), name: (*name).into() };
        What::Volumes(WalkVolumes { pod_uid: pod.into(), volumes: names.iter().map(volume).collect() })
    }

    #[test]
    fn volumes_logs_and_file_systems_are_measured() {
        let temp = tempfile::tempdir().unwrap();
        let volume = temp.path().join("pods/u1/volumes/kubernetes.io~empty-dir/scratch");
        let logs = temp.path().join("logs/default_web_u1/main");
        std::fs::create_dir_all(&volume).unwrap();
        std::fs::create_dir_all(&logs).unwrap();
        std::fs::write(volume.join("f"), vec![1; 50_000]).unwrap();
        std::fs::write(logs.join("0.log"), vec![1; 9_000]).unwrap();
        std::fs::write(temp.path().join("pods/u1/etc-hosts"), "x").unwrap();
        let reply = asked(temp.path(), volumes("u1", "kubernetes.io/empty-dir", &["gone", "scratch"]));
        assert_eq!((reply.error.as_str(), reply.volumes.len()), ("", 1));
        let figures = &reply.volumes[0];
        assert_eq!((figures.name.as_str(), figures.folder.unwrap().inodes, figures.is_mount), ("scratch", 2, false));
        assert!(figures.folder.unwrap().bytes >= 50_000);
        let wanted = WalkPodLogs {
            pod_uid: "u1".into(),
            namespace: "default".into(),
            name: "web".into(),
            containers: vec!["main".into(), "other".into()],
        };
        let logs = asked(temp.path(), What::PodLogs(wanted)).pod_logs.unwrap();
        assert_eq!(
            (logs.containers.len(), logs.other.unwrap().inodes),
            (1, 1),
            "the container's folder, and etc-hosts"
        );
        assert!(logs.containers[0].files.unwrap().bytes >= 9_000);
        let whole = asked(temp.path(), What::FileSystem("/".into())).file_system.unwrap();
        assert!(whole.capacity_bytes > 0);
    }

    fn log(container: &str) -> ContainerLogId {
        let (pod_uid, namespace, name) = ("u1".into(), "default".into(), "web".into());
        ContainerLogId { pod_uid, namespace, name, container: container.into(), restart_count: 0 }
    }

    #[test]
    fn files_of_logs_are_listed_in_the_order_of_the_question() {
        let temp = tempfile::tempdir().unwrap();
        let logs = temp.path().join("logs/default_web_u1");
        std::fs::create_dir_all(logs.join("main")).unwrap();
        std::fs::create_dir_all(logs.join("new")).unwrap();
        std::fs::write(logs.join("main/0.log"), "12345").unwrap();
        std::fs::write(logs.join("main/0.log.20260101-000000.gz"), "1").unwrap();
        let asked = asked(
            temp.path(),
            What::ContainerLogs(WalkContainerLogs { logs: ["none", "main", "new"].map(log).into() }),
        );
        let logs: Vec<_> = asked.container_logs.iter().map(|l| (l.known, l.current_bytes, l.rotated.len())).collect();
        assert_eq!(logs, [(false, None, 0), (true, Some(5), 1), (true, None, 0)]);
    }

    #[test]
    fn what_names_no_volume_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        for (what, wanted) in [
            (What::FileSystem("etc".into()), "an absolute path is wanted"),
            (What::FileSystem("/no/such".into()), "failed to examine /no/such"),
            (volumes("../u", "kubernetes.io/empty-dir", &["v"]), "../u"),
            (volumes("u1", "kubernetes.io/../x", &["v"]), "none of the plugins"),
            (volumes("u1", "kubernetes.io/empty-dir", &["../../x"]), "../../x"),
            (What::PodLogs(WalkPodLogs { pod_uid: "u1".into(), namespace: "/".into(), ..Default::default() }), "/"),
            (What::ContainerLogs(WalkContainerLogs { logs: vec![log("../..")] }), "../.."),
            (What::ContainerLogs(WalkContainerLogs { logs: vec![log("main"); MAX_LOGS + 1] }), "at most 20000"),
        ] {
            let reply = asked(temp.path(), what);
            assert!(reply.error.contains(wanted), "{}", reply.error);
        }
        let paths = InstancePaths { root_dir: "/t".into(), run_dir: "/t".into(), pod_logs_dir: "/t".into() };
        for bytes in [Vec::new(), vec![0xff; 9]] {
            let reply = WalkReply::decode(&*answer(&paths, &Message::of(bytes)).bytes).unwrap();
            assert!(!reply.error.is_empty());
        }
    }
}
