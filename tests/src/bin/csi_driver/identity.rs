//! Who the driver is: the services Identity and Registration, the latter in both of its versions.

use bulkhead_csi::registration::{v1, v1beta1};
use bulkhead_csi::v1 as csi;
use serde_json::json;
use tonic::{Request, Response, Status};

use crate::Served;
use crate::record::Fields;

const IDENTITY: &str = "csi.v1.Identity";
/// What the kubelet knows drivers as.
const KIND: &str = "CSIPlugin";

#[tonic::async_trait]
impl csi::identity_server::Identity for Served {
    async fn get_plugin_info(
        &self,
        _: Request<csi::GetPluginInfoRequest>,
    ) -> Result<Response<csi::GetPluginInfoResponse>, Status> {
        self.call(IDENTITY, "GetPluginInfo", "", json!({}), |driver, _| {
            Ok(csi::GetPluginInfoResponse {
                name: driver.name.clone(),
                vendor_version: "1".to_owned(),
                ..Default::default()
            })
        })
        .await
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<csi::GetPluginCapabilitiesResponse>, Status> {
        self.call(IDENTITY, "GetPluginCapabilities", "", json!({}), |_, _| Ok(Default::default())).await
    }

    async fn probe(&self, _: Request<csi::ProbeRequest>) -> Result<Response<csi::ProbeResponse>, Status> {
        self.call(IDENTITY, "Probe", "", json!({}), |_, _| Ok(csi::ProbeResponse { ready: Some(true) })).await
    }
}

#[tonic::async_trait]
impl v1::registration_server::Registration for Served {
    async fn get_info(&self, _: Request<v1::InfoRequest>) -> Result<Response<v1::PluginInfo>, Status> {
        self.call("pluginregistration.Registration", "GetInfo", "", json!({}), |driver, _| {
            Ok(v1::PluginInfo {
                r#type: KIND.to_owned(),
                name: driver.name.clone(),
                endpoint: driver.endpoint.clone(),
                supported_versions: vec![driver.version.clone()],
            })
        })
        .await
    }

    async fn notify_registration_status(
        &self,
        request: Request<v1::RegistrationStatus>,
    ) -> Result<Response<v1::RegistrationStatusResponse>, Status> {
        let told = request.into_inner();
        let fields = Fields::default().flag("plugin_registered", told.plugin_registered).text("error", &told.error);
        let service = "pluginregistration.Registration";
        self.call(service, "NotifyRegistrationStatus", "", fields.value(), |_, _| Ok(Default::default())).await
    }
}

#[tonic::async_trait]
impl v1beta1::registration_server::Registration for Served {
    async fn get_info(&self, _: Request<v1beta1::InfoRequest>) -> Result<Response<v1beta1::PluginInfo>, Status> {
        self.call("v1beta1.Registration", "GetInfo", "", json!({}), |driver, _| {
            Ok(v1beta1::PluginInfo {
                r#type: KIND.to_owned(),
                name: driver.name.clone(),
                endpoint: driver.endpoint.clone(),
                supported_versions: vec![driver.version.clone()],
            })
        })
        .await
    }

    async fn notify_registration_status(
        &self,
        request: Request<v1beta1::RegistrationStatus>,
    ) -> Result<Response<v1beta1::RegistrationStatusResponse>, Status> {
        let told = request.into_inner();
        let fields = Fields::default().flag("plugin_registered", told.plugin_registered).text("error", &told.error);
        let service = "v1beta1.Registration";
        self.call(service, "NotifyRegistrationStatus", "", fields.value(), |_, _| Ok(Default::default())).await
    }
}
