//! Who a pod is on the network, seen from inside of its containers: resolver, hosts file, host name, host ports; and what
//! is given to it from files of its own and from images.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::wait::{LONG, eventually};
use bulkhead_testkit::{Lab, image, netns};
use bulkhead_tests::joined::{Member, NODE};
use bulkhead_tests::lab;
use serde_json::{Value, json};

/// The node's own resolver file.
fn resolv_conf(lab: &Lab, text: &str) -> Result<String> {
    let path = lab.folder().join("resolv.conf");
    std::fs::write(&path, text)?;
    Ok(path.display().to_string())
}

/// A container that shows itself and ends.
fn showing(spec: &Value) -> Value {
    let mut spec = spec.clone();
    spec["restartPolicy"] = json!("Never");
    spec["containers"] = json!([{"name": "main", "command": ["sh", "-c",
        "cat /etc/resolv.conf; echo ---; cat /etc/hosts; echo ---; hostname; hostname -f 2>/dev/null || true"]}]);
    spec
}

/// What is said by each keyword of a resolv.conf; servers in order.
fn resolver(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_whitespace().map(str::to_owned);
        if let Some(keyword) = words.next() {
            found.entry(keyword).or_default().extend(words);
        }
    }
    found
}

/// The lines of a resolv.conf by their keyword.
type Lines = BTreeMap<String, Vec<String>>;

fn words(pairs: &[(&str, &str)]) -> Lines {
    let split = |text: &str| text.split_whitespace().map(str::to_owned).collect();
    pairs.iter().map(|(keyword, text)| ((*keyword).to_owned(), split(text))).collect()
}

const CLUSTER: &str = "default.svc.cluster.local svc.cluster.local cluster.local example.test";
const MANAGED: &str = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n\
                       fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n";

#[test]
fn resolver_hosts_and_names_as_containers_see_them() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let file = resolv_conf(
        &lab,
        "# the node's\nsearch old\nnameserver 10.255.255.53\nsearch example.test. .\noptions ndots:2 edns0\n",
    )?;
    let member = Member::start(&lab, &[], |node| {
        node.config("clusterDNS", json!(["10.96.0.10"]))
            .config("clusterDomain", json!("cluster.local"))
            .config("resolvConf", json!(file))
    })?;
    let own = json!({"nameservers": ["1.1.1.1", "10.96.0.10"], "searches": ["own.test", "example.test"],
        "options": [{"name": "ndots", "value": "3"}, {"name": "use-vc"}]});
    let many: Vec<String> = (0..32).map(|i| format!("d{i}.test")).collect();
    let kept = [CLUSTER.to_owned(), many[..28].join(" ")].join(" ");
    let long_name = format!("{}-tail-that-is-cut", "n".repeat(62));
    let overridden = "own.name.test";
    let pods: Vec<(&str, Value, Lines)> = vec![
        ("cluster", json!({}), words(&[("nameserver", "10.96.0.10"), ("search", CLUSTER), ("options", "ndots:5")])),
        (
            "default",
            json!({"dnsPolicy": "Default"}),
            words(&[("nameserver", "10.255.255.53"), ("search", "example.test"), ("options", "ndots:2 edns0")]),
        ),
        (
            "host-network",
            json!({"hostNetwork": true}),
            words(&[("nameserver", "10.255.255.53"), ("search", "example.test"), ("options", "ndots:2 edns0")]),
        ),
        (
            "host-network-in-cluster",
            json!({"hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet",
                   "hostAliases": [{"ip": "10.1.2.3", "hostnames": ["alias.test", "other"]}]}),
            words(&[("nameserver", "10.96.0.10"), ("search", CLUSTER), ("options", "ndots:5")]),
        ),
        (
            "none",
            json!({"dnsPolicy": "None", "dnsConfig": own}),
            words(&[
                ("nameserver", "1.1.1.1 10.96.0.10"),
                ("search", "own.test example.test"),
                ("options", "ndots:3 use-vc"),
            ]),
        ),
        (
            "both",
            json!({"dnsConfig": own}),
            words(&[
                ("nameserver", "10.96.0.10 1.1.1.1"),
                ("search", &format!("{CLUSTER} own.test")),
                ("options", "ndots:3 use-vc"),
            ]),
        ),
        (
            "too-much",
            json!({"dnsConfig": {"nameservers": ["1.1.1.1", "2.2.2.2", "3.3.3.3"], "searches": many}}),
            words(&[("nameserver", "10.96.0.10 1.1.1.1 2.2.2.2"), ("search", &kept), ("options", "ndots:5")]),
        ),
        (
            "named",
            json!({"hostname": "my-host", "subdomain": "sub",
            "hostAliases": [{"ip": "10.1.2.3", "hostnames": ["alias.test", "other"]}, {"ip": "fd00::7", "hostnames": ["six"]}]}),
            BTreeMap::new(),
        ),
        ("fully", json!({"hostname": "my-host", "subdomain": "sub", "setHostnameAsFQDN": true}), BTreeMap::new()),
        (&long_name, json!({}), BTreeMap::new()),
        ("overridden", json!({"hostnameOverride": overridden, "subdomain": "sub"}), BTreeMap::new()),
    ];
    for (name, spec, _) in &pods {
        member.create(name, &showing(spec))?;
    }
    // A full name that the kernel does not take: told of the pod, again and again, and nothing runs.
    let too_long = json!({"hostname": "h".repeat(40), "subdomain": "sub", "setHostnameAsFQDN": true});
    member.create("too-long", &showing(&too_long))?;
    // A container that has a hosts file of its own beside one that has not.
    let spec = json!({"restartPolicy": "Never", "volumes": [{"name": "v", "hostPath": {"path": file, "type": "File"}}],
        "containers": [
            {"name": "own", "command": ["cat", "/etc/hosts"], "volumeMounts": [{"name": "v", "mountPath": "/etc/hosts"}]},
            {"name": "managed", "command": ["cat", "/etc/hosts"]}]});
    member.create("own-hosts", &spec)?;

    let of_node = std::fs::read_to_string("/etc/hosts")?;
    for (name, spec, expected) in &pods {
        let output = member.output(name, "main")?;
        let pod = member.cluster.get("pods", "default", name)?;
        let ip = pod["status"]["podIP"].as_str().context("no address")?;
        let parts: Vec<&str> = output.split("---\n").collect();
        let [resolv, hosts, names] = parts[..] else { anyhow::bail!("{name}: {output:?}") };
        if !expected.is_empty() {
            ensure!(resolver(resolv) == *expected, "{name}: {resolv:?}, not {expected:?}");
        }
        let aliases = match spec["hostAliases"].as_array() {
            None => String::new(),
            Some(list) => {
                let line = |alias: &Value| {
                    let names: Vec<&str> =
                        alias["hostnames"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                    format!("{}\t{}\n", alias["ip"].as_str().unwrap_or_default(), names.join("\t"))
                };
                format!("\n# Entries added by HostAliases.\n{}", list.iter().map(line).collect::<String>())
            }
        };
        if spec["hostNetwork"] == true {
            let text = format!("# Kubernetes-managed hosts file (host network).\n{of_node}{aliases}");
            ensure!(hosts == text, "{name}: {hosts:?}, not {text:?}");
            continue;
        }
        let cut = "n".repeat(62);
        let (short, full, kernel) = match *name {
            "named" => ("my-host", Some("my-host.sub.default.svc.cluster.local"), "my-host"),
            "fully" => {
                let full = "my-host.sub.default.svc.cluster.local";
                ("my-host", Some(full), full)
            }
            "overridden" => (overridden, None, overridden),
            _ if *name == long_name => (cut.as_str(), None, cut.as_str()),
            name => (name, None, name),
        };
        let entry = full.map_or_else(|| format!("{ip}\t{short}\n"), |full| format!("{ip}\t{full}\t{short}\n"));
        let text = format!("{MANAGED}{entry}{aliases}");
        ensure!(hosts == text, "{name}: {hosts:?}, not {text:?}");
        ensure!(names.lines().next() == Some(kernel), "{name}: {names:?}, not {kernel}");
        if full.is_some() {
            ensure!(names.lines().nth(1) == full, "{name}: {names:?}, not {full:?}");
        }
    }
    let servers = "10.96.0.10 1.1.1.1 2.2.2.2";
    for text in [
        format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {servers}"
        ),
        format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {kept}"
        ),
    ] {
        let event = member.wait_event("too-much", "DNSConfigForming", |message| message == text)?;
        ensure!(event["type"] == "Warning", "{event}");
    }
    ensure!(member.events("both")?.iter().all(|event| event["reason"] != "DNSConfigForming"));
    let fqdn = format!("{}.sub.default.svc.cluster.local", "h".repeat(40));
    let text = format!(
        "Failed to create pod sandbox: failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too \
         long (64 characters is the max, {} characters requested)",
        fqdn.len()
    );
    member.wait_event("too-long", "FailedCreatePodSandBox", |message| message == text)?;
    let hosts = member.output("own-hosts", "managed")?;
    ensure!(hosts.starts_with("# Kubernetes-managed hosts file.\n"), "{hosts:?}");
    let hosts = member.output("own-hosts", "own")?;
    ensure!(hosts.starts_with("# the node's\n"), "{hosts:?}");
    member.node.finish()
}

#[test]
fn events_for_missing_cluster_dns_and_too_long_a_search_line() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let domains: Vec<String> = (0..33).map(|i| format!("d{i}.test")).collect();
    let file = resolv_conf(&lab, &format!("nameserver 10.255.255.53\nsearch {}\n", domains.join(" ")))?;
    let member = Member::start(&lab, &[], |node| node.config("resolvConf", json!(file)))?;
    let of_node = |reason: &str, text: &str| {
        eventually(&format!("the node's event {reason}"), LONG, || {
            let events = member.cluster.list("events", Some("default"))?;
            let fits = |event: &&Value| event["involvedObject"]["kind"] == "Node" && event["reason"] == reason;
            let event = events.iter().find(fits).context("no such event")?;
            ensure!(event["message"] == text && event["type"] == "Warning", "{event}");
            ensure!(event["involvedObject"]["name"] == NODE, "{event}");
            Ok(())
        })
    };
    of_node(
        "CheckLimitsForResolvConf",
        &format!("Resolv.conf file '{file}' contains search line consisting of more than 32 domains!"),
    )?;
    let pod = member.create("lost", &showing(&json!({})))?;
    let output = member.output("lost", "main")?;
    let seen = resolver(output.split("---").next().unwrap_or_default());
    let expected = words(&[("nameserver", "10.255.255.53"), ("search", &domains[..32].join(" "))]);
    ensure!(seen == expected, "{seen:?}");
    let text = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. \
                Falling back to \"Default\" policy.";
    of_node("MissingClusterDNS", text)?;
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
    let of_pod = format!("pod: \"lost_default({uid})\". {text}");
    member.wait_event("lost", "MissingClusterDNS", |message| message == of_pod)?;
    member.wait_event("lost", "DNSConfigForming", |message| message.starts_with("Search Line limits were exceeded"))?;
    member.node.finish()
}

#[test]
fn ports_of_the_host_lead_to_their_pods() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let member = Member::start(&lab, &[], |node| node)?;
    let address = IpAddr::from(lab.netns().address());
    let serving = |name: &str, port: &Value| {
        let script = format!("mkdir /www; echo {name} > /www/index.html; exec httpd -f -p 8080 -h /www");
        json!({"containers": [{"name": "main", "command": ["sh", "-c", script], "ports": [port]}]})
    };
    let port =
        |number: u16, ip: &str| json!({"containerPort": 8080, "hostPort": number, "hostIP": ip, "protocol": "TCP"});
    let ip = address.to_string();
    member.create("any", &serving("any", &json!({"containerPort": 8080, "hostPort": 18080})))?;
    // One number for three pods: by address, and by protocol.
    member.create("address", &serving("address", &port(18081, &ip)))?;
    member.create("loopback", &serving("loopback", &port(18081, "127.0.0.1")))?;
    let mut udp = port(18081, &ip);
    udp["protocol"] = json!("UDP");
    member.create("udp", &serving("udp", &udp))?;
    for name in ["any", "address", "loopback", "udp"] {
        member.wait_ready(name)?;
    }
    let answers = |target: SocketAddr, inside: bool, name: &str| {
        eventually(&format!("{target} answers as {name}"), LONG, || {
            let get = || netns::http_get(target, "/");
            let (code, body) = if inside { netns::run_in(&lab.netns().path(), get)? } else { get()? };
            ensure!(code == 200 && body.trim_end().ends_with(name), "{code} {body:?}");
            Ok(())
        })
    };
    // From another machine, and from the node itself.
    answers(SocketAddr::new(address, 18080), false, "any")?;
    answers(SocketAddr::new(address, 18080), true, "any")?;
    answers(SocketAddr::new(address, 18081), false, "address")?;
    answers(SocketAddr::new([127, 0, 0, 1].into(), 18081), true, "loopback")?;

    // A port that is taken is nobody else's.
    member.create("late", &serving("late", &json!({"containerPort": 8080, "hostPort": 18081})))?;
    let pod = member.wait("late", "it is refused", |pod| pod["status"]["phase"] == "Failed")?;
    ensure!(pod["status"]["reason"] == "NodePorts", "{}", pod["status"]);
    member.node.finish()
}

#[test]
fn variables_come_from_files_of_the_pods_own() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let member = Member::start(&lab, &[], |node| node)?;
    let key = |name: &str, key: &str, optional: bool| {
        json!({"name": name, "valueFrom": {"fileKeyRef":
            {"volumeName": "config", "path": "dir/config.env", "key": key, "optional": optional}}})
    };
    let pod = |script: &str, medium: &str, env: Value| {
        let command = format!("mkdir /data/dir; cd /data/dir; {script}");
        json!({"restartPolicy": "Never", "volumes": [{"name": "config", "emptyDir": {"medium": medium}}],
            "initContainers": [{"name": "writer", "command": ["sh", "-c", command],
                "securityContext": {"runAsUser": 1000},
                "volumeMounts": [{"name": "config", "mountPath": "/data"}]}],
            "containers": [{"name": "main", "command": ["sh", "-c", "env | grep ^V_ | sort; echo \"$@\"", "sh", "got $(V_A)"], "env": env}]})
    };
    // Written by another user, readable by that one alone; quotes, comments, and a value over two lines.
    let write = "umask 077; printf \"# one\\nA='value \\$(V_LITERAL)' # two\\nB='line\\nline'\\nE=''\\n\" > config.env";
    let env = || {
        json!([{"name": "V_LITERAL", "value": "x"}, key("V_A", "A", false), key("V_B", "B", false),
            key("V_E", "E", true), key("V_NONE", "NONE", true)])
    };
    let output = "V_A=value $(V_LITERAL)\nV_B=line\nV_LITERAL=x\ngot value $(V_LITERAL)";
    for medium in ["", "Memory"] {
        let name = if medium.is_empty() { "disk" } else { "memory" };
        member.create(name, &pod(write, medium, env()))?;
        // As sh's `grep` has it, the second line of a value does not begin with its name.
        let seen = member.output(name, "main")?;
        ensure!(seen.trim_end() == output, "{name}: {seen:?}");
    }
    // A link inside of the volume is followed, as if the volume were all that there is.
    let link = format!("{write}; mv config.env real; ln -s /dir/real config.env");
    member.create("link", &pod(&link, "", env()))?;
    ensure!(member.output("link", "main")?.trim_end() == output);

    // What cannot be read keeps the container waiting, and says no more of the host than that.
    let missing = "environment variable key \"NONE\" not found in file";
    for (name, script, key_name, text) in [
        ("no-key", write, "NONE", missing),
        ("empty", write, "E", "environment variable key \"E\" not found in file"),
        ("no-file", "true", "A", "couldn't parse env file"),
        ("no-syntax", "echo A=plain > config.env", "A", "couldn't parse env file"),
        ("way-out", "ln -s /etc/passwd config.env", "A", "couldn't parse env file"),
        ("way-up", "ln -s ../../../../../../../../etc/passwd config.env", "A", "couldn't parse env file"),
        ("fifo", "mkfifo config.env", "A", "couldn't parse env file"),
    ] {
        let pod = member.create(name, &pod(script, "", json!([key("V_A", key_name, false)])))?;
        let message = member.wait_waiting(name, "main", "CreateContainerConfigError")?;
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let of_file = format!("/pods/{uid}/volumes/kubernetes.io~empty-dir/config/dir/config.env\"");
        let complete = if text.starts_with("environment") { message.ends_with(&of_file) } else { message == text };
        ensure!(message.starts_with(text) && complete, "{name}: {message:?}");
        member.wait_event(name, "Failed", |said| said == format!("Error: {message}"))?;
    }
    member.node.finish()
}

#[test]
fn image_volumes_are_the_runtimes_to_mount() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let member = Member::start(&lab, &[], |node| node)?;
    let volume =
        |reference: &str, policy: &str| json!([{"name": "v", "image": {"reference": reference, "pullPolicy": policy}}]);
    let mounts = json!([{"name": "v", "mountPath": "/v"}]);
    // One that no container mounts keeps nobody waiting.
    member.create("unused", &json!({"volumes": volume("bulkhead.test/none:1", "Never")}))?;
    let with = |volumes: Value| json!({"volumes": volumes, "containers": [{"name": "main", "volumeMounts": mounts}]});
    member.create("missing", &with(volume("bulkhead.test/none:1", "Never")))?;
    member.create("present", &with(volume(image::LOCAL_BUSYBOX, "IfNotPresent")))?;

    let text = "Container image \"bulkhead.test/none:1\" is not present with pull policy of Never";
    let message = member.wait_waiting("missing", "main", "ErrImageNeverPull")?;
    ensure!(message == text, "{message:?}");
    let event = member.wait_event("missing", "ErrImageNeverPull", |message| message == text)?;
    ensure!(event["involvedObject"]["fieldPath"].is_null(), "the volume is the pod's: {event}");
    let event = member.wait_event("missing", "Failed", |message| message == "Error: ErrImageNeverPull")?;
    ensure!(event["involvedObject"]["fieldPath"] == "spec.containers{main}", "{event}");
    member.wait_ready("unused")?;

    let pulled =
        format!("Container image {:?} already present on machine and can be accessed by the pod", image::LOCAL_BUSYBOX);
    member.wait_event("present", "Pulled", |message| message == pulled)?;
    // This runtime knows no image volumes before its version 2.1: what it says is what the user sees.
    let pod = member.wait("present", "the runtime has answered", |pod| {
        let state = &pod["status"]["containerStatuses"][0]["state"];
        state["running"].is_object() || state["waiting"]["reason"] == "CreateContainerError"
    })?;
    let state = &pod["status"]["containerStatuses"][0]["state"];
    if state["running"].is_object() {
        let listed = member.exec("present", "main", &["ls", "/v/bin/busybox"])?;
        ensure!(listed.trim_end() == "/v/bin/busybox", "{listed:?}");
    } else {
        let message = state["waiting"]["message"].as_str().context("no message")?;
        ensure!(!message.is_empty(), "{state}");
        member.wait_event("present", "Failed", |said| said == format!("Error: {message}"))?;
    }
    member.node.finish()
}
