//! `/configz`: the configuration in force, as the API's KubeletConfiguration.

use bulkhead_config::kubelet::{API_VERSION, KIND};
use bulkhead_config::{KubeletConfiguration, NodeConfig};

use super::go_json;

/// The configuration with what the kubelet has found out since: `driver`, the cgroup driver that the runtime told (empty: none), and
/// where its own serving pair lies (upstream `cmd/kubelet/app/server.go`, getCgroupDriverFromCRI and InitializeTLS).
///
/// Upstream's shares its maps with the configuration that is worked with: CPUs of `reservedSystemCPUs` show in a `systemReserved` that
/// was configured, and one that upstream makes for them alone is never shown (same file, initConfigz before getReservedCPUs).
pub fn in_force(config: &NodeConfig, driver: &str) -> KubeletConfiguration {
    let mut shown = config.kubelet.clone();
    if !driver.is_empty() {
        driver.clone_into(&mut shown.cgroup_driver);
    }
    if config.system_reserved_implied {
        shown.system_reserved.clear();
    }
    let pair = config.serving_pair();
    if pair.own {
        shown.tls_cert_file = pair.certificate.display().to_string();
        shown.tls_private_key_file = pair.key.display().to_string();
    }
    shown
}

/// The document. Headers of the manifest URL are shown with their values, as upstream shows them: who reads the configuration may write
/// it back. That takes the right to `nodes/configz`.
///
/// # Errors
/// The configuration cannot be written as JSON.
pub fn document(config: &KubeletConfiguration) -> Result<String, serde_json::Error> {
    let mut shown = config.clone();
    KIND.clone_into(&mut shown.kind);
    API_VERSION.clone_into(&mut shown.api_version);
    let json = format!("{{\"kubeletconfig\":{}}}", serde_json::to_string(&shown)?);
    Ok(go_json::escaped(&json).unwrap_or(json))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_configuration_is_shown_as_upstream_shows_it() {
        let golden = include_str!("../../tests/golden/configz.json");
        let mut parsed: serde_json::Value = serde_json::from_str(golden).unwrap();
        let config: KubeletConfiguration = serde_json::from_value(parsed["kubeletconfig"].take()).unwrap();
        assert_eq!(document(&config).unwrap(), golden);
    }

    #[test]
    fn what_was_found_out_is_shown() {
        let mut config = NodeConfig::for_tests(std::path::Path::new("/t"));
        config.flags.cert_dir = "/pki".into();
        config.kubelet.cgroup_driver = "systemd".to_owned();
        let shown = |config: &NodeConfig, driver: &str| {
            let shown = in_force(config, driver);
            [shown.cgroup_driver, shown.tls_cert_file, shown.tls_private_key_file]
        };
        assert_eq!(shown(&config, "cgroupfs"), ["cgroupfs", "/pki/kubelet.crt", "/pki/kubelet.key"]);
        assert_eq!(shown(&config, "")[0], "systemd", "the runtime does not tell");
        config.kubelet.tls_cert_file = "/a.crt".to_owned();
        config.kubelet.tls_private_key_file = "/a.key".to_owned();
        assert_eq!(shown(&config, "")[1..], ["/a.crt", "/a.key"]);
        let mut asking = NodeConfig::for_tests(std::path::Path::new("/t"));
        asking.kubelet.server_tls_bootstrap = true;
        asking.flags.kubeconfig = "/k".into();
        assert_eq!(shown(&asking, "")[1..], ["", ""], "it asks for one");
    }

    #[test]
    fn reserved_cpus_show_where_something_was_reserved() {
        for (system, kube, expected) in [
            ("{}", "{}", ""),
            ("{}", r#"{"cpu":"1","memory":"1Gi"}"#, r#","kubeReserved":{"memory":"1Gi"}"#),
            (r#"{"memory":"1Gi"}"#, r#"{"cpu":"1"}"#, r#","systemReserved":{"cpu":"3","memory":"1Gi"}"#),
            (r#"{"cpu":"1"}"#, "{}", r#","systemReserved":{"cpu":"3"}"#),
        ] {
            let mut kubelet = NodeConfig::for_tests(std::path::Path::new("/t")).kubelet;
            kubelet.reserved_system_cpus = "0,2-3".to_owned();
            kubelet.system_reserved = serde_json::from_str(system).unwrap();
            kubelet.kube_reserved = serde_json::from_str(kube).unwrap();
            let users = bulkhead_config::Users::block(60706);
            let identity = bulkhead_config::Identity { hostname: "a".into(), version: "v1".into(), users };
            let config = NodeConfig::new(bulkhead_config::KubeletFlags::default(), kubelet, identity).unwrap().0;
            let shown = document(&in_force(&config, "")).unwrap();
            let begin = shown.find(r#","systemReserved""#).or_else(|| shown.find(r#","kubeReserved""#));
            let end = shown.find(r#","reservedSystemCPUs""#).unwrap();
            assert_eq!(begin.map_or("", |begin| &shown[begin..end]), expected, "{system} {kube}");
        }
    }

    #[test]
    fn headers_of_the_manifest_url_can_be_written_back() {
        let mut config = KubeletConfiguration::default();
        config.static_pod_url_header.insert("Authorization".to_owned(), vec!["Bearer secret".to_owned()]);
        let shown = document(&config).unwrap();
        assert!(shown.contains(r#""staticPodURLHeader":{"Authorization":["Bearer secret"]}"#), "{shown}");
    }
}
