//! What a request on the side socket is about, for its record in the audit log.

use bulkhead_ipc::broker::BrokerRequest;
use bulkhead_ipc::volnetd::open_request::Kind;
use bulkhead_ipc::volnetd::{CompressedLog, PodLogId};

/// A pod's uid, where there is one, and what of it.
pub(super) fn subject(request: &BrokerRequest) -> (String, String) {
    let own = |text: &str| (String::new(), text.to_owned());
    match request {
        BrokerRequest::Open(kind) => opened(kind),
        BrokerRequest::PutState(kind, _) => own(kind.as_str_name()),
        BrokerRequest::PutContent(volume, _) => (volume.pod_uid.clone(), volume.volume.clone()),
        BrokerRequest::PutCredential(kind, _) => own(kind.as_str_name()),
        BrokerRequest::LinkCompressedLog(log, _) => compressed(log),
    }
}

fn opened(kind: &Kind) -> (String, String) {
    let own = |text: String| (String::new(), text);
    match kind {
        Kind::RuntimeSocket(socket) => own(if socket.image_service { "images".into() } else { String::new() }),
        Kind::Manifest(manifest) => own(manifest.name.clone()),
        Kind::ContainerLog(log) => of_container(log.pod.as_ref(), &log.container, log.restart_count, ""),
        Kind::RotatedLog(log) => of_container(log.pod.as_ref(), &log.container, log.restart_count, &log.stamp),
        Kind::CompressedLog(log) => compressed(log),
        Kind::TerminationMessage(message) => (message.pod_uid.clone(), message.container.clone()),
        Kind::State(state) => own(state.kind().as_str_name().to_owned()),
        Kind::Psi(psi) => own(format!("{}{}", psi.resource().as_str_name(), if psi.pods { " of pods" } else { "" })),
        Kind::MemcgEvent(event) => {
            own(format!("{} bytes{}", event.threshold_bytes, if event.pods { " of pods" } else { "" }))
        }
        Kind::NodeLog(log) => own(log.relative.clone()),
        Kind::Credential(credential) => own(credential.kind().as_str_name().to_owned()),
        Kind::RegistryConfig(config) => own(config.index.to_string()),
        Kind::Listener(listener) => own(listener.kind().as_str_name().to_owned()),
        Kind::PluginSocket(plugin) => own(format!("{} {}", plugin.registration, plugin.endpoint).trim_end().to_owned()),
        Kind::EnvFile(file) => (file.pod_uid.clone(), format!("{} {}", file.volume, file.path)),
        Kind::PrivateState(_) | Kind::Kmsg(_) | Kind::ProductUuid(_) | Kind::ShutdownInhibitor(_) => own(String::new()),
    }
}

fn compressed(log: &CompressedLog) -> (String, String) {
    of_container(log.pod.as_ref(), &log.container, log.restart_count, &log.stamp)
}

fn of_container(pod: Option<&PodLogId>, container: &str, restarts: u32, stamp: &str) -> (String, String) {
    let object = format!("{container}/{restarts} {stamp}");
    (pod.map(|pod| pod.uid.clone()).unwrap_or_default(), object.trim_end().to_owned())
}
