use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kubelet_model::v1::Volume;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::populator::resolve::{self, Use};

fn mount(every_mode: bool) -> (SeLinuxMount, prometheus::Registry) {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in [
        ("sys/fs/selinux/enforce", "1"),
        (
            "usr/share/containers/selinux/contexts",
            "process=\"u:r:container_t:s0\"\nfile=\"u:object_r:container_file_t:s0\"",
        ),
    ] {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let registry = prometheus::Registry::new();
    let metrics = SeLinuxMetrics::register(&registry).unwrap();
    (SeLinuxMount { machine: SeLinux::read(root.path()).unwrap(), every_mode, metrics }, registry)
}

/// `own`: the level of each container that mounts the volume, empty for none of its own.
fn pod(common: &str, own: &[&str], policy: Option<&str>) -> Pod {
    let options = |level: &str| if level.is_empty() { Value::Null } else { json!({"level": level}) };
    let container = |(number, level): (usize, &&str)| {
        json!({"name": format!("c{number}"), "securityContext": {"seLinuxOptions": options(level)},
            "volumeMounts": [{"name": "data", "mountPath": "/d"}]})
    };
    let containers: Vec<Value> = own.iter().enumerate().map(container).collect();
    // One that has nothing to do with it.
    let aside = json!({"name": "aside", "securityContext": {"seLinuxOptions": {"level": "s0:c99"}}});
    serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": {
        "securityContext": {"seLinuxOptions": options(common), "seLinuxChangePolicy": policy},
        "initContainers": [aside], "containers": containers,
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]}}))
    .unwrap()
}

fn spec(modes: &[&str]) -> VolumeSpec {
    let volume: Volume =
        serde_json::from_value(json!({"name": "data", "persistentVolumeClaim": {"claimName": "c"}})).unwrap();
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({"metadata": {"name": "c"}})).unwrap();
    let persistent: PersistentVolume = serde_json::from_value(json!({"metadata": {"name": "pv"},
        "spec": {"accessModes": modes, "csi": {"driver": "d", "volumeHandle": "h"}}}))
    .unwrap();
    resolve::persistent(&volume, Use { mounted: true, device: false }, resolve::claim(&claim), &persistent).unwrap()
}

const ONE: &str = "u:object_r:container_file_t:s0:c1";
const ALONE: &[&str] = &["ReadWriteOncePod"];

fn said(registry: &prometheus::Registry) -> Vec<String> {
    let families = registry.gather();
    let series = families.iter().flat_map(|family| {
        family.get_metric().iter().map(|metric| {
            let labels: Vec<String> = metric.get_label().iter().map(|label| label.value().to_owned()).collect();
            let name = family.name().trim_start_matches("volume_manager_selinux_");
            format!("{name} {} {}", labels.join(" "), metric.get_gauge().get_value())
        })
    });
    series.collect()
}

#[test]
fn labels_of_volumes() {
    let label = |mount: &str, wanted: &str| Ok(Label { mount: mount.to_owned(), wanted: wanted.to_owned() });
    let several = || {
        Err("multiple SELinux labels found: u:object_r:container_file_t:s0:c1,u:object_r:container_file_t:s0:c2"
            .to_owned())
    };
    let (rwo, rwx): (&[&str], &[&str]) = (&["ReadWriteOnce", "ReadWriteOncePod"], &["ReadWriteMany", "ReadOnlyMany"]);
    for (every, modes, supported, pod, expected, counted) in [
        (
            false,
            ALONE,
            true,
            pod("s0:c1", &[""], None),
            label(ONE, ONE),
            "volumes_admitted_total RWOP kubernetes.io/csi/d 1",
        ),
        // A container's own level goes before its pod's.
        (
            false,
            ALONE,
            true,
            pod("s0:c7", &["s0:c1"], None),
            label(ONE, ONE),
            "volumes_admitted_total RWOP kubernetes.io/csi/d 1",
        ),
        (
            false,
            ALONE,
            true,
            pod("", &["s0:c1", ""], None),
            label(ONE, ONE),
            "volumes_admitted_total RWOP kubernetes.io/csi/d 1",
        ),
        // Nobody says.
        (false, ALONE, true, pod("", &[""], None), label("", ""), ""),
        // The pod does not want it, or its driver cannot.
        (false, ALONE, true, pod("s0:c1", &[""], Some("Recursive")), label("", ""), ""),
        (
            true,
            ALONE,
            true,
            pod("s0:c1", &[""], Some("MountOption")),
            label(ONE, ONE),
            "volumes_admitted_total RWOP kubernetes.io/csi/d 1",
        ),
        (false, ALONE, false, pod("s0:c1", &[""], None), label("", ""), ""),
        // What it would be.
        (
            false,
            rwo,
            true,
            pod("s0:c1", &[""], None),
            label("", ONE),
            "volumes_admitted_total RWO kubernetes.io/csi/d 1",
        ),
        (
            true,
            rwo,
            true,
            pod("s0:c1", &[""], None),
            label(ONE, ONE),
            "volumes_admitted_total RWO kubernetes.io/csi/d 1",
        ),
        (
            true,
            rwx,
            true,
            pod("s0:c1", &[""], None),
            label(ONE, ONE),
            "volumes_admitted_total RWX kubernetes.io/csi/d 1",
        ),
        (false, ALONE, true, pod("", &["s0:c1", "s0:c2"], None), several(), "pod_context_mismatch_errors_total RWOP 1"),
        (true, rwx, true, pod("s0:c1", &["", "s0:c2"], None), several(), "pod_context_mismatch_errors_total RWX 1"),
        (
            false,
            rwx,
            true,
            pod("s0:c1", &["", "s0:c2"], None),
            label("", ""),
            "pod_context_mismatch_warnings_total RWX 1",
        ),
    ] {
        let (selinux, registry) = mount(every);
        assert_eq!(selinux.label(&pod, "data", &spec(modes), supported, None), expected, "{modes:?} {pod:?}");
        assert_eq!(said(&registry).join(", "), counted, "{modes:?} {pod:?}");
    }
}

#[test]
fn a_second_pod_wants_the_same_or_has_to_wait() {
    let first = Label { mount: ONE.to_owned(), wanted: ONE.to_owned() };
    let (selinux, registry) = mount(false);
    let of = |level: &str, modes, first: &Label| {
        selinux.label(&pod(level, &[""], None), "data", &spec(modes), true, Some(first))
    };
    assert_eq!(of("s0:c1", ALONE, &first), Ok(first.clone()));
    assert_eq!(said(&registry), Vec::<String>::new());
    let error = of("s0:c2", ALONE, &first).unwrap_err();
    assert_eq!(
        error,
        format!("conflicting SELinux labels of volume pv: {ONE:?} and \"u:object_r:container_file_t:s0:c2\"")
    );
    // One that says nothing wants another one, too.
    assert!(of("", ALONE, &first).is_err());
    let unlabelled = Label { mount: String::new(), wanted: ONE.to_owned() };
    assert_eq!(of("s0:c2", &["ReadWriteMany"], &unlabelled), Ok(unlabelled.clone()));
    assert_eq!(
        said(&registry),
        [
            "volume_context_mismatch_errors_total RWOP kubernetes.io/csi/d 2",
            "volume_context_mismatch_warnings_total RWX kubernetes.io/csi/d 1"
        ]
    );
    selinux.count_other(&pod("", &["s0:c1", "s0:c2"], None), "data");
    selinux.count_other(&pod("s0:c1", &["", ""], None), "data");
    assert!(said(&registry).contains(&"pod_context_mismatch_warnings_total inline 1".to_owned()));
}

proptest! {
    /// A volume is mounted with a label only where its driver and its access mode allow it, and its pod has said so.
    #[test]
    fn no_label_out_of_nothing(
        every in any::<bool>(), supported in any::<bool>(), recursive in any::<bool>(),
        modes in prop::sample::subsequence(vec!["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"], 1..=3),
        common in "(s0:c[12])?", own in prop::collection::vec("(s0:c[12])?", 1..3),
    ) {
        let (selinux, _) = mount(every);
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        let pod = pod(&common, &own, recursive.then_some("Recursive"));
        if let Ok(label) = selinux.label(&pod, "data", &spec(&modes), supported, None) && !label.mount.is_empty() {
            prop_assert!(supported && !recursive && (every || modes == ALONE));
            prop_assert!(!common.is_empty() || own.iter().any(|level| !level.is_empty()));
            prop_assert_eq!(label.mount, label.wanted);
        }
    }
}
