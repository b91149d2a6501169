//! Links to containers' logs that are missing.

use kubelet_model::pod::model::RunState;
use kubelet_runtime::runtime::ports::HostFiles as _;
use kubelet_runtime::runtime::stop::identity_of;

use crate::ownership::Owner;
use crate::sync_loop::host_files::VolnetdHostFiles;
use crate::sync_loop::node::NodeContext;

/// Links in `/var/log/containers` that a start could not make because somebody went away in the middle of it. Whoever
/// collects logs there would never see those containers. A link that is there already is left as it is.
pub async fn link_logs(node: &NodeContext) {
    let files = VolnetdHostFiles(node.volnetd.clone());
    for (_, pod) in node.cache.snapshot() {
        let began: Vec<_> = pod.containers.iter().filter(|one| one.state != RunState::Created).collect();
        let Some(identity) = identity_of(&pod).filter(|_| !began.is_empty()) else { continue };
        if node.ownership.of(&pod).await != Owner::Ours {
            continue;
        }
        for container in began {
            let link = files.link_container_log(&identity, &container.name, container.restart_count, &container.id);
            match link.await {
                Ok(()) => {}
                // volnetd's next life asks for all of them again.
                Err(error) if error.transient => return,
                Err(error) => {
                    tracing::warn!(pod = %identity, container = container.name, %error, "failed to link container log");
                }
            }
        }
    }
}
