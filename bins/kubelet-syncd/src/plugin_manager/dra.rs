//! DRA drivers: which plugins of them are registered (upstream `DRAPluginManager` as a plugin handler). A driver may have several for a
//! while, so the endpoint belongs to who a plugin is.

use std::sync::Arc;

use bulkhead_types::is_dns1123_subdomain;
use kubelet_edges::dra::Service;

use super::attendant::Handler;
use super::info::PluginInfo;
use crate::container_manager::dra::DraManager;

/// A driver's name, as the API server bounds it: it is part of a field selector there.
const MAX_NAME: usize = 63;
/// Drivers of one node.
const MAX_DRIVERS: usize = 128;

/// See the module.
#[derive(Debug)]
pub struct DraHandler(pub Arc<DraManager>);

fn service(info: &PluginInfo) -> Result<Service, String> {
    let PluginInfo { name, endpoint, versions, .. } = info;
    if name.len() > MAX_NAME || !is_dns1123_subdomain(name) {
        return Err(format!("DRA driver name {name:?} is not a DNS subdomain of at most {MAX_NAME} characters"));
    }
    Service::chosen(versions).map_err(|error| {
        format!("invalid supported gRPC versions of DRA driver plugin {name} at endpoint {endpoint}: {error}")
    })
}

#[tonic::async_trait]
impl Handler for DraHandler {
    fn validate(&self, info: &PluginInfo) -> Result<(), String> {
        let known = self.0.plugins().usable();
        if known.len() >= MAX_DRIVERS && !known.contains_key(&info.name) {
            return Err(format!("{MAX_DRIVERS} DRA drivers are registered, no more are taken"));
        }
        service(info).map(drop)
    }

    async fn register(&self, _: &str, info: &PluginInfo) -> Result<(), String> {
        self.0.register(&info.name, &info.endpoint, service(info)?)
    }

    fn deregister(&self, _: &str, info: &PluginInfo) {
        self.0.deregister(&info.name, &info.endpoint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_drivers_are_taken() {
        let info = |name: &str, versions: &[&str]| PluginInfo {
            kind: "DRAPlugin".into(),
            name: name.into(),
            endpoint: "/p/dra.sock".into(),
            versions: versions.iter().map(|version| (*version).to_owned()).collect(),
        };
        assert_eq!(service(&info("gpu.example.com", &["v1beta1.DRAPlugin", "v1.DRAPlugin"])), Ok(Service::V1Beta1));
        let why = service(&info("gpu.example.com", &["v1alpha3"])).unwrap_err();
        assert!(
            why.starts_with(
                "invalid supported gRPC versions of DRA driver plugin gpu.example.com at endpoint /p/dra.sock: none of"
            ),
            "{why}"
        );
        for bad in ["", "a,spec.nodeName=b", "UPPER", &"n".repeat(64)] {
            assert!(service(&info(bad, &["v1.DRAPlugin"])).is_err(), "{bad}");
        }
    }
}
