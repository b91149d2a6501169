//! The service Node: each call as a record of what it asks, and the work that it means.

use bulkhead_csi::v1 as csi;
use bulkhead_csi::v1::volume_capability::AccessType;
use serde_json::json;
use tonic::{Request, Response, Status};

use crate::Served;
use crate::faults::Course;
use crate::record::Fields;
use crate::volumes::{self, Published, Staged};

const NODE: &str = "csi.v1.Node";
/// More than gRPC takes unless it is told otherwise.
const BIG: usize = 5 * 1024 * 1024;

#[tonic::async_trait]
impl csi::node_server::Node for Served {
    async fn node_stage_volume(
        &self,
        request: Request<csi::NodeStageVolumeRequest>,
    ) -> Result<Response<csi::NodeStageVolumeResponse>, Status> {
        let asked = request.into_inner();
        let fields = Fields::default()
            .text("volume_id", &asked.volume_id)
            .map("publish_context", &asked.publish_context)
            .text("staging_target_path", &asked.staging_target_path)
            .capability(asked.volume_capability.as_ref())
            .keys("secrets", &asked.secrets)
            .map("volume_context", &asked.volume_context);
        let volume = asked.volume_id.clone();
        self.0.record.secrets("NodeStageVolume", &asked.volume_id, &asked.secrets);
        self.call(NODE, "NodeStageVolume", &volume, fields.value(), move |driver, _| {
            volumes::stage(&Staged {
                driver,
                volume: &asked.volume_id,
                path: asked.staging_target_path.as_ref(),
                block: is_block(asked.volume_capability.as_ref()),
                attributes: &asked.volume_context,
                group: group(asked.volume_capability.as_ref()),
            })?;
            Ok(Default::default())
        })
        .await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Result<Response<csi::NodeUnstageVolumeResponse>, Status> {
        let asked = request.into_inner();
        let fields = Fields::default()
            .text("volume_id", &asked.volume_id)
            .text("staging_target_path", &asked.staging_target_path);
        let volume = asked.volume_id.clone();
        self.call(NODE, "NodeUnstageVolume", &volume, fields.value(), move |_, _| {
            volumes::unmount(asked.staging_target_path.as_ref())?;
            Ok(Default::default())
        })
        .await
    }

    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Result<Response<csi::NodePublishVolumeResponse>, Status> {
        let asked = request.into_inner();
        let fields = Fields::default()
            .text("volume_id", &asked.volume_id)
            .map("publish_context", &asked.publish_context)
            .text("staging_target_path", &asked.staging_target_path)
            .text("target_path", &asked.target_path)
            .capability(asked.volume_capability.as_ref())
            .flag("readonly", asked.readonly)
            .keys("secrets", &asked.secrets)
            .map("volume_context", &asked.volume_context);
        let volume = asked.volume_id.clone();
        self.0.record.secrets("NodePublishVolume", &asked.volume_id, &asked.secrets);
        self.call(NODE, "NodePublishVolume", &volume, fields.value(), move |driver, course| {
            volumes::publish(
                &Published {
                    staged: Staged {
                        driver,
                        volume: &asked.volume_id,
                        path: asked.staging_target_path.as_ref(),
                        block: is_block(asked.volume_capability.as_ref()),
                        attributes: &asked.volume_context,
                        group: group(asked.volume_capability.as_ref()),
                    },
                    target: asked.target_path.as_ref(),
                    readonly: asked.readonly,
                },
                course,
            )?;
            Ok(Default::default())
        })
        .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        let asked = request.into_inner();
        let fields = Fields::default().text("volume_id", &asked.volume_id).text("target_path", &asked.target_path);
        let volume = asked.volume_id.clone();
        self.call(NODE, "NodeUnpublishVolume", &volume, fields.value(), move |driver, _| {
            volumes::unpublish(driver, &asked.volume_id, asked.target_path.as_ref())?;
            Ok(Default::default())
        })
        .await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        let asked = request.into_inner();
        let fields = Fields::default()
            .text("volume_id", &asked.volume_id)
            .text("volume_path", &asked.volume_path)
            .text("staging_target_path", &asked.staging_target_path);
        let volume = asked.volume_id.clone();
        self.call(NODE, "NodeGetVolumeStats", &volume, fields.value(), move |driver, course| {
            let why = driver.abnormal(&asked.volume_id);
            let abnormal = why.is_some();
            let message = if matches!(course, Course::Big) { "x".repeat(BIG) } else { why.unwrap_or_default() };
            Ok(csi::NodeGetVolumeStatsResponse {
                usage: volumes::usage(asked.volume_path.as_ref())?,
                volume_condition: Some(csi::VolumeCondition { abnormal, message }),
            })
        })
        .await
    }

    async fn node_expand_volume(
        &self,
        request: Request<csi::NodeExpandVolumeRequest>,
    ) -> Result<Response<csi::NodeExpandVolumeResponse>, Status> {
        let asked = request.into_inner();
        let fields = Fields::default()
            .text("volume_id", &asked.volume_id)
            .text("volume_path", &asked.volume_path)
            .range(asked.capacity_range.as_ref())
            .text("staging_target_path", &asked.staging_target_path)
            .capability(asked.volume_capability.as_ref())
            .keys("secrets", &asked.secrets);
        let volume = asked.volume_id.clone();
        self.0.record.secrets("NodeExpandVolume", &asked.volume_id, &asked.secrets);
        self.call(NODE, "NodeExpandVolume", &volume, fields.value(), move |driver, course| {
            let bytes = asked.capacity_range.as_ref().map_or(0, |range| range.required_bytes);
            let block = is_block(asked.volume_capability.as_ref());
            volumes::expand(driver, &asked.volume_id, block, asked.volume_path.as_ref(), bytes)?;
            let capacity_bytes = if matches!(course, Course::Smaller) { bytes / 2 } else { bytes };
            Ok(csi::NodeExpandVolumeResponse { capacity_bytes })
        })
        .await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
        use csi::node_service_capability::{Rpc, Type};
        self.call(NODE, "NodeGetCapabilities", "", json!({}), |driver, _| {
            let each = |kind: &i32| csi::NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: *kind })) };
            Ok(csi::NodeGetCapabilitiesResponse { capabilities: driver.capabilities.iter().map(each).collect() })
        })
        .await
    }

    async fn node_get_info(
        &self,
        _: Request<csi::NodeGetInfoRequest>,
    ) -> Result<Response<csi::NodeGetInfoResponse>, Status> {
        self.call(NODE, "NodeGetInfo", "", json!({}), |driver, course| {
            let mut segments = driver.topology.clone();
            if matches!(course, Course::Big) {
                segments.insert("big".to_owned(), "x".repeat(BIG));
            }
            Ok(csi::NodeGetInfoResponse {
                node_id: driver.node_id.clone(),
                max_volumes_per_node: driver.max_volumes(),
                accessible_topology: (!segments.is_empty()).then_some(csi::Topology { segments }),
            })
        })
        .await
    }
}

fn is_block(capability: Option<&csi::VolumeCapability>) -> bool {
    capability.is_some_and(|one| matches!(one.access_type, Some(AccessType::Block(_))))
}

/// The group that the driver is to give the volume to.
fn group(capability: Option<&csi::VolumeCapability>) -> Option<u32> {
    match &capability?.access_type {
        Some(AccessType::Mount(mount)) => mount.volume_mount_group.parse().ok(),
        _ => None,
    }
}
