//! Security contexts as a container's own processes see them: users, groups, capabilities, seccomp, what is hidden and
//! read-only, kernel parameters, namespaces; and what is refused, with its words.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::{Release, image};
use bulkhead_tests::joined::Member;
use bulkhead_tests::lab;
use serde_json::{Value, json};

/// What a process is told of itself, one `key value` a line.
const SHOW: &str = "grep -E '^(Uid|Gid|Groups|CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status | tr -d ':'; \
    for n in net pid ipc user; do echo ns-$n $(readlink /proc/self/ns/$n); done; \
    mkdir /tmp/made-here 2>/dev/null && echo mkdir yes || echo mkdir no; \
    touch /written 2>/dev/null && echo root writable || echo root read-only; \
    echo kcore $(head -c 1 /proc/kcore 2>/dev/null | wc -c); \
    echo sys $(grep -c ' /proc/sys proc ro,' /proc/mounts); \
    echo ports $(cat /proc/sys/net/ipv4/ip_unprivileged_port_start) msgmax $(cat /proc/sys/kernel/msgmax)";

const SYS_ADMIN: u64 = 1 << 21;
const NET_BIND_SERVICE: u64 = 1 << 10;
const NET_RAW: u64 = 1 << 13;

/// What one container was told.
#[derive(Debug)]
struct Seen(BTreeMap<String, String>);

impl Seen {
    fn of(member: &Member, pod: &str, container: &str) -> Result<Seen> {
        let output = member.output(pod, container)?;
        let line = |line: &str| {
            let mut words = line.split_whitespace();
            Some((words.next()?.to_owned(), words.collect::<Vec<_>>().join(" ")))
        };
        Ok(Seen(output.lines().filter_map(line).collect()))
    }

    fn get(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
    }

    fn is(&self, expected: &[(&str, &str)]) -> Result<()> {
        for (key, value) in expected {
            ensure!(self.get(key) == *value, "{key}: {:?} and not {value:?}: {self:?}", self.get(key));
        }
        Ok(())
    }

    fn capabilities(&self, key: &str) -> Result<u64> {
        u64::from_str_radix(self.get(key), 16).with_context(|| format!("{self:?}"))
    }
}

fn shows(name: &str, context: &Value) -> Value {
    json!({"name": name, "command": ["sh", "-c", SHOW], "securityContext": context})
}

fn once(context: &Value, containers: &[Value]) -> Value {
    json!({"restartPolicy": "Never", "securityContext": context, "containers": containers})
}

#[test]
fn containers_are_what_their_pod_says_and_no_more() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let member = Member::start(&lab, &[], |node| {
        node.config("seccompDefault", json!(true)).config("allowedUnsafeSysctls", json!(["kernel.msg*"]))
    })?;
    let profiles = member.node.root_dir().join("seccomp/profiles");
    std::fs::create_dir_all(&profiles)?;
    let no_mkdir = json!({"defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}]});
    std::fs::write(profiles.join("no-mkdir.json"), no_mkdir.to_string())?;

    let none = json!({});
    let seccomp = |kind: &str| json!({"seccompProfile": {"type": kind}});
    let localhost = json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "profiles/no-mkdir.json"}});
    let groups = json!({"runAsUser": 1001, "runAsGroup": 2002, "fsGroup": 3003, "supplementalGroups": [4004]});
    member.create(
        "users",
        &once(&groups, &[shows("main", &none), shows("own", &json!({"runAsUser": 65534, "runAsGroup": 7}))]),
    )?;
    let powers = [
        shows("plain", &none),
        shows("none", &json!({"capabilities": {"drop": ["ALL"]}})),
        shows("one", &json!({"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}})),
        shows("all", &json!({"capabilities": {"add": ["ALL"]}})),
        shows("less", &json!({"capabilities": {"drop": ["NET_RAW"]}})),
        shows("user", &json!({"runAsUser": 1000})),
        shows("no-escalation", &json!({"runAsUser": 1000, "allowPrivilegeEscalation": false})),
        shows("read-only", &json!({"readOnlyRootFilesystem": true})),
        shows("privileged", &json!({"privileged": true})),
        shows("unconfined", &seccomp("Unconfined")),
        shows("default", &seccomp("RuntimeDefault")),
        shows("localhost", &localhost),
    ];
    member.create("powers", &once(&none, &powers))?;
    let open = [shows("main", &none), shows("own", &seccomp("RuntimeDefault"))];
    member.create("open", &once(&seccomp("Unconfined"), &open))?;
    let sysctls = json!({"sysctls": [{"name": "net/ipv4/ip_unprivileged_port_start", "value": "80"},
                                     {"name": "kernel.msgmax", "value": "65536"}]});
    member.create("sysctls", &once(&sysctls, &[shows("main", &none)]))?;
    let with = |field: &str| {
        let mut spec = once(&none, &[shows("a", &none), shows("b", &none)]);
        spec[field] = json!(true);
        spec
    };
    for (name, field) in [
        ("host-network", "hostNetwork"),
        ("host-pid", "hostPID"),
        ("host-ipc", "hostIPC"),
        ("shared", "shareProcessNamespace"),
    ] {
        member.create(name, &with(field))?;
    }

    for name in ["here", "there"] {
        member.create(name, &json!({"containers": [{"name": "a"}, {"name": "b"}]}))?;
    }

    let seen = |pod: &str, container: &str| Seen::of(&member, pod, container);
    let users = seen("users", "main")?;
    users.is(&[("Uid", "1001 1001 1001 1001"), ("Gid", "2002 2002 2002 2002")])?;
    ensure!(users.get("Groups").contains("3003 4004") && users.capabilities("CapEff")? == 0, "{users:?}");
    let own = seen("users", "own")?;
    own.is(&[("Uid", "65534 65534 65534 65534"), ("Gid", "7 7 7 7")])?;

    let plain = seen("powers", "plain")?;
    let (hidden, fenced) = ([("kcore", "0"), ("sys", "1")], [("NoNewPrivs", "0"), ("Seccomp", "2")]);
    plain.is(&hidden)?;
    plain.is(&fenced)?;
    plain.is(&[("Uid", "0 0 0 0"), ("root", "writable"), ("mkdir", "yes")])?;
    let usual = plain.capabilities("CapEff")?;
    ensure!(usual & SYS_ADMIN == 0 && usual & NET_RAW != 0, "{plain:?}");
    ensure!(seen("powers", "none")?.capabilities("CapEff")? == 0);
    ensure!(seen("powers", "one")?.capabilities("CapEff")? == NET_BIND_SERVICE);
    ensure!(seen("powers", "less")?.capabilities("CapEff")? == usual & !NET_RAW);
    ensure!(seen("powers", "all")?.capabilities("CapEff")? & SYS_ADMIN != 0);
    let user = seen("powers", "user")?;
    user.is(&[("NoNewPrivs", "0"), ("CapEff", "0000000000000000")])?;
    ensure!(user.capabilities("CapBnd")? == usual, "a program with the bit may become root: {user:?}");
    seen("powers", "no-escalation")?.is(&[("NoNewPrivs", "1"), ("Uid", "1000 1000 1000 1000")])?;
    seen("powers", "read-only")?.is(&[("root", "read-only")])?;
    let privileged = seen("powers", "privileged")?;
    ensure!(privileged.capabilities("CapEff")? & SYS_ADMIN != 0, "{privileged:?}");
    privileged.is(&[("Seccomp", "0"), ("sys", "0")])?;
    seen("powers", "unconfined")?.is(&[("Seccomp", "0"), ("mkdir", "yes")])?;
    seen("powers", "default")?.is(&fenced)?;
    seen("powers", "localhost")?.is(&[("Seccomp", "2"), ("mkdir", "no"), ("root", "writable")])?;
    seen("open", "main")?.is(&[("Seccomp", "0")])?;
    seen("open", "own")?.is(&[("Seccomp", "2")])?;
    seen("sysctls", "main")?.is(&[("ports", "80 msgmax 65536")])?;

    // Whose namespaces they are. Those of the machine are those of this process, but for the network: the runtime has
    // one of its own here, so a node's network is what two pods share.
    let machine = |kind: &str| -> Result<String> {
        Ok(std::fs::read_link(format!("/proc/self/ns/{kind}"))?.to_string_lossy().into_owned())
    };
    // Of pods that go on: the number of a namespace that has ended is given to the next.
    member.wait_ready("here")?;
    member.wait_ready("there")?;
    for (kind, same) in [("net", true), ("ipc", true), ("pid", false)] {
        let of = |pod: &str, container: &str| -> Result<String> {
            let link = member.exec(pod, container, &["readlink", &format!("/proc/self/ns/{kind}")])?;
            Ok(link.trim_end().to_owned())
        };
        let (here, beside, there) = (of("here", "a")?, of("here", "b")?, of("there", "a")?);
        ensure!((here == beside) == same, "{kind} of two containers: {here} {beside}");
        ensure!(here != there, "{kind} of two pods: {here} {there}");
        ensure!(here.starts_with(kind) && here != machine(kind)?, "{kind} is the machine's: {here}");
    }
    plain.is(&[("ns-user", &machine("user")?)])?;
    for (pod, kind) in [("host-pid", "pid"), ("host-ipc", "ipc")] {
        seen(pod, "a")?.is(&[(&format!("ns-{kind}"), &machine(kind)?)])?;
        ensure!(seen(pod, "b")?.get("ns-net") != seen("host-network", "a")?.get("ns-net"), "{pod} is on the network");
    }
    let shared = seen("shared", "a")?;
    ensure!(shared.get("ns-pid") != machine("pid")?, "{shared:?}");
    seen("shared", "b")?.is(&[("ns-pid", shared.get("ns-pid"))])?;
    member.node.finish()
}

#[test]
fn run_as_non_root_holds_at_every_start() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let (numbered, named) = ("bulkhead.test/busybox-1000:1", "bulkhead.test/busybox-www:1");
    image::import_with_users(&lab, &[(numbered, "1000"), (named, "www")])?;
    let member = Member::start(&lab, &[], |node| node)?;
    let non_root = json!({"runAsNonRoot": true});
    // Fails once, then stays; each start says who it is.
    let script = "id -u >> /said/who; [ $(wc -l < /said/who) -ge 2 ] && exec sleep 3600; exit 1";
    let of = |image: Option<&str>, context: Value| {
        let mut main = json!({"name": "main", "command": ["sh", "-c", script], "securityContext": context,
            "volumeMounts": [{"name": "said", "mountPath": "/said"}]});
        if let Some(image) = image {
            main["image"] = json!(image);
            main["imagePullPolicy"] = json!("IfNotPresent");
        }
        json!({"securityContext": non_root, "containers": [main], "volumes": [{"name": "said", "emptyDir": {}}]})
    };
    member.create("image-user", &of(Some(numbered), json!({})))?;
    member.create("own-user", &of(None, json!({"runAsUser": 1001})))?;
    let refused = [
        ("root", of(None, json!({})), "container has runAsNonRoot and image will run as root (pod: \"root_default("),
        (
            "own-root",
            of(Some(numbered), json!({"runAsUser": 0})),
            "container's runAsUser breaks non-root policy (pod: \"own-root_default(",
        ),
        (
            "named",
            of(Some(named), json!({})),
            "container has runAsNonRoot and image has non-numeric user (www), cannot verify user is non-root (pod: \"named_default(",
        ),
        (
            "profile",
            of(None, json!({"runAsUser": 1, "seccompProfile": {"type": "Localhost", "localhostProfile": "none.json"}})),
            "",
        ),
    ];
    for (name, spec, text) in &refused {
        member.create(name, spec)?;
        if text.is_empty() {
            // The runtime cannot read a profile that is not there: nothing runs without one.
            member.wait_waiting(name, "main", "CreateContainerError")?;
            continue;
        }
        let message = member.wait_waiting(name, "main", "CreateContainerConfigError")?;
        ensure!(message.starts_with(text) && message.ends_with(", container: main)"), "{name}: {message}");
        member.wait_event(name, "Failed", |event| event == format!("Error: {message}"))?;
    }
    member.create("own-users", &json!({"hostUsers": false}))?;
    if lab.containerd().programs().release() == Release::V2_1 {
        member.wait_ready("own-users")?;
    } else {
        let unable =
            "Failed to create pod sandbox: can't set `spec.hostUsers: false`, runtime does not support user namespaces";
        member.wait_event("own-users", "FailedCreatePodSandBox", |event| event == unable)?;
    }

    // The second start, too: the image is there already, which has once made a root of its user.
    for (name, uid) in [("image-user", "1000"), ("own-user", "1001")] {
        member.wait(name, "it has started twice", |pod| {
            let status = &pod["status"]["containerStatuses"][0];
            status["restartCount"] == 1 && status["state"].get("running").is_some()
        })?;
        let who = member.exec(name, "main", &["cat", "/said/who"])?;
        ensure!(who == format!("{uid}\n{uid}\n"), "{name}: {who:?}");
    }
    member.node.finish()
}
