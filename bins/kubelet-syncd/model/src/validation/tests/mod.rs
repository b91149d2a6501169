//! One table: a change to a good pod, and the errors that upstream gives for it (none: taken).

mod pod_level;

use serde_json::{Value, json};

use super::*;
use crate::decode;
use crate::defaults;

/// A good pod with the given fields of metadata, spec and first container laid over it.
fn check(metadata: Value, spec: Value, container: Value) -> Vec<String> {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    overlay(&mut pod["metadata"], metadata);
    overlay(&mut pod["spec"]["containers"][0], container);
    overlay(&mut pod["spec"], spec);
    let (mut pod, _) = decode::pod(pod.to_string().as_bytes()).unwrap_or_else(|e| panic!("{pod}: {e}"));
    defaults::apply(&mut pod);
    validate_pod(&pod, Gates::default()).iter().map(ToString::to_string).collect()
}

fn overlay(onto: &mut Value, fields: Value) {
    if let (Some(onto), Value::Object(fields)) = (onto.as_object_mut(), fields) {
        onto.extend(fields);
    }
}

fn assert_errors(what: &Value, got: &[String], wanted: &[&str]) {
    assert_eq!(got.len(), wanted.len(), "{what}: {got:#?}");
    for (got, wanted) in got.iter().zip(wanted) {
        // Long messages are given by how they begin.
        assert!(got.starts_with(wanted), "{what}:\n  got    {got}\n  wanted {wanted}");
    }
}

fn containers(table: &[(Value, &[&str])]) {
    for (fields, wanted) in table {
        assert_errors(fields, &check(json!({}), json!({}), fields.clone()), wanted);
    }
}

fn specs(table: &[(Value, &[&str])]) {
    for (fields, wanted) in table {
        assert_errors(fields, &check(json!({}), fields.clone(), json!({})), wanted);
    }
}

fn metadata(table: &[(Value, &[&str])]) {
    for (fields, wanted) in table {
        assert_errors(fields, &check(fields.clone(), json!({}), json!({})), wanted);
    }
}

#[test]
fn names_labels_and_annotations() {
    metadata(&[
        (json!({}), &[]),
        (
            json!({"name": "Web"}),
            &["metadata.name: Invalid value: \"Web\": a lowercase RFC 1123 subdomain must consist"],
        ),
        (json!({"name": "x".repeat(254)}), &["metadata.name: Invalid value: \"xxx"]),
        (json!({"namespace": "a.b"}), &["metadata.namespace: Invalid value: \"a.b\": must not contain dots"]),
        (json!({"labels": {"a b": "c"}}), &["metadata.labels: Invalid value: \"a b\": name part must consist of"]),
        (
            json!({"labels": {"a": "-"}}),
            &["metadata.labels: Invalid value: \"-\": a valid label must be an empty string"],
        ),
        (json!({"labels": {"example.com/a": "v_1.2"}}), &[]),
        (json!({"annotations": {"Example.com/A": "anything at all"}}), &[]),
        (
            json!({"annotations": {"a/b/c": ""}}),
            &["metadata.annotations: Invalid value: \"a/b/c\": a valid label key must"],
        ),
        (
            json!({"annotations": {"a": "x".repeat(256 * 1024)}}),
            &["metadata.annotations: Too long: may not be more than 262144 bytes"],
        ),
        (json!({"generation": -1}), &["metadata.generation: Invalid value: -1: must be greater than or equal to 0"]),
        (json!({"finalizers": ["x"]}), &["metadata.finalizers[0]: Invalid value: \"x\": name is neither"]),
        (json!({"finalizers": ["a.example/x"]}), &[]),
        (
            json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "", "uid": "u"}]}),
            &["metadata.ownerReferences.name: Invalid value: \"\": must not be empty"],
        ),
        (
            json!({"annotations": {"seccomp.security.alpha.kubernetes.io/pod": "nonsense"}}),
            &[
                "metadata.annotations.seccomp.security.alpha.kubernetes.io/pod: Invalid value: \"nonsense\": must be a valid seccomp profile",
            ],
        ),
        (
            json!({"annotations": {"container.apparmor.security.beta.kubernetes.io/other": "unconfined"}}),
            &[
                "metadata.annotations[container.apparmor.security.beta.kubernetes.io/other]: Invalid value: \"other\": container not found",
            ],
        ),
        (
            json!({"annotations": {"controller.kubernetes.io/pod-deletion-cost": "+1"}}),
            &[
                "metadata.annotations[controller.kubernetes.io/pod-deletion-cost]: Invalid value: \"+1\": must be a 32bit integer",
            ],
        ),
    ]);
}

#[test]
fn containers_ports_and_mounts() {
    containers(&[
        (json!({"name": ""}), &["spec.containers[0].name: Required value"]),
        (json!({"name": "a.b"}), &["spec.containers[0].name: Invalid value: \"a.b\": must not contain dots"]),
        (
            json!({"name": "A"}),
            &["spec.containers[0].name: Invalid value: \"A\": a lowercase RFC 1123 label must consist"],
        ),
        (json!({"image": ""}), &["spec.containers[0].image: Required value"]),
        (
            json!({"image": " i"}),
            &["spec.containers[0].image: Invalid value: \" i\": must not have leading or trailing whitespace"],
        ),
        (
            json!({"imagePullPolicy": "Sometimes"}),
            &[
                "spec.containers[0].imagePullPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
            ],
        ),
        (
            json!({"terminationMessagePolicy": "x"}),
            &[
                "spec.containers[0].terminationMessagePolicy: Unsupported value: \"x\": supported values: \"File\", \"FallbackToLogsOnError\"",
            ],
        ),
        (json!({"ports": [{"containerPort": 80, "name": "http"}, {"containerPort": 443}]}), &[]),
        (json!({"ports": [{}]}), &["spec.containers[0].ports[0].containerPort: Required value"]),
        (
            json!({"ports": [{"containerPort": 65536}]}),
            &[
                "spec.containers[0].ports[0].containerPort: Invalid value: 65536: must be between 1 and 65535, inclusive",
            ],
        ),
        (
            json!({"ports": [{"containerPort": 80, "hostPort": -1}]}),
            &["spec.containers[0].ports[0].hostPort: Invalid value: -1: must be between"],
        ),
        (
            json!({"ports": [{"containerPort": 80, "protocol": "tcp"}]}),
            &[
                "spec.containers[0].ports[0].protocol: Unsupported value: \"tcp\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
            ],
        ),
        (
            json!({"ports": [{"containerPort": 1, "name": "a"}, {"containerPort": 2, "name": "a"}]}),
            &["spec.containers[0].ports[1].name: Duplicate value: \"a\""],
        ),
        (
            json!({"ports": [{"containerPort": 1, "name": "no letters: 1"}]}),
            &["spec.containers[0].ports[0].name: Invalid value: \"no letters: 1\": must contain only alpha-numeric"],
        ),
        (
            json!({"ports": [{"containerPort": 1, "hostPort": 9}, {"containerPort": 2, "hostPort": 9}]}),
            &["spec.containers[0].ports[1].hostPort: Duplicate value: \"TCP//9\""],
        ),
        (
            json!({"volumeMounts": [{"name": "no", "mountPath": "/x"}]}),
            &["spec.containers[0].volumeMounts[0].name: Not found: \"no\""],
        ),
        (json!({"restartPolicy": "Never"}), &[]),
        (
            json!({"restartPolicy": "x"}),
            &[
                "spec.containers[0].restartPolicy: Unsupported value: \"x\": supported values: \"Always\", \"Never\", \"OnFailure\"",
            ],
        ),
        (
            json!({"restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]}),
            &[
                "spec.containers[0].restartPolicy: Required value: must specify restartPolicy when restart rules are used",
            ],
        ),
        (
            json!({"restartPolicy": "Never", "restartPolicyRules": [{"action": "x"}]}),
            &[
                "spec.containers[0].restartPolicyRules[0].action: Unsupported value: \"x\"",
                "spec.containers[0].restartPolicyRules[0].exitCodes: Required value: must be specified",
            ],
        ),
        (
            json!({"resizePolicy": [{"resourceName": "disk", "restartPolicy": "NotRequired"}]}),
            &["spec.containers[0].resizePolicy: Unsupported value: \"disk\": supported values: \"cpu\", \"memory\""],
        ),
    ]);
}

#[test]
fn mounts_of_volumes_that_exist() {
    let with = |mounts: Value, container: Value| {
        let mut own = json!({"name": "c", "image": "i", "volumeMounts": mounts});
        overlay(&mut own, container);
        json!({"volumes": [{"name": "v", "emptyDir": {}}], "containers": [own]})
    };
    let at = "spec.containers[0].volumeMounts";
    specs(&[
        (with(json!([{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/b"}]), json!({})), &[]),
        (
            with(json!([{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/a"}]), json!({})),
            &[&format!("{at}[1].mountPath: Invalid value: \"/a\": must be unique")],
        ),
        (with(json!([{"name": "v", "mountPath": ""}]), json!({})), &[&format!("{at}[0].mountPath: Required value")]),
        (
            with(json!([{"name": "v", "mountPath": "/a", "subPath": "/x"}]), json!({})),
            &[&format!("{at}.subPath: Invalid value: \"/x\": must be a relative path")],
        ),
        (
            with(json!([{"name": "v", "mountPath": "/a", "subPath": "a/../b"}]), json!({})),
            &[&format!("{at}.subPath: Invalid value: \"a/../b\": must not contain '..'")],
        ),
        (
            with(json!([{"name": "v", "mountPath": "/a", "mountPropagation": "Bidirectional"}]), json!({})),
            &[&format!(
                "{at}.mountPropagation: Forbidden: Bidirectional mount propagation is available only to privileged containers"
            )],
        ),
        (
            with(
                json!([{"name": "v", "mountPath": "/a", "mountPropagation": "Bidirectional"}]),
                json!({"securityContext": {"privileged": true}}),
            ),
            &[],
        ),
        (
            with(json!([{"name": "v", "mountPath": "/a", "recursiveReadOnly": "Enabled"}]), json!({})),
            &[&format!("{at}.recursiveReadOnly: Forbidden: may only be specified when readOnly is true")],
        ),
        (
            with(json!([]), json!({"volumeDevices": [{"name": "v", "devicePath": "/dev/x"}]})),
            &["spec.containers[0].volumeDevices[0].name: Invalid value: \"v\": can only use volume source type"],
        ),
    ]);
}

#[test]
fn environment() {
    let at = "spec.containers[0].env[0]";
    let env = |from: Value| json!({"env": [{"name": "A", "valueFrom": from}]});
    let bad = |text: &str| format!("{at}.valueFrom{text}");
    containers(&[
        (json!({"env": [{"name": "with space.and-dash", "value": "x"}]}), &[]),
        (json!({"env": [{"name": ""}]}), &[&format!("{at}.name: Required value")]),
        (
            json!({"env": [{"name": "a=b"}]}),
            &[&format!("{at}.name: Invalid value: \"a=b\": a valid environment variable name")],
        ),
        (env(json!({"fieldRef": {"fieldPath": "status.podIP"}})), &[]),
        (env(json!({"fieldRef": {"fieldPath": "metadata.labels['a']"}})), &[]),
        (
            env(json!({"fieldRef": {"fieldPath": "metadata.labels"}})),
            &[&bad(".fieldRef.fieldPath: Unsupported value: \"metadata.labels\": supported values: \"metadata.name\"")],
        ),
        (
            env(json!({"fieldRef": {"fieldPath": "spec.nothing"}})),
            &[&bad(
                ".fieldRef.fieldPath: Invalid value: \"spec.nothing\": error converting fieldPath: field label not supported: spec.nothing",
            )],
        ),
        (env(json!({"fieldRef": {"fieldPath": ""}})), &[&bad(".fieldRef.fieldPath: Required value")]),
        (
            env(json!({"fieldRef": {"apiVersion": "v2", "fieldPath": "metadata.name"}})),
            &[&bad(
                ".fieldRef.fieldPath: Invalid value: \"metadata.name\": error converting fieldPath: unsupported pod version: v2",
            )],
        ),
        (env(json!({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}})), &[]),
        (
            env(json!({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "2"}})),
            &[&bad(".resourceFieldRef.divisor: Invalid value: \"limits.cpu\": only divisor's values 1m and 1")],
        ),
        (
            env(json!({"resourceFieldRef": {"resource": "limits.disk"}})),
            &[&bad(".resourceFieldRef.resource: Unsupported value: \"limits.disk\"")],
        ),
        (env(json!({})), &[&bad(": Invalid value: \"\": must specify one of: `fieldRef`")]),
        (
            env(json!({"fieldRef": {"fieldPath": "metadata.uid"}, "secretKeyRef": {"name": "s", "key": "k"}})),
            &[&bad(": Invalid value: \"\": may not have more than one field specified at a time")],
        ),
        (
            json!({"env": [{"name": "A", "value": "v", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}]}),
            &[&bad(": Invalid value: \"\": may not be specified when `value` is not empty")],
        ),
        (
            json!({"envFrom": [{}]}),
            &["spec.containers[0].envFrom: Invalid value: \"\": must specify one of: `configMapRef` or `secretRef`"],
        ),
        (
            env(json!({"fileKeyRef": {"volumeName": "v", "path": "f", "key": "k"}})),
            &[&bad(".fileKeyRef.volumeName: Not found: \"v\"")],
        ),
    ]);
}

#[test]
fn probes_and_hooks() {
    let at = "spec.containers[0]";
    containers(&[
        (
            json!({"livenessProbe": {"exec": {"command": ["a"]}}, "readinessProbe": {"tcpSocket": {"port": "http"}}}),
            &[],
        ),
        (json!({"livenessProbe": {}}), &[&format!("{at}.livenessProbe: Required value: must specify a handler type")]),
        (json!({"livenessProbe": {"exec": {}}}), &[&format!("{at}.livenessProbe.exec.command: Required value")]),
        (
            json!({"startupProbe": {"exec": {"command": ["a"]}, "successThreshold": 2}}),
            &[&format!("{at}.startupProbe.successThreshold: Invalid value: 2: must be 1")],
        ),
        (
            json!({"livenessProbe": {"httpGet": {"port": 0}, "tcpSocket": {"port": 1}}}),
            &[
                &format!("{at}.livenessProbe.httpGet.port: Invalid value: 0: must be between 1 and 65535, inclusive"),
                &format!("{at}.livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type"),
            ],
        ),
        (
            json!({"readinessProbe": {"httpGet": {"port": 80, "scheme": "FTP"}, "timeoutSeconds": -1}}),
            &[
                &format!(
                    "{at}.readinessProbe.httpGet.scheme: Unsupported value: \"FTP\": supported values: \"HTTP\", \"HTTPS\""
                ),
                &format!("{at}.readinessProbe.timeoutSeconds: Invalid value: -1: must be greater than or equal to 0"),
            ],
        ),
        (
            json!({"readinessProbe": {"grpc": {"port": 80}, "terminationGracePeriodSeconds": 1}}),
            &[&format!(
                "{at}.readinessProbe.terminationGracePeriodSeconds: Invalid value: 1: must not be set for readinessProbes"
            )],
        ),
        (
            json!({"livenessProbe": {"grpc": {"port": 80}, "terminationGracePeriodSeconds": 0}}),
            &[&format!("{at}.livenessProbe.terminationGracePeriodSeconds: Invalid value: 0: must be greater than 0")],
        ),
        (json!({"lifecycle": {"preStop": {"sleep": {"seconds": 30}}}}), &[]),
        (
            json!({"lifecycle": {"preStop": {"sleep": {"seconds": 31}}}}),
            &[&format!(
                "{at}.lifecycle.preStop.sleep: Invalid value: 31: must be non-negative and less than terminationGracePeriodSeconds (30)"
            )],
        ),
        (
            json!({"lifecycle": {"stopSignal": "SIGTERM"}}),
            &[&format!(
                "{at}.lifecycle.stopSignal: Forbidden: may not be set for containers with empty `spec.os.name`"
            )],
        ),
    ]);
}

#[test]
fn amounts() {
    let at = "spec.containers[0].resources";
    let resources = |limits: Value, requests: Value| json!({"resources": {"limits": limits, "requests": requests}});
    containers(&[
        (resources(json!({"cpu": "1", "memory": "1Gi"}), json!({"cpu": "500m"})), &[]),
        (
            resources(json!({"cpu": "1"}), json!({"cpu": "2"})),
            &[&format!("{at}.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1")],
        ),
        (
            resources(json!({"cpu": "-1"}), json!({"cpu": "-1"})),
            &[
                &format!("{at}.limits[cpu]: Invalid value: \"-1\": must be greater than or equal to 0"),
                &format!("{at}.requests[cpu]: Invalid value: \"-1\": must be greater than or equal to 0"),
            ],
        ),
        (
            resources(json!({"gpus": "1"}), json!({"gpus": "1"})),
            &[
                &format!(
                    "{at}.limits[gpus]: Invalid value: \"gpus\": must be a standard resource type or fully qualified"
                ),
                &format!("{at}.limits[gpus]: Invalid value: \"gpus\": must be a standard resource for containers"),
                &format!("{at}.requests[gpus]: Invalid value: \"gpus\": must be a standard resource type"),
                &format!("{at}.requests[gpus]: Invalid value: \"gpus\": must be a standard resource for"),
            ],
        ),
        (resources(json!({"example.com/gpu": "2"}), json!({"example.com/gpu": "2"})), &[]),
        (
            resources(json!({}), json!({"example.com/gpu": "2"})),
            &[&format!("{at}.limits: Required value: Limit must be set for non overcommitable resources")],
        ),
        (
            resources(json!({"example.com/gpu": "500m"}), json!({})),
            &[
                &format!("{at}.limits[example.com/gpu]: Invalid value: \"500m\": must be an integer"),
                &format!("{at}.requests[example.com/gpu]: Invalid value: \"500m\": must be an integer"),
            ],
        ),
        (resources(json!({"hugepages-2Mi": "4Mi", "cpu": "1"}), json!({})), &[]),
        (
            resources(json!({"hugepages-2Mi": "4Mi"}), json!({})),
            &[&format!("{at}: Forbidden: HugePages require cpu or memory")],
        ),
        (
            resources(json!({"hugepages-2Mi": "3Mi", "cpu": "1"}), json!({})),
            &[
                &format!(
                    "{at}.limits[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is not positive integer multiple of hugepages-2Mi"
                ),
                &format!("{at}.requests[hugepages-2Mi]: Invalid value: \"3Mi\""),
            ],
        ),
        (
            json!({"resources": {"claims": [{"name": "x"}]}}),
            &[&format!(
                "{at}.claims[0]: Not found: \"x\": must be one of the names in pod.spec.resourceClaims which is empty"
            )],
        ),
    ]);
    specs(&[
        (json!({"resources": {"limits": {"cpu": "1"}}}), &[]),
        (
            json!({"resources": {"limits": {"ephemeral-storage": "1Gi"}}}),
            &[
                "spec.resources.limits[ephemeral-storage]: Unsupported value: \"ephemeral-storage\": supported values: \"cpu\", \"hugepages-\", \"memory\"",
            ],
        ),
        (
            json!({"resources": {"requests": {"cpu": "1"}},
                   "containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": "2"}}}]}),
            &[
                "spec.resources.requests[cpu]: Invalid value: \"1\": must be greater than or equal to aggregate container requests of 2",
            ],
        ),
    ]);
}

#[test]
fn security() {
    let at = "spec.containers[0].securityContext";
    containers(&[
        (json!({"securityContext": {"privileged": true, "runAsUser": 0, "capabilities": {"add": ["NET_ADMIN"]}}}), &[]),
        (
            json!({"securityContext": {"runAsUser": -1}}),
            &[&format!("{at}.runAsUser: Invalid value: -1: must be between 0 and 2147483647, inclusive")],
        ),
        (
            json!({"securityContext": {"seccompProfile": {"type": "Localhost"}}}),
            &[&format!(
                "{at}.seccompProfile.localhostProfile: Required value: must be set when seccomp type is Localhost"
            )],
        ),
        (
            json!({"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "../x"}}}),
            &[&format!("{at}.seccompProfile.localhostProfile: Invalid value: \"../x\": must not contain '..'")],
        ),
        (
            json!({"securityContext": {"seccompProfile": {"type": "x"}}}),
            &[&format!(
                "{at}.seccompProfile.type: Unsupported value: \"x\": supported values: \"Localhost\", \"RuntimeDefault\", \"Unconfined\""
            )],
        ),
        (
            json!({"securityContext": {"appArmorProfile": {"type": ""}}}),
            &[&format!("{at}.appArmorProfile.type: Required value: type is required when appArmorProfile is set")],
        ),
        (
            json!({"securityContext": {"procMount": "Unmasked"}}),
            &[&format!("{at}.procMount: Invalid value: \"Unmasked\": `hostUsers` must be false to use `Unmasked`")],
        ),
        (
            json!({"securityContext": {"allowPrivilegeEscalation": false, "privileged": true}}),
            &[&format!("{at}: Invalid value: {{\"allowPrivilegeEscalation\":false,\"privileged\":true}}: cannot set")],
        ),
    ]);
    let at = "spec.securityContext";
    let context = |fields: Value| json!({"securityContext": fields});
    specs(&[
        (
            context(
                json!({"runAsUser": 1, "fsGroup": 2, "supplementalGroups": [3], "supplementalGroupsPolicy": "Strict"}),
            ),
            &[],
        ),
        (context(json!({"supplementalGroups": [-3]})), &[&format!("{at}.supplementalGroups[0]: Invalid value: -3")]),
        (context(json!({"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]})), &[]),
        (
            context(json!({"sysctls": [{"name": "", "value": "1"}]})),
            &[&format!("{at}.sysctls[0].name: Required value")],
        ),
        (
            context(json!({"sysctls": [{"name": "a b", "value": "1"}]})),
            &[&format!("{at}.sysctls[0].name: Invalid value: \"a b\": must have at most 253")],
        ),
        (
            context(json!({"sysctls": [{"name": "a", "value": "1"}, {"name": "a", "value": "1"}]})),
            &[&format!("{at}.sysctls[1].name: Duplicate value: \"a\"")],
        ),
        (
            json!({"hostNetwork": true, "securityContext": {"sysctls": [{"name": "net.ipv4.ip_forward", "value": "1"}]}}),
            &[&format!(
                "{at}.sysctls[0].name: Invalid value: \"net.ipv4.ip_forward\": may not be specified when 'hostNetwork' is true"
            )],
        ),
        (
            json!({"hostIPC": true, "securityContext": {"sysctls": [{"name": "kernel/shmmax", "value": "1"}]}}),
            &[&format!(
                "{at}.sysctls[0].name: Invalid value: \"kernel/shmmax\": may not be specified when 'hostIPC' is true"
            )],
        ),
        (
            context(json!({"fsGroupChangePolicy": "x"})),
            &[&format!(
                "{at}.fsGroupChangePolicy: Unsupported value: \"x\": supported values: \"Always\", \"OnRootMismatch\""
            )],
        ),
        (
            json!({"hostPID": true, "shareProcessNamespace": true}),
            &[&format!(
                "{at}.shareProcessNamespace: Invalid value: true: ShareProcessNamespace and HostPID cannot both be enabled"
            )],
        ),
        (json!({"hostUsers": false}), &[]),
        (json!({"hostUsers": false, "hostNetwork": true}), &["spec.hostNetwork: Forbidden: when `hostUsers` is false"]),
        (json!({"hostUsers": false, "hostPID": true}), &["spec.HostPID: Forbidden: when `hostUsers` is false"]),
    ]);
}
