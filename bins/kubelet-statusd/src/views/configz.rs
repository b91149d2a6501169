//! `/configz`: the configuration in force, as the API's KubeletConfiguration.

use bulkhead_config::KubeletConfiguration;
use bulkhead_config::kubelet::{API_VERSION, KIND};

use super::go_json;

/// What a header of the manifest URL is shown as: it may be a secret, and who may read the configuration need not have it.
const MASKED: &str = "<masked>";

/// The document.
///
/// # Errors
/// The configuration cannot be written as JSON.
pub fn document(config: &KubeletConfiguration) -> Result<String, serde_json::Error> {
    let mut shown = config.clone();
    KIND.clone_into(&mut shown.kind);
    API_VERSION.clone_into(&mut shown.api_version);
    for values in shown.static_pod_url_header.values_mut() {
        *values = vec![MASKED.to_owned()];
    }
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
    fn headers_are_masked() {
        let mut config = KubeletConfiguration::default();
        config.static_pod_url_header.insert("Authorization".to_owned(), vec!["Bearer secret".to_owned()]);
        let shown = document(&config).unwrap();
        assert!(shown.contains(r#""staticPodURLHeader":{"Authorization":["\u003cmasked\u003e"]}"#), "{shown}");
        assert!(!shown.contains("secret"));
    }
}
