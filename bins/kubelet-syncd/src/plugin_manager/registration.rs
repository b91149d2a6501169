//! The two questions to a registration socket: what are you, and: this came of it. In version v1, or v1beta1 where a plugin has no
//! other.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_csi::registration::{v1, v1beta1};
use kubelet_edges::csi::connection::{ANSWER_BYTES_MAX, call};
use kubelet_edges::csi::{CsiError, Dial, PluginAddress};
use tonic::{Code, Status};

use super::info::PluginInfo;

/// Upstream's bounds (`operation_generator.go`).
const GET_INFO: Duration = Duration::from_secs(1);
const NOTIFY: Duration = Duration::from_secs(5);

/// Which of the two a plugin speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    V1,
    V1Beta1,
}

/// A registration socket.
#[derive(Debug, Clone)]
pub struct Registration {
    dial: Arc<dyn Dial>,
    address: PluginAddress,
}

impl Registration {
    /// `socket`: relative to `plugins_registry`.
    pub fn new(dial: Arc<dyn Dial>, socket: &str) -> Self {
        Registration { dial, address: PluginAddress::Registration(socket.to_owned()) }
    }

    /// What the plugin says of itself; nothing of it is checked.
    ///
    /// # Errors
    /// It did not answer, or has neither version of the service.
    pub async fn get_info(&self) -> Result<(PluginInfo, Dialect), CsiError> {
        let answer = call(&self.dial, &self.address, GET_INFO, v1::InfoRequest {}, async |channel, request| {
            let client = v1::registration_client::RegistrationClient::new(channel);
            client.max_decoding_message_size(ANSWER_BYTES_MAX).get_info(request).await
        })
        .await;
        match answer {
            Ok(v1::PluginInfo { r#type, name, endpoint, supported_versions }) => {
                Ok((PluginInfo { kind: r#type, name, endpoint, versions: supported_versions }, Dialect::V1))
            }
            Err(status) if status.code() == Code::Unimplemented => self.get_info_v1beta1().await,
            Err(status) => Err(status.into()),
        }
    }

    async fn get_info_v1beta1(&self) -> Result<(PluginInfo, Dialect), CsiError> {
        let request = v1beta1::InfoRequest {};
        let v1beta1::PluginInfo { r#type, name, endpoint, supported_versions } =
            call(&self.dial, &self.address, GET_INFO, request, async |channel, request| {
                let client = v1beta1::registration_client::RegistrationClient::new(channel);
                client.max_decoding_message_size(ANSWER_BYTES_MAX).get_info(request).await
            })
            .await?;
        Ok((PluginInfo { kind: r#type, name, endpoint, versions: supported_versions }, Dialect::V1Beta1))
    }

    /// Tells it what came of it.
    ///
    /// # Errors
    /// It did not answer.
    pub async fn notify(&self, dialect: Dialect, outcome: Result<(), &str>) -> Result<(), CsiError> {
        let (plugin_registered, error) = match outcome {
            Ok(()) => (true, String::new()),
            Err(why) => (false, why.to_owned()),
        };
        let told: Result<(), Status> = match dialect {
            Dialect::V1 => {
                let status = v1::RegistrationStatus { plugin_registered, error };
                call(&self.dial, &self.address, NOTIFY, status, async |channel, request| {
                    v1::registration_client::RegistrationClient::new(channel).notify_registration_status(request).await
                })
                .await
                .map(drop)
            }
            Dialect::V1Beta1 => {
                let status = v1beta1::RegistrationStatus { plugin_registered, error };
                call(&self.dial, &self.address, NOTIFY, status, async |channel, request| {
                    let client = v1beta1::registration_client::RegistrationClient::new(channel);
                    { client }.notify_registration_status(request).await
                })
                .await
                .map(drop)
            }
        };
        Ok(told?)
    }
}
