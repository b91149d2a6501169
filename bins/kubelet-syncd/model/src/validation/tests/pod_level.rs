//! The tables for volumes, init containers and the fields of the pod itself.

use serde_json::json;

use super::*;

#[test]
fn volumes() {
    let one = |source: Value| {
        let mut volume = json!({"name": "v"});
        overlay(&mut volume, source);
        json!({"volumes": [volume]})
    };
    let at = "spec.volumes[0]";
    let bad = |text: &str| format!("{at}{text}");
    specs(&[
        (one(json!({})), &[]),
        (one(json!({"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}})), &[]),
        (
            one(json!({"emptyDir": {"sizeLimit": "-1"}})),
            &[&bad(".emptyDir.sizeLimit: Forbidden: SizeLimit field must be a valid resource quantity")],
        ),
        (one(json!({"hostPath": {"path": "/x", "type": "DirectoryOrCreate"}})), &[]),
        (one(json!({"hostPath": {"path": ""}})), &[&bad(".hostPath.path: Required value")]),
        (
            one(json!({"hostPath": {"path": "/a/../b"}})),
            &[&bad(".hostPath.path: Invalid value: \"/a/../b\": must not contain '..'")],
        ),
        (
            one(json!({"hostPath": {"path": "/x", "type": "Dir"}})),
            &[&bad(
                ".hostPath.type: Unsupported value: \"Dir\": supported values: \"\", \"BlockDevice\", \"CharDevice\", \"Directory\", \"DirectoryOrCreate\", \"File\", \"FileOrCreate\", \"Socket\"",
            )],
        ),
        (
            one(json!({"emptyDir": {}, "hostPath": {"path": "/x"}})),
            &[&bad(".hostPath: Forbidden: may not specify more than 1 volume type")],
        ),
        (json!({"volumes": [{"name": ""}]}), &[&bad(".name: Required value")]),
        (json!({"volumes": [{"name": "V"}]}), &[&bad(".name: Invalid value: \"V\"")]),
        (json!({"volumes": [{"name": "v"}, {"name": "v"}]}), &["spec.volumes[1].name: Duplicate value: \"v\""]),
        (
            one(json!({"configMap": {"name": "c", "defaultMode": 512}})),
            &[&bad(".configMap.defaultMode: Invalid value: 512: must be a number between 0 and 0777")],
        ),
        (one(json!({"secret": {}})), &[&bad(".secret.secretName: Required value")]),
        (
            one(json!({"secret": {"secretName": "s", "items": [{"key": "k", "path": "..x"}]}})),
            &[&bad(".secret.items[0].path: Invalid value: \"..x\": must not start with '..'")],
        ),
        (one(json!({"downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "metadata.labels"}}]}})), &[]),
        (
            one(json!({"downwardAPI": {"items": [{"path": "p"}]}})),
            &[&bad(".downwardAPI: Required value: one of fieldRef and resourceFieldRef is required")],
        ),
        (
            one(json!({"downwardAPI": {"items": [{"path": "p", "resourceFieldRef": {"resource": "limits.cpu"}}]}})),
            &[&bad(".downwardAPI.resourceFieldRef.containerName: Required value")],
        ),
        (
            one(json!({"projected": {"sources": [
                {"downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "metadata.name"}}]}},
                {"downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "metadata.uid"}}]}}]}})),
            &[&bad(".projected: Invalid value: \"p\": conflicting duplicate paths")],
        ),
        (
            one(json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}})),
            &[&bad(
                ".projected.sources[0].serviceAccountToken: Forbidden: must not be specified when serviceAccountName is not set",
            )],
        ),
        (
            one(json!({"image": {"reference": "i", "pullPolicy": "x"}})),
            &[&bad(".image.pullPolicy: Unsupported value: \"x\"")],
        ),
        (
            one(json!({"nfs": {"server": "s", "path": "p"}})),
            &[&bad(".nfs.path: Invalid value: \"p\": must be an absolute path")],
        ),
        (one(json!({"nfs": {"server": "s", "path": "/p"}})), &[]),
        (
            one(json!({"iscsi": {"targetPortal": "t", "iqn": "iqn.2001-04.com.example:disk", "lun": 256}})),
            &[&bad(".iscsi.lun: Invalid value: 256: must be between 0 and 255, inclusive")],
        ),
        (
            one(json!({"iscsi": {"targetPortal": "t", "iqn": "iqn.x", "lun": 0}})),
            &[&bad(".iscsi.iqn: Invalid value: \"iqn.x\": must be valid format")],
        ),
        (
            one(json!({"fc": {"targetWWNs": ["a"]}})),
            &[&bad(".fc.lun: Required value: lun is required if targetWWNs is specified")],
        ),
        (
            one(json!({"gitRepo": {"repository": "r", "directory": "/d"}})),
            &[&bad(".gitRepo.directory: Invalid value: \"/d\": must be a relative path")],
        ),
        (one(json!({"csi": {"driver": ""}})), &[&bad(".csi.driver: Required value")]),
    ]);
}

#[test]
fn init_containers() {
    let init = |fields: Value| {
        let mut own = json!({"name": "i", "image": "x"});
        overlay(&mut own, fields);
        json!({"initContainers": [own]})
    };
    let at = "spec.initContainers[0]";
    let never = "may not be set for init containers without restartPolicy=Always";
    specs(&[
        (init(json!({})), &[]),
        (init(json!({"name": "c"})), &[&format!("{at}.name: Duplicate value: \"c\"")]),
        (init(json!({"name": ""})), &[&format!("{at}.name: Required value")]),
        (
            init(json!({"livenessProbe": {"exec": {"command": ["a"]}}, "lifecycle": {}})),
            &[&format!("{at}.lifecycle: Forbidden: {never}"), &format!("{at}.livenessProbe: Forbidden: {never}")],
        ),
        (init(json!({"restartPolicy": "Always", "livenessProbe": {"exec": {"command": ["a"]}}})), &[]),
        (
            init(json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]})),
            &[&format!("{at}.resizePolicy[0].restartPolicy: Invalid value: \"RestartContainer\": must not be set")],
        ),
    ]);
}

#[test]
fn pod_fields() {
    specs(&[
        (json!({"containers": []}), &["spec.containers: Required value"]),
        (
            json!({"containers": [{"name": "c", "image": "i"}, {"name": "c", "image": "i"}]}),
            &["spec.containers[1].name: Duplicate value: \"c\""],
        ),
        (
            json!({"restartPolicy": "x"}),
            &["spec.restartPolicy: Unsupported value: \"x\": supported values: \"Always\", \"OnFailure\", \"Never\""],
        ),
        (
            json!({"dnsPolicy": "x"}),
            &[
                "spec.dnsPolicy: Unsupported value: \"x\": supported values: \"ClusterFirstWithHostNet\", \"ClusterFirst\", \"Default\", \"None\"",
            ],
        ),
        (
            json!({"dnsPolicy": "None"}),
            &["spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"],
        ),
        (
            json!({"dnsPolicy": "None", "dnsConfig": {}}),
            &["spec.dnsConfig.nameservers: Required value: must provide at least one"],
        ),
        (json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.2.3.4"], "searches": [".", "_a.b."]}}), &[]),
        (
            json!({"dnsConfig": {"nameservers": ["1.2.3"]}}),
            &["spec.dnsConfig.nameservers[0]: Invalid value: \"1.2.3\": must be a valid IP address"],
        ),
        (
            json!({"dnsConfig": {"nameservers": ["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"]}}),
            &[
                "spec.dnsConfig.nameservers: Invalid value: [\"1.1.1.1\",\"1.1.1.2\",\"1.1.1.3\",\"1.1.1.4\"]: must not have more than 3 nameservers",
            ],
        ),
        (json!({"dnsConfig": {"options": [{}]}}), &["spec.dnsConfig.options[0]: Required value: must not be empty"]),
        (
            json!({"activeDeadlineSeconds": 0}),
            &["spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive"],
        ),
        (json!({"hostname": "a.b"}), &["spec.hostname: Invalid value: \"a.b\": must not contain dots"]),
        (json!({"subdomain": "A"}), &["spec.subdomain: Invalid value: \"A\""]),
        (
            json!({"hostAliases": [{"ip": "x", "hostnames": ["A"]}]}),
            &["spec.hostAliases[0].ip: Invalid value: \"x\"", "spec.hostAliases[0].hostnames[0]: Invalid value: \"A\""],
        ),
        (json!({"nodeSelector": {"a": "!"}}), &["spec.nodeSelector: Invalid value: \"!\""]),
        (json!({"priorityClassName": "A"}), &["spec.priorityClassName: Invalid value: \"A\""]),
        (json!({"runtimeClassName": ""}), &["spec.runtimeClassName: Invalid value: \"\""]),
        (json!({"preemptionPolicy": "x"}), &["spec.preemptionPolicy: Unsupported value: \"x\""]),
        (
            json!({"tolerations": [{"operator": "Equal"}]}),
            &["spec.tolerations[0].operator: Invalid value: \"Equal\": operator must be Exists when `key` is empty"],
        ),
        (
            json!({"tolerations": [{"key": "a", "operator": "Gt", "value": "1"}]}),
            &[
                "spec.tolerations[0].operator: Unsupported value: \"Gt\": supported values: \"Equal\", \"Exists\", \"Lt\", \"Gt\"",
            ],
        ),
        (
            json!({"tolerations": [{"key": "a", "effect": "x"}]}),
            &["spec.tolerations[0].effect: Unsupported value: \"x\""],
        ),
        (
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}}),
            &[
                "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: Required value: must have at least one",
            ],
        ),
        (
            json!({"topologySpreadConstraints": [{"maxSkew": 0, "topologyKey": "", "whenUnsatisfiable": "x"}]}),
            &[
                "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than 0",
                "spec.topologySpreadConstraints[0].topologyKey: Required value: can not be empty",
                "spec.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported value: \"x\"",
            ],
        ),
        (
            json!({"readinessGates": [{"conditionType": "a b"}]}),
            &["spec.readinessGates[0].conditionType: Invalid value: \"a b\""],
        ),
        (
            json!({"ephemeralContainers": [{"name": "e", "image": "i"}]}),
            &["spec.ephemeralContainers: Forbidden: cannot be set on create"],
        ),
        (
            json!({"nodeName": "n", "schedulingGates": [{"name": "g"}]}),
            &["spec.nodeName: Forbidden: cannot be set until"],
        ),
        (
            json!({"os": {"name": "beos"}}),
            &["spec.os: Unsupported value: \"beos\": supported values: \"linux\", \"windows\""],
        ),
        (
            json!({"os": {"name": "windows"}, "hostPID": true}),
            &["spec.hostPID: Forbidden: cannot be set for a windows pod"],
        ),
        (
            json!({"overhead": {"nonsense": "1"}}),
            &["spec.overhead.limits[nonsense]: Invalid value", "spec.overhead.limits[nonsense]: Invalid value"],
        ),
        (
            json!({"hostNetwork": true, "containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80, "hostPort": 81}]}]}),
            &[
                "spec.containers[0].ports[0].hostPort: Invalid value: 81: must match `containerPort` when `hostNetwork` is true",
            ],
        ),
        (
            json!({"setHostnameAsFQDN": true, "hostnameOverride": "a"}),
            &["spec.hostnameOverride: Forbidden: may not be specified when setHostnameAsFQDN is true"],
        ),
    ]);
}

#[test]
fn profiles_in_annotation_and_field_must_agree() {
    let annotations = json!({"annotations": {"container.seccomp.security.alpha.kubernetes.io/c": "unconfined"}});
    let own = |kind: &str| json!({"securityContext": {"seccompProfile": {"type": kind}}});
    assert_eq!(check(annotations.clone(), json!({}), own("Unconfined")), [""; 0]);
    assert_eq!(
        check(annotations, json!({}), own("RuntimeDefault")),
        [
            "spec.containers[0].securityContext.seccompProfile.type: Forbidden: seccomp type in annotation and field must match"
        ]
    );
}

#[test]
fn all_errors_are_printed_as_upstream_prints_a_list() {
    let mut errors = Errors::default();
    errors.required(&Path::new("spec").child("containers"), "");
    errors.invalid(&Path::new("metadata").child("name"), "a\"b", "no");
    assert_eq!(errors.to_string(), "[spec.containers: Required value metadata.name: Invalid value: \"a\\\"b\": no]");
    assert_eq!(errors.len(), 2);
}
