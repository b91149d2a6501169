//! The one JSON object that a driver is told a volume by (upstream `pkg/volume/flexvolume/driver-call.go` NewOptionsForDriver, and
//! `mounter.go`).

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bulkhead_ipc::common::FlexVolume;
use bulkhead_types::{PodUid, VolumeName};

/// Sorted by keys, as upstream's. The volume's own options come last, and cannot be of the kubelet's names. `pod`: whose mount it is;
/// what is done once a node is told of no pod, and of no secret.
///
/// # Errors
/// An option has a name that is the kubelet's.
pub fn json(pod: Option<&PodUid>, volume: &VolumeName, wanted: &FlexVolume) -> Result<String, String> {
    let mut all = BTreeMap::new();
    let mut put = |key: &str, value: &str| all.insert(format!("kubernetes.io/{key}"), value.to_owned());
    put("fsType", &wanted.fs_type);
    put("readwrite", if wanted.read_only { "ro" } else { "rw" });
    put("pvOrVolumeName", volume.as_str());
    if let Some(pod) = pod {
        put("pod.name", &wanted.pod_name);
        put("pod.namespace", &wanted.pod_namespace);
        put("pod.uid", pod.as_str());
        put("serviceAccount.name", &wanted.service_account);
        if let Some(group) = wanted.fs_group {
            put("mounterArgs.FsGroup", &group.to_string());
        }
        for (key, value) in wanted.secret.iter().flat_map(|secret| &secret.data) {
            put(&format!("secret/{key}"), &STANDARD.encode(value));
        }
    }
    for (key, value) in &wanted.options {
        if is_reserved(key) {
            return Err(format!("option {key:?} has a name that is the kubelet's"));
        }
        all.insert(key.clone(), value.clone());
    }
    serde_json::to_string(&all).map_err(|error| error.to_string())
}

/// Upstream validateFlexVolumeSource.
fn is_reserved(key: &str) -> bool {
    let namespace = key.split_once('/').map_or(key, |(namespace, _)| namespace).to_ascii_lowercase();
    ["kubernetes.io", "k8s.io"]
        .iter()
        .any(|ours| namespace.strip_suffix(ours).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_ipc::common::FlexSecret;

    fn told(wanted: &FlexVolume) -> Result<String, String> {
        json(Some(&PodUid::parse("u").unwrap()), &VolumeName::parse("v").unwrap(), wanted)
    }

    #[test]
    fn as_upstream_tells_it() {
        let wanted = FlexVolume {
            fs_type: "ext4".into(),
            read_only: true,
            options: [("share".to_owned(), "//s/p \"x\"".to_owned())].into(),
            pod_name: "p".into(),
            pod_namespace: "n".into(),
            service_account: "default".into(),
            fs_group: Some(7),
            secret: Some(FlexSecret { data: [("password".to_owned(), b"a\0b".to_vec())].into() }),
        };
        assert_eq!(
            told(&wanted).unwrap(),
            r#"{"kubernetes.io/fsType":"ext4","kubernetes.io/mounterArgs.FsGroup":"7","kubernetes.io/pod.name":"p","#
                .to_owned()
                + r#""kubernetes.io/pod.namespace":"n","kubernetes.io/pod.uid":"u","kubernetes.io/pvOrVolumeName":"v","#
                + r#""kubernetes.io/readwrite":"ro","kubernetes.io/secret/password":"YQBi","#
                + r#""kubernetes.io/serviceAccount.name":"default","share":"//s/p \"x\""}"#
        );
        let once = json(None, &VolumeName::parse("v").unwrap(), &wanted).unwrap();
        assert_eq!(
            once,
            r#"{"kubernetes.io/fsType":"ext4","kubernetes.io/pvOrVolumeName":"v","kubernetes.io/readwrite":"ro","share":"//s/p \"x\""}"#
        );
        let least = told(&FlexVolume::default()).unwrap();
        assert!(least.contains(r#""kubernetes.io/fsType":"""#) && least.contains(r#""kubernetes.io/readwrite":"rw""#));
        assert!(!least.contains("FsGroup") && !least.contains("secret"));
    }

    #[test]
    fn options_have_no_name_of_the_kubelets() {
        for (key, ok) in [
            ("kubernetes.io/readwrite", false),
            ("KUBERNETES.io/x", false),
            ("a.kubernetes.io/x", false),
            ("k8s.io/x", false),
            ("kubernetes.io", false),
            ("notkubernetes.io/x", true),
            ("example.com/x", true),
        ] {
            let wanted = FlexVolume { options: [(key.to_owned(), String::new())].into(), ..FlexVolume::default() };
            assert_eq!(told(&wanted).is_ok(), ok, "{key}");
        }
    }
}
