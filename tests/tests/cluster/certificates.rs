//! Certificates that a node asks for: the first with the token that it begins with, the next before one ends, those of its
//! server. Whatever happens meanwhile, pods do not notice, and nobody but kubelet-statusd ever shows the token.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::apiserver::authority::requested;
use bulkhead_testkit::apiserver::faults::{Action, Rule};
use bulkhead_testkit::apiserver::identity::User;
use bulkhead_testkit::apiserver::{Approval, Config, StaticToken};
use bulkhead_testkit::cluster::client::Credential;
use bulkhead_testkit::cluster::kubeconfig;
use bulkhead_testkit::https::Https;
use bulkhead_testkit::{Cluster, LONG, Lab, Node, Pod, eventually};
use bulkhead_tests::followers::Followers;
use bulkhead_tests::joined::{NODE, condition, is_no_storm, never_stirred, one_life, pod, process_of, wait_ready};
use bulkhead_tests::lab;
use serde_json::{Value, json};

const USER: &str = "system:node:alpha";
const REQUESTS: &str = "certificatesigningrequests";

/// The files of a node's certificates.
struct Files {
    pki: PathBuf,
    kubeconfig: PathBuf,
}

impl Files {
    fn of(node: &Node) -> Result<Self> {
        let words = node.command_line()?;
        let kubeconfig = words.iter().find_map(|word| word.strip_prefix("--kubeconfig=")).context("no --kubeconfig")?;
        Ok(Self { pki: node.certificates(), kubeconfig: kubeconfig.into() })
    }

    fn link(&self, prefix: &str) -> PathBuf {
        self.pki.join(format!("{prefix}-current.pem"))
    }

    fn pending(&self) -> PathBuf {
        self.pki.join("kubelet-client.key.tmp")
    }

    /// The file that is in force: an absolute path, with the time in its name, for root alone.
    fn in_force(&self, prefix: &str) -> Result<PathBuf> {
        let target = std::fs::read_link(self.link(prefix)).context("the link to the pair in force")?;
        let name = target.file_name().context("a name")?.to_string_lossy().into_owned();
        let dated = name.strip_prefix(&format!("{prefix}-")).and_then(|rest| rest.strip_suffix(".pem"));
        let dated = dated.with_context(|| format!("{name} is not named as upstream names it"))?;
        let lengths: Vec<usize> =
            dated.split('-').map(|part| part.chars().filter(char::is_ascii_digit).count()).collect();
        ensure!(lengths == [4, 2, 2, 2, 2, 2] && dated.len() == 19, "the time in {name}");
        ensure!(target.parent() == Some(&self.pki), "{} is elsewhere", target.display());
        is_roots_alone(&target)?;
        let text = std::fs::read_to_string(&target)?;
        ensure!(text.starts_with("-----BEGIN CERTIFICATE-----\n"), "certificates come first");
        ensure!(text.trim_end().ends_with("-----END EC PRIVATE KEY-----"), "the key comes last");
        Ok(target)
    }

    /// How many pairs there are, in force or not.
    fn pairs(&self, prefix: &str) -> Result<usize> {
        let names = std::fs::read_dir(&self.pki)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names.filter(|name| name.starts_with(&format!("{prefix}-2"))).count())
    }
}

fn is_roots_alone(path: &Path) -> Result<()> {
    let meta = std::fs::symlink_metadata(path).with_context(|| path.display().to_string())?;
    let (mode, owner) = (meta.permissions().mode() & 0o7777, (meta.uid(), meta.gid()));
    ensure!((mode, owner) == (0o600, (0, 0)), "{}: mode {mode:o}, owner {owner:?}", path.display());
    Ok(())
}

fn requests(cluster: &Cluster) -> Result<Vec<Value>> {
    cluster.list(REQUESTS, None)
}

/// Waits for a request that is none of `known`.
fn another_request(cluster: &Cluster, known: &[String]) -> Result<Value> {
    let one = eventually("the node asks", LONG, || {
        let all = requests(cluster)?;
        all.into_iter().find(|one| !known.iter().any(|name| one["metadata"]["name"] == **name)).context("no request")
    })?;
    Ok(one)
}

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

fn approve(cluster: &Cluster, request: &Value) -> Result<()> {
    cluster.decide_request(&name(request), "Approved", "KubectlApprove", "This CSR was approved by a test.")
}

fn is_ready(cluster: &Cluster) -> Result<()> {
    cluster.wait_for("nodes", "", NODE, "it is ready", |node| condition(node, "Ready") == "True").map(|_| ())
}

/// Waits until the node's log has a line with all of these.
fn wait_for_line(node: &Node, words: &[&str]) -> Result<()> {
    eventually(&format!("the log has {words:?}"), LONG, || {
        let log = std::fs::read_to_string(node.log())?;
        ensure!(log.lines().any(|line| words.iter().all(|word| line.contains(word))), "no such line");
        Ok(())
    })
}

#[test]
fn tls_bootstrap_begins_with_a_token() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.stand_in(Config { approval: Approval::Manual, ..Config::default() })?;
    let builder = lab.node(NODE).bootstraps_into(&cluster)?.config("rotateCertificates", json!(true));
    let mut node = builder.start()?;
    let files = Files::of(&node)?;
    node.write(&Pod::idle("static"))?;
    node.wait_running("static", 1)?;
    let before = node.fingerprint()?;

    let request = another_request(&cluster, &[])?;
    ensure!(name(&request).starts_with("node-csr-") && name(&request).len() == 52, "{request:#}");
    ensure!(request["spec"]["username"] == "system:bootstrap:alpha", "{request:#}");
    ensure!(request["spec"]["signerName"] == "kubernetes.io/kube-apiserver-client-kubelet", "{request:#}");
    ensure!(request["spec"]["usages"] == json!(["digital signature", "client auth"]), "{request:#}");
    is_roots_alone(&files.pending())?;
    is_roots_alone(&files.kubeconfig)?;
    let key = std::fs::read(files.pending())?;
    ensure!(std::fs::symlink_metadata(files.link("kubelet-client")).is_err(), "nothing is signed yet");

    // Nobody answers yet. Each process dies, then all of them: the same request with the same key goes on.
    for daemon in ["kubelet-statusd", "kubelet-volnetd"] {
        node.kill_daemon(daemon)?;
        node.wait_healthy()?;
    }
    node.kill_everything();
    let mark = cluster.log()?.mark();
    node.launch()?;
    node.wait_healthy()?;
    eventually("the request is waited for again", LONG, || {
        let asked = cluster.log()?.after(mark);
        ensure!(asked.iter().any(|one| one.resource == REQUESTS && one.verb == "watch"), "no watch");
        Ok(())
    })?;
    let words = node.command_line()?;
    let bootstrap =
        words.iter().find_map(|word| word.strip_prefix("--bootstrap-kubeconfig=")).context("no bootstrap")?;
    std::fs::remove_file(bootstrap).context("kubeadm takes the bootstrap kubeconfig away")?;
    ensure!(requests(&cluster)?.len() == 1 && std::fs::read(files.pending())? == key, "it asked anew");

    approve(&cluster, &request)?;
    is_ready(&cluster)?;
    wait_ready(&cluster, &node.pod_name("static"))?;
    let pair = files.in_force("kubelet-client")?;
    let kept = String::from_utf8(key)?;
    ensure!(std::fs::read_to_string(&pair)?.contains(kept.trim()), "the key that asked");
    ensure!(!files.pending().exists(), "the pending key is still there");
    let link = files.link("kubelet-client");
    let kubeconfig = std::fs::read_to_string(&files.kubeconfig)?;
    for line in [
        format!("    server: {}", cluster.url()),
        "current-context: default-context".to_owned(),
        "- name: default-auth".to_owned(),
        format!("    client-certificate: {}", link.display()),
        format!("    client-key: {}", link.display()),
    ] {
        ensure!(kubeconfig.lines().any(|one| one == line), "{line:?} in\n{kubeconfig}");
    }
    ensure!(!kubeconfig.contains("token"), "the token is not written anywhere");
    one_life(&cluster, &node, "joined")?;

    // Without the bootstrap kubeconfig everything starts again.
    node.stop()?;
    node.launch()?;
    node.wait_healthy()?;
    one_life(&cluster, &node, "later")?;
    ensure!(requests(&cluster)?.len() == 1, "it asked again");
    ensure!(files.in_force("kubelet-client")? == pair, "it is another pair");

    let all = cluster.requests()?;
    let with_token: Vec<_> = all.iter().filter(|one| one.user.starts_with("system:bootstrap:")).collect();
    ensure!(!with_token.is_empty());
    for one in with_token {
        ensure!(process_of(one) == "kubelet-statusd" && one.resource == REQUESTS, "{one:?} showed the token");
    }
    let posted =
        all.iter().filter(|one| one.resource == REQUESTS && one.verb == "create" && one.user != "admin").count();
    println!("{posted} requests were sent, one stands");
    is_no_storm(&all, 50, 100)?;
    let now: Vec<_> = node.fingerprint()?.into_iter().filter(|one| before.contains(one)).collect();
    ensure!(now == before, "{before:#?} became {now:#?}");
    node.finish()
}

#[test]
fn node_registration_is_retried_after_a_refusal() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.stand_in(Config { approval: Approval::Manual, anonymous: None, ..Config::default() })?;
    let builder = lab.node(NODE).bootstraps_into(&cluster)?;
    let bootstrap = cluster.folder().join("bootstrap-alpha.kubeconfig");
    cluster.write_kubeconfig("bootstrap-alpha", "bootstrap", &Credential::Token("no-such-token".to_owned()))?;
    let node = builder.start()?;
    let files = Files::of(&node)?;
    node.write(&Pod::idle("static"))?;
    node.wait_running("static", 1)?;
    let before = node.fingerprint()?;
    wait_for_line(&node, &["failed to get a client certificate, will retry", "Unauthorized"])?;
    ensure!(requests(&cluster)?.is_empty());

    // A token that counts, and a request that is denied: the next one has another key.
    let user = User::new("system:bootstrap:abcdef", &["system:bootstrappers"]);
    cluster.server()?.add_token(StaticToken { token: "abcdef.0123456789abcdef".to_owned(), user });
    let token = Credential::Token("abcdef.0123456789abcdef".to_owned());
    cluster.write_kubeconfig("bootstrap-alpha", "bootstrap", &token)?;
    let first = another_request(&cluster, &[])?;
    let key = std::fs::read(files.pending())?;
    cluster.decide_request(&name(&first), "Denied", "NotOurs", "unknown machine")?;
    wait_for_line(&node, &["is denied, reason: NotOurs, message: unknown machine"])?;
    let second = another_request(&cluster, &[name(&first)])?;
    ensure!(std::fs::read(files.pending())? != key, "the same key again");

    // Somebody cleans up before it is answered.
    cluster.delete(REQUESTS, "", &name(&second), None)?;
    wait_for_line(&node, &["was deleted"])?;
    let third = another_request(&cluster, &[name(&first)])?;
    ensure!(name(&third) == name(&second) && third["metadata"]["uid"] != second["metadata"]["uid"], "{third:#}");
    approve(&cluster, &third)?;
    is_ready(&cluster)?;
    files.in_force("kubelet-client")?;
    one_life(&cluster, &node, "joined")?;
    ensure!(bootstrap.exists());
    let log = std::fs::read_to_string(node.log())?;
    ensure!(!log.contains("0123456789abcdef") && !log.contains("no-such-token"), "a token is in the log");
    let now: Vec<_> = node.fingerprint()?.into_iter().filter(|one| before.contains(one)).collect();
    ensure!(now == before, "{before:#?} became {now:#?}");
    node.finish()
}

/// How long what the server signs is good here: renewed after 17 to 22 s.
const SHORT_LIFE: Duration = Duration::from_secs(24);

fn short_lived(approval: Approval) -> Config {
    Config { approval, certificate_lifetime: SHORT_LIFE, certificates_backdated: Duration::ZERO, ..Config::default() }
}

/// The node's HTTPS server and the cluster's administrator.
fn server(lab: &Lab, cluster: &Cluster) -> Result<Https> {
    let admin = cluster.client_certificate("kubernetes-admin", "system:masters", Duration::from_secs(24 * 3600))?;
    Ok(Https::new(SocketAddr::new(lab.netns().address().into(), 10250), &Credential::Certificate(admin)))
}

/// The value of a series without labels.
fn metric(https: &Https, name: &str) -> Result<f64> {
    let answer = https.get("/metrics")?;
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} "))).map(str::to_owned);
    Ok(line.with_context(|| format!("no series {name}"))?.parse()?)
}

/// As `kubeadm init` leaves a node: its first certificate is inline in the kubeconfig.
#[test]
fn client_certificates_are_renewed_before_they_end() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.stand_in(short_lived(Approval::Clients))?;
    let builder = lab.node(NODE).joins(&cluster)?.config("rotateCertificates", json!(true));
    let first = cluster.node_certificate(NODE, Duration::from_secs(3600))?;
    cluster.write_kubeconfig("node-alpha", USER, &Credential::Certificate(first.clone()))?;
    // The first renewal fails once: it is tried again, and counted.
    let failing = Rule::new(Action::Answer { code: 500, retry_after_seconds: None });
    cluster.faults()?.add(failing.verb("create").resource(REQUESTS).times(1));
    let node = builder.start()?;
    let files = Files::of(&node)?;
    let kubeconfig = std::fs::read_to_string(&files.kubeconfig)?;
    cluster.create(&pod(
        &node,
        "talks",
        "i=1; while true; do echo line $i; i=$((i+1)); sleep 0.2; done",
        &json!({}),
    ))?;
    wait_ready(&cluster, "talks")?;
    let https = server(&lab, &cluster)?;
    let mut followers = Followers::start(&https, &["talks".to_owned()]);
    let before = node.fingerprint()?;

    let second = eventually("the first certificate is kept and replaced", LONG, || {
        ensure!(files.pairs("kubelet-client")? >= 2, "there is one");
        // The second pair is there a moment before the link shows it.
        let second = files.in_force("kubelet-client")?;
        ensure!(!std::fs::read_to_string(&second)?.contains(first.certificate.trim()), "it is the first one still");
        Ok(second)
    })?;
    ensure!(std::fs::read_to_string(&files.kubeconfig)? == kubeconfig, "the operator's kubeconfig is left alone");
    ensure!(metric(&https, "kubelet_certificate_manager_client_expiration_renew_errors")? >= 1.0);
    // Whoever still showed the first one would be refused.
    cluster.server()?.revoke(&first)?;
    let mark = cluster.log()?.mark();
    one_life(&cluster, &node, "replaced")?;
    let third = eventually("the next renewal", LONG, || {
        let now = files.in_force("kubelet-client")?;
        ensure!(now != second, "not yet");
        Ok(now)
    })?;
    let left = metric(&https, "kubelet_certificate_manager_client_ttl_seconds")?;
    ensure!((0.0..=24.0).contains(&left), "{left} s are left");
    // When there is one more the second has ended: both processes speak with newer ones.
    eventually("one more renewal", LONG, || {
        ensure!(files.in_force("kubelet-client")? != third, "not yet");
        Ok(())
    })?;
    one_life(&cluster, &node, "renewed")?;
    let refused: Vec<_> = cluster.log()?.after(mark).into_iter().filter(|one| one.status == 401).collect();
    ensure!(refused.len() <= 6, "{refused:#?}");
    // Renewals go on: which three they are changes under our eyes.
    eventually("the last three pairs stay, the first one besides, and no other", LONG, || {
        let pairs = files.pairs("kubelet-client")?;
        ensure!(pairs == 4, "{pairs} pairs");
        Ok(())
    })?;
    for request in requests(&cluster)? {
        ensure!(name(&request).len() == 9 && name(&request).starts_with("csr-"), "{request:#}");
        ensure!(request["spec"]["username"] == USER, "{request:#}");
    }
    followers.check()?;
    let followed = followers.finish()?;
    println!("{} pairs, followed {followed:?}", files.pairs("kubelet-client")?);
    never_stirred(&cluster, "talks")?;
    let now: Vec<_> = node.fingerprint()?.into_iter().filter(|one| before.contains(one)).collect();
    ensure!(now == before, "{before:#?} became {now:#?}");
    is_no_storm(&cluster.requests()?, 50, 100)?;
    node.finish()
}

#[test]
fn serving_certificates_are_asked_for_and_renewed() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.stand_in(short_lived(Approval::Clients))?;
    let mut node = lab.node(NODE).joins(&cluster)?.config("serverTLSBootstrap", json!(true)).start()?;
    let files = Files::of(&node)?;
    let https = server(&lab, &cluster)?;
    let request = another_request(&cluster, &[])?;
    ensure!(request["spec"]["signerName"] == "kubernetes.io/kubelet-serving", "{request:#}");
    ensure!(request["spec"]["usages"] == json!(["digital signature", "server auth"]), "{request:#}");
    ensure!(request["spec"]["username"] == USER && name(&request).starts_with("csr-"), "{request:#}");
    let asked = requested(&request["spec"])?;
    ensure!(asked.common_name == USER && asked.dns_names == [NODE] && asked.addresses >= 1, "{asked:?}");
    // The node lives without one; its server has nothing to show, and says so at once.
    is_ready(&cluster)?;
    ensure!(https.get("/healthz").is_err(), "it was served without a certificate");
    ensure!(!files.pki.join("kubelet.crt").exists(), "it made one of its own");
    node.kill_daemon("kubelet-statusd")?;
    node.wait_healthy()?;
    wait_for_line(&node, &["going on with the request of an earlier start", &name(&request)])?;
    ensure!(requests(&cluster)?.len() == 1, "it asked again");

    approve(&cluster, &request)?;
    let trusting = https.trusting(&cluster.ca(), None);
    let served = |what: &str| {
        eventually(what, LONG, || {
            let answer = trusting.get("/healthz")?;
            ensure!(answer.status == 200, "{answer:?}");
            Ok(())
        })
    };
    served("the server shows what was signed")?;
    let first = files.in_force("kubelet-server")?;
    // Two starts of statusd came before, perhaps within one second.
    let settled = cluster.requests()?.len();
    let left = metric(&trusting, "kubelet_certificate_manager_server_ttl_seconds")?;
    ensure!((0.0..=24.0).contains(&left), "{left} s are left");
    ensure!(metric(&trusting, "kubelet_certificate_manager_server_rotation_seconds_count")? == 0.0);
    ensure!(metric(&trusting, "kubelet_server_expiration_renew_errors")? == 0.0);

    let next = another_request(&cluster, &[name(&request)])?;
    ensure!(next["spec"]["request"] != request["spec"]["request"], "the same request");
    approve(&cluster, &next)?;
    eventually("the next pair is in force", LONG, || {
        ensure!(files.in_force("kubelet-server")? != first, "not yet");
        Ok(())
    })?;
    served("the server shows the next one")?;
    ensure!(metric(&trusting, "kubelet_certificate_manager_server_rotation_seconds_count")? >= 1.0);
    is_no_storm(&cluster.requests()?[settled..], 50, 100)?;
    node.finish()
}

/// Waits for a request of this user that is none of `known`.
fn request_of(cluster: &Cluster, user: &str, known: &[String]) -> Result<Value> {
    eventually(&format!("{user} asks"), LONG, || {
        let all = requests(cluster)?;
        let ours = |one: &&Value| one["spec"]["username"] == user && !known.contains(&name(one));
        all.iter().find(ours).cloned().with_context(|| format!("{all:#?}"))
    })
}

/// Nobody approves its renewals: when its certificate ends, it begins anew with what it began with, running or stopped.
#[test]
fn a_node_whose_certificate_has_ended_begins_anew() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.stand_in(Config { approval: Approval::Manual, ..Config::default() })?;
    let builder = lab.node(NODE).bootstraps_into(&cluster)?.config("rotateCertificates", json!(true));
    let mut node = builder.prepare()?;
    let files = Files::of(&node)?;
    // It has joined long ago.
    let old = Credential::Certificate(cluster.node_certificate(NODE, Duration::from_secs(15))?);
    std::fs::copy(cluster.write_kubeconfig("old", USER, &old)?, &files.kubeconfig)?;
    node.launch()?;
    node.wait_healthy()?;
    node.write(&Pod::idle("static"))?;
    node.wait_running("static", 1)?;
    let before = node.fingerprint()?;
    let renewal = request_of(&cluster, USER, &[])?;

    let first = request_of(&cluster, "system:bootstrap:alpha", &[])?;
    approve(&cluster, &first)?;
    is_ready(&cluster)?;
    one_life(&cluster, &node, "anew")?;
    let pair = files.in_force("kubelet-client")?;
    let kubeconfig = std::fs::read_to_string(&files.kubeconfig)?;
    ensure!(kubeconfig.contains(&files.link("kubelet-client").display().to_string()), "{kubeconfig}");
    ensure!(!files.pending().exists() && name(&renewal) != name(&first), "{renewal:#}");

    // It was off for too long.
    node.stop()?;
    let ended = cluster.node_certificate(NODE, Duration::from_secs(1))?;
    std::fs::write(&pair, format!("{}{}", ended.certificate, ended.key))?;
    eventually("the certificate has ended", LONG, || {
        let written = std::fs::metadata(&pair)?.modified()?.elapsed()?;
        ensure!(written > Duration::from_secs(2), "not yet");
        Ok(())
    })?;
    node.launch()?;
    node.wait_healthy()?;
    let second = request_of(&cluster, "system:bootstrap:alpha", &[name(&first)])?;
    approve(&cluster, &second)?;
    is_ready(&cluster)?;
    one_life(&cluster, &node, "again")?;
    ensure!(files.in_force("kubelet-client")? != pair, "it is the same pair");
    let now: Vec<_> = node.fingerprint()?.into_iter().filter(|one| before.contains(one)).collect();
    ensure!(now == before, "{before:#?} became {now:#?}");
    is_no_storm(&cluster.requests()?, 50, 100)?;
    node.finish()
}

/// The kubeconfig that a node begins with may name files, seen from its own folder: of the authority, of a token, of a
/// certificate with its key.
#[test]
fn a_node_begins_with_files() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.stand_in(Config { approval: Approval::Clients, ..Config::default() })?;
    let mut node = lab.node(NODE).bootstraps_into(&cluster)?.config("rotateCertificates", json!(true)).prepare()?;
    let files = Files::of(&node)?;
    let bootstrap = cluster.folder().join("bootstrap-alpha.kubeconfig");
    let token: Value = serde_json::from_slice(&std::fs::read(&bootstrap)?)?;
    let token = token["users"][0]["user"]["token"].as_str().context("no token")?.to_owned();
    let begins_with = |user: Value| -> Result<()> {
        let mut content = kubeconfig::with_user(&cluster.url(), &cluster.ca(), "bootstrap", user);
        content["clusters"][0]["cluster"] = json!({"server": cluster.url(), "certificate-authority": "begin/ca.crt"});
        kubeconfig::write(&bootstrap, &content.to_string())
    };
    std::fs::create_dir(cluster.folder().join("begin"))?;
    let put = |file: &str, text: &str| kubeconfig::write(&cluster.folder().join("begin").join(file), text);
    put("ca.crt", &cluster.ca())?;
    put("token", &format!("{token}\n"))?;
    begins_with(json!({"tokenFile": "begin/token"}))?;
    node.launch()?;
    node.wait_healthy()?;
    is_ready(&cluster)?;
    let first = request_of(&cluster, "system:bootstrap:alpha", &[])?;
    let authority = cluster.folder().join("begin/ca.crt").display().to_string();
    let joined = std::fs::read_to_string(&files.kubeconfig)?;
    ensure!(joined.contains(&format!("certificate-authority: {authority}")), "{joined}");
    one_life(&cluster, &node, "with-a-token")?;

    // The same machine, made anew: what it has is a certificate.
    node.stop()?;
    std::fs::remove_file(&files.kubeconfig)?;
    std::fs::remove_dir_all(&files.pki)?;
    std::fs::remove_file(cluster.folder().join("begin/token"))?;
    let pair =
        cluster.client_certificate("system:bootstrap:files", "system:bootstrappers", Duration::from_secs(3600))?;
    put("client.crt", &pair.certificate)?;
    put("client.key", &pair.key)?;
    begins_with(json!({"client-certificate": "begin/client.crt", "client-key": "begin/client.key"}))?;
    node.launch()?;
    node.wait_healthy()?;
    request_of(&cluster, "system:bootstrap:files", &[name(&first)])?;
    eventually("its certificate is in force", LONG, || files.in_force("kubelet-client").map(drop))?;
    one_life(&cluster, &node, "with-a-certificate")?;
    let log = std::fs::read_to_string(node.log())?;
    ensure!(!log.contains(&token) && !log.contains("PRIVATE KEY"), "a credential is in the log");
    node.finish()
}
