//! The real other ends: drivers by their sockets, kubelet-volnetd by its verbs.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_csi::v1 as csi;
use bulkhead_ipc::client::PeerState;
use bulkhead_ipc::common::DestructiveGuard;
use bulkhead_ipc::context::CallContext;
use bulkhead_ipc::volnetd as api;
use bulkhead_types::PodUid;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt as _, StreamExt as _, TryFutureExt as _};
use kubelet_edges::csi::{CsiClient, CsiNode as _, Driver};
use kubelet_edges::volnetd::{Volnetd, VolnetdError};
use tokio::sync::watch;

use crate::csi::policy::Capabilities;
use crate::ports::{Answer, Drivers, Reply, VolumeVerbs};
use crate::spec::CsiSource;

/// Drivers that have registered.
#[derive(Debug, Clone)]
pub struct RegisteredDrivers(pub CsiClient);

impl RegisteredDrivers {
    fn client(&self, migrated: bool) -> CsiClient {
        if migrated { self.0.of_migrated() } else { self.0.clone() }
    }
}

impl Drivers for RegisteredDrivers {
    fn changes(&self) -> BoxStream<'static, BTreeSet<String>> {
        let mut seen = self.0.drivers().subscribe();
        let known = seen.borrow_and_update().clone();
        let next = |(mut seen, known): (watch::Receiver<BTreeMap<String, Driver>>, BTreeMap<String, Driver>)| async move {
            seen.changed().await.ok()?;
            let now = seen.borrow_and_update().clone();
            let names = known.keys().chain(now.keys()).filter(|name| known.get(*name) != now.get(*name));
            let changed: BTreeSet<String> = names.cloned().collect();
            Some((changed, (seen, now)))
        };
        futures_util::stream::unfold((seen, known), next).boxed()
    }

    fn capabilities<'a>(&'a self, driver: &'a str, migrated: bool) -> Answer<'a, Capabilities> {
        let client = self.client(migrated);
        async move {
            let answer = client.node_get_capabilities(driver, csi::NodeGetCapabilitiesRequest {}).await?;
            Ok(Capabilities::of(&answer.capabilities))
        }
        .boxed()
    }

    fn stage<'a>(&'a self, source: &'a CsiSource, request: csi::NodeStageVolumeRequest) -> Answer<'a, ()> {
        let client = self.client(source.migrated);
        async move { client.node_stage_volume(&source.driver, request).await.map(|_| ()) }.boxed()
    }

    fn unstage<'a>(&'a self, driver: &'a str, request: csi::NodeUnstageVolumeRequest) -> Answer<'a, ()> {
        self.0.node_unstage_volume(driver, request).map_ok(|_| ()).boxed()
    }

    fn publish<'a>(&'a self, source: &'a CsiSource, request: csi::NodePublishVolumeRequest) -> Answer<'a, ()> {
        let client = self.client(source.migrated);
        async move { client.node_publish_volume(&source.driver, request).await.map(|_| ()) }.boxed()
    }

    fn unpublish<'a>(&'a self, driver: &'a str, request: csi::NodeUnpublishVolumeRequest) -> Answer<'a, ()> {
        self.0.node_unpublish_volume(driver, request).map_ok(|_| ()).boxed()
    }

    fn expand<'a>(&'a self, source: &'a CsiSource, request: csi::NodeExpandVolumeRequest) -> Answer<'a, i64> {
        let client = self.client(source.migrated);
        async move { client.node_expand_volume(&source.driver, request).await.map(|answer| answer.capacity_bytes) }
            .boxed()
    }

    fn stats<'a>(
        &'a self,
        driver: &'a str,
        request: csi::NodeGetVolumeStatsRequest,
    ) -> Answer<'a, csi::NodeGetVolumeStatsResponse> {
        self.0.node_get_volume_stats(driver, request).boxed()
    }
}

/// kubelet-volnetd.
#[derive(Debug, Clone)]
pub struct NodeVerbs {
    volnetd: Volnetd,
    epoch: watch::Receiver<u64>,
}

impl NodeVerbs {
    /// Must be called within a tokio runtime.
    pub fn start(volnetd: Volnetd) -> Self {
        let of = |state: PeerState| state.ready_epoch().map_or(0, |epoch| epoch.get());
        let mut states = volnetd.link().watch();
        let first = of(*states.borrow_and_update());
        let (sender, epoch) = watch::channel(first);
        tokio::spawn(async move {
            while states.changed().await.is_ok() {
                let now = of(*states.borrow_and_update());
                // While it is away its last life counts: mounts stay, and nothing can be asked anyway.
                if now != 0 {
                    sender.send_if_modified(|epoch| std::mem::replace(epoch, now) != now);
                }
            }
        });
        NodeVerbs { volnetd, epoch }
    }
}

fn for_pod(uid: &str) -> CallContext {
    PodUid::parse(uid).map_or_else(|_| CallContext::new(), |uid| CallContext::for_pod(&uid))
}

impl VolumeVerbs for NodeVerbs {
    fn guard(&self, verb: &'static str) -> Result<DestructiveGuard, VolnetdError> {
        self.volnetd.guard(verb)
    }

    fn epoch(&self) -> watch::Receiver<u64> {
        self.epoch.clone()
    }

    fn prepare_stage(&self, request: api::PrepareStageRequest) -> Reply<'_, api::PrepareStageReply> {
        async move { self.volnetd.prepare_stage(&CallContext::new(), request).await }.boxed()
    }

    fn commit_stage(&self, request: api::CsiDevice) -> Reply<'_, api::CommitStageReply> {
        async move { self.volnetd.commit_stage(&CallContext::new(), request).await }.boxed()
    }

    fn begin_unstage(&self, request: api::EndStageRequest) -> Reply<'_, api::EndStageReply> {
        async move { self.volnetd.begin_unstage(&CallContext::new(), request).await }.boxed()
    }

    fn end_stage(&self, request: api::EndStageRequest) -> Reply<'_, api::EndStageReply> {
        async move { self.volnetd.end_stage(&CallContext::new(), request).await }.boxed()
    }

    fn prepare_publish(&self, request: api::PreparePublishRequest) -> Reply<'_, api::PreparePublishReply> {
        async move { self.volnetd.prepare_publish(&for_pod(&request.pod_uid), request).await }.boxed()
    }

    fn commit_publish(&self, request: api::CommitPublishRequest) -> Reply<'_, api::CommitPublishReply> {
        async move { self.volnetd.commit_publish(&for_pod(&request.pod_uid), request).await }.boxed()
    }

    fn begin_unpublish(&self, request: api::EndPublishRequest) -> Reply<'_, api::EndPublishReply> {
        async move { self.volnetd.begin_unpublish(&for_pod(&request.pod_uid), request).await }.boxed()
    }

    fn end_publish(&self, request: api::EndPublishRequest) -> Reply<'_, api::EndPublishReply> {
        async move { self.volnetd.end_publish(&for_pod(&request.pod_uid), request).await }.boxed()
    }

    fn list_staged(&self) -> Reply<'_, Vec<api::StagedVolume>> {
        async move { self.volnetd.list_staged(&CallContext::new(), api::ListStagedRequest {}).await }.boxed()
    }

    fn list_published(&self) -> Reply<'_, Vec<api::PublishedVolume>> {
        async move { self.volnetd.list_published(&CallContext::new(), api::ListPublishedRequest::default()).await }
            .boxed()
    }

    fn set_up_local(&self, request: api::SetUpLocalRequest) -> Reply<'_, api::SetUpVolumeReply> {
        async move { self.volnetd.set_up_local(&for_pod(&request.pod_uid), request).await }.boxed()
    }

    fn set_up_nfs(&self, request: api::SetUpNfsRequest) -> Reply<'_, api::SetUpVolumeReply> {
        async move { self.volnetd.set_up_nfs(&for_pod(&request.pod_uid), request).await }.boxed()
    }

    fn set_up_fc(&self, request: api::SetUpFcRequest) -> Reply<'_, api::SetUpVolumeReply> {
        async move { self.volnetd.set_up_fc(&for_pod(&request.pod_uid), request).await }.boxed()
    }

    fn set_up_iscsi(&self, request: api::SetUpIscsiRequest) -> Reply<'_, api::SetUpVolumeReply> {
        async move { self.volnetd.set_up_iscsi(&for_pod(&request.pod_uid), request).await }.boxed()
    }

    fn ask_flex_driver(&self, request: api::AskFlexDriverRequest) -> Reply<'_, api::AskFlexDriverReply> {
        async move { self.volnetd.ask_flex_driver(&CallContext::new(), request).await }.boxed()
    }

    fn set_up_flex(&self, request: api::SetUpFlexRequest) -> Reply<'_, api::SetUpFlexReply> {
        async move { self.volnetd.set_up_flex(&for_pod(&request.pod_uid), request).await }.boxed()
    }

    fn end_disk(&self, request: api::EndDiskRequest) -> Reply<'_, api::EndDiskReply> {
        async move { self.volnetd.end_disk(&CallContext::new(), request).await }.boxed()
    }

    fn list_disks(&self) -> Reply<'_, Vec<api::DiskState>> {
        async move { self.volnetd.list_disks(&CallContext::new(), api::ListDisksRequest {}).await }.boxed()
    }

    fn check_host_path(&self, request: api::CheckHostPathRequest) -> Reply<'_, api::SetUpVolumeReply> {
        async move { self.volnetd.check_host_path(&for_pod(&request.pod_uid), request).await }.boxed()
    }
}
