//! From the configuration's words for versions, cipher suites and groups to those of the TLS library. What the library
//! does not have was told, or refused, when the configuration was read.

use std::sync::Arc;

use bulkhead_config::KubeletConfiguration;
use rustls::crypto::{CryptoProvider, SupportedKxGroup, ring};
use rustls::{ProtocolVersion, SupportedCipherSuite, SupportedProtocolVersion, version};

/// What is spoken.
#[derive(Debug, Clone)]
pub struct Policy {
    pub provider: Arc<CryptoProvider>,
    pub versions: Vec<&'static SupportedProtocolVersion>,
}

impl Policy {
    pub fn of(config: &KubeletConfiguration) -> Self {
        let mut provider = ring::default_provider();
        let configured = &config.tls_cipher_suites;
        let is_tls13 = |suite: &SupportedCipherSuite| suite.version().version == ProtocolVersion::TLSv1_3;
        if !configured.is_empty() {
            // As in Go, the list says nothing about TLS 1.3.
            provider
                .cipher_suites
                .retain(|suite| is_tls13(suite) || configured.iter().any(|name| is_named(suite, name)));
        }
        if !config.tls_curve_preferences.is_empty() {
            let groups: Vec<&dyn SupportedKxGroup> =
                config.tls_curve_preferences.iter().filter_map(|number| group(*number)).collect();
            provider.kx_groups = groups;
        }
        let oldest_is_13 = config.tls_min_version == "VersionTLS13" || provider.cipher_suites.iter().all(is_tls13);
        if oldest_is_13 {
            provider.cipher_suites.retain(is_tls13);
        }
        let versions = if oldest_is_13 { vec![&version::TLS13] } else { vec![&version::TLS13, &version::TLS12] };
        Policy { provider: Arc::new(provider), versions }
    }
}

/// Go has two names for the suites with ChaCha20.
fn is_named(suite: &SupportedCipherSuite, name: &str) -> bool {
    let own = suite.suite();
    let own = own.as_str().unwrap_or_default();
    own == name || (name.ends_with("_CHACHA20_POLY1305") && own.strip_suffix("_SHA256") == Some(name))
}

fn group(number: i32) -> Option<&'static dyn SupportedKxGroup> {
    ring::ALL_KX_GROUPS.iter().copied().find(|group| i32::from(u16::from(group.name())) == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spoken(yaml: serde_json::Value) -> (usize, Vec<String>, Vec<u16>) {
        let mut config = KubeletConfiguration::default();
        if let Some(version) = yaml["min"].as_str() {
            version.clone_into(&mut config.tls_min_version);
        }
        let texts = |name: &str| yaml[name].as_array().cloned().unwrap_or_default();
        config.tls_cipher_suites = texts("suites").iter().map(|s| s.as_str().unwrap().to_owned()).collect();
        config.tls_curve_preferences =
            texts("curves").iter().map(|c| i32::try_from(c.as_i64().unwrap()).unwrap()).collect();
        let policy = Policy::of(&config);
        let old = policy.provider.cipher_suites.iter().filter(|s| s.version().version != ProtocolVersion::TLSv1_3);
        let old = old.map(|suite| suite.suite().as_str().unwrap().to_owned()).collect();
        let groups = policy.provider.kx_groups.iter().map(|group| u16::from(group.name())).collect();
        (policy.versions.len(), old, groups)
    }

    #[test]
    fn words_become_suites_versions_and_groups() {
        use serde_json::json;
        let (versions, old, groups) = spoken(json!({}));
        assert_eq!((versions, old.len(), groups.as_slice()), (2, 6, &[29, 23, 24][..]));
        let one = json!({"suites": ["TLS_RSA_WITH_RC4_128_SHA", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"]});
        assert_eq!(spoken(one).1, ["TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"]);
        let two = json!({"suites": ["TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305"], "min": "VersionTLS12"});
        assert_eq!(spoken(two).1, ["TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"]);
        let (versions, old, _) = spoken(json!({"suites": ["TLS_AES_128_GCM_SHA256"]}));
        assert_eq!((versions, old.len()), (1, 0), "nothing is left for 1.2, as in Go");
        assert_eq!(spoken(json!({"min": "VersionTLS13"})).0, 1);
        assert_eq!(spoken(json!({"min": "VersionTLS10"})).0, 2);
        assert_eq!(spoken(json!({"curves": [24, 4588, 29]})).2, [24, 29]);
    }
}
