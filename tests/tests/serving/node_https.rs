//! The node's HTTPS server as a client meets it: its certificates and whose clients it believes, over restarts and
//! changes of files.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bulkhead_testkit::apiserver::Grant;
use bulkhead_testkit::apiserver::authority::{Authority, Pair};
use bulkhead_testkit::cluster::client::{Answer, Credential};
use bulkhead_testkit::https::Https;
use bulkhead_testkit::{LONG, Lab, Node, Pod, eventually, netns};
use bulkhead_tests::joined::Member;
use bulkhead_tests::lab;
use serde_json::json;

const HOUR: Duration = Duration::from_secs(3600);

/// The server of a node of the lab, reached from outside of its network namespace.
fn server(lab: &Lab, who: &Credential) -> Https {
    Https::new(SocketAddr::new(IpAddr::V4(lab.netns().address()), 10250), who)
}

/// Replaces a file in one step, as careful people do.
fn replace(path: &Path, content: &str) -> Result<()> {
    let draft = path.with_extension("draft");
    std::fs::write(&draft, content)?;
    std::fs::set_permissions(&draft, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&draft, path).with_context(|| format!("moving {} into place", path.display()))
}

fn admin(authority: &Authority) -> Result<Credential> {
    Ok(Credential::Certificate(authority.client("admin", "system:masters", HOUR)?))
}

fn is_refused(answer: &Answer) -> bool {
    answer.status == 401 && &*answer.body == b"Unauthorized"
}

fn wait_served(client: &Https) -> Result<()> {
    eventually("the node is served", LONG, || {
        let answer = client.get("/healthz/ping")?;
        ensure!(answer.status == 200, "{answer:?}");
        Ok(())
    })
}

fn log_has(node: &Node, text: &str) -> Result<()> {
    eventually(&format!("the node's log says {text:?}"), LONG, || {
        if std::fs::read_to_string(node.log())?.contains(text) { Ok(()) } else { bail!("it does not") }
    })
}

#[test]
fn a_certificate_of_its_own_outlives_everything_and_clients_authorities_change() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let (first, second) = (Authority::new()?, Authority::new()?);
    let ca = lab.folder().join("clients.crt");
    replace(&ca, &first.pem())?;
    let x509 = json!({"x509": {"clientCAFile": ca}, "webhook": {"enabled": false}, "anonymous": {"enabled": false}});
    let plan = || lab.node("alpha").config("authentication", x509.clone());
    let mut node = plan().start()?;
    node.write(&Pod::idle("bystander"))?;
    node.wait_running("bystander", 1)?;
    let before = node.fingerprint()?;

    let (client, stranger) = (server(&lab, &admin(&first)?), server(&lab, &admin(&second)?));
    wait_served(&client)?;
    ensure!(client.get("/pods")?.status == 200);
    let short = client.with(&Credential::Certificate(first.client("admin", "system:masters", Duration::ZERO)?));
    eventually("a certificate that has ended is refused", LONG, || {
        if is_refused(&short.get("/pods")?) { Ok(()) } else { bail!("it is not") }
    })?;
    for who in [&Credential::Nothing, &Credential::Token("x".into())] {
        let answer = client.with(who).get("/pods")?;
        ensure!(is_refused(&answer), "{answer:?}");
    }
    ensure!(is_refused(&stranger.get("/pods")?));

    let pki = node.certificates();
    let (crt, key) = (pki.join("kubelet.crt"), pki.join("kubelet.key"));
    for (file, mode) in [(&crt, 0o644), (&key, 0o600)] {
        let meta = std::fs::metadata(file)?;
        ensure!((meta.uid(), meta.gid(), meta.mode() & 0o7777) == (0, 0, mode), "{}: {meta:?}", file.display());
    }
    let trusted = client.clone().trusting(&std::fs::read_to_string(&crt)?, Some("alpha"));
    ensure!(trusted.get("/healthz/ping")?.status == 200, "the certificate names the node");
    ensure!(client.clone().over_http2().get("/healthz/ping")?.status == 200);

    // Killed: the same certificate at once again, and the port that it held ends nothing.
    for _ in 0..3 {
        node.kill_daemon("kubelet-statusd")?;
        node.wait_healthy()?;
        wait_served(&trusted)?;
    }
    // Other authorities, without a restart; what is broken changes nothing.
    replace(&ca, &second.pem())?;
    eventually("the other authority's clients are believed, and they alone", LONG, || {
        ensure!(stranger.get("/pods")?.status == 200 && is_refused(&client.get("/pods")?));
        Ok(())
    })?;
    replace(&ca, "-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n")?;
    log_has(&node, "what was there before stays in force")?;
    ensure!(stranger.get("/pods")?.status == 200 && is_refused(&client.get("/pods")?));
    replace(&ca, &first.pem())?;
    node.stop()?;

    // Somebody else has the port: the node says so and ends.
    let address = SocketAddr::new(IpAddr::V4([0, 0, 0, 0].into()), 10250);
    let held = netns::run_in(&lab.netns().path(), || Ok(TcpListener::bind(address)?))?;
    let (status, output) = plan().run_to_end()?;
    ensure!(status.code() == Some(1), "{status}: {output}");
    ensure!(output.contains("Failed to listen and serve on 0.0.0.0:10250"), "{output}");
    drop(held);

    node.launch()?;
    node.wait_healthy()?;
    wait_served(&trusted)?;
    ensure!(node.fingerprint()? == before, "the pod has not noticed");
    node.finish()
}

#[test]
fn a_configured_certificate_and_webhook_authorization() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let own = Authority::new()?;
    let (crt, key) = (lab.folder().join("serving.crt"), lab.folder().join("serving.key"));
    let put = |pair: &Pair| {
        replace(&crt, &pair.certificate)?;
        replace(&key, &pair.key)
    };
    put(&own.server(&["first.example"], &[])?)?;
    let member = Member::start(&lab, &[], |node| {
        node.config("tlsCertFile", json!(crt))
            .config("tlsPrivateKeyFile", json!(key))
            .config("tlsMinVersion", json!("VersionTLS13"))
    })?;
    let cluster = &member.cluster;
    let admin = Credential::Certificate(cluster.client_certificate("kubernetes-admin", "system:masters", HOUR)?);
    let client = server(&lab, &admin).trusting(&own.pem(), Some("first.example"));
    wait_served(&client)?;
    let insecure = server(&lab, &admin);
    let old = insecure.clone().with_version(&tokio_rustls::rustls::version::TLS12);
    ensure!(old.get("/healthz/ping").is_err(), "TLS 1.2 is spoken");
    ensure!(!member.node.certificates().join("kubelet.crt").exists(), "it made one of its own");

    // A certificate of the cluster's that nobody gave any rights; accounts with a few.
    let guest = Credential::Certificate(cluster.client_certificate("guest", "guests", HOUR)?);
    let answer = insecure.with(&guest).get("/metrics")?;
    let words = "Forbidden (user=guest, verb=get, resource=nodes, subresource(s)=[metrics])\n";
    ensure!(answer.status == 403 && &*answer.body == words.as_bytes(), "{answer:?}");
    for name in ["reader", "runner"] {
        cluster.create(&json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": name, "namespace": "default"}}))?;
    }
    let account = |name: &str| format!("system:serviceaccount:default:{name}");
    if let Ok(stand_in) = cluster.server() {
        stand_in.grant(Grant::new(&account("reader"), &["get"], &["nodes/proxy", "nodes/metrics"]));
        stand_in.grant(Grant::new(&account("runner"), &["create"], &["nodes/proxy"]));
        let of =
            |name: &str| Ok::<_, anyhow::Error>(Credential::Token(cluster.service_account_token("default", name)?));
        let (reader, runner) = (insecure.with(&of("reader")?), insecure.with(&of("runner")?));
        ensure!(reader.get("/metrics")?.status == 200);
        ensure!(reader.get("/containerLogs/default/none/main")?.status == 404);
        let exec = "/exec/default/none/main?command=id&output=1";
        let refused = reader.get(exec)?;
        let words =
            format!("Forbidden (user={}, verb=create, resource=nodes, subresource(s)=[proxy])\n", account("reader"));
        ensure!(refused.status == 403 && &*refused.body == words.as_bytes(), "{refused:?}");
        ensure!(runner.get(exec)?.status == 404, "{:?}", runner.get(exec)?);
        ensure!(is_refused(&insecure.with(&Credential::Token("nobody's".into())).get("/metrics")?));
    }

    // Another pair, without a restart; half a pair and nonsense change nothing.
    put(&own.server(&["second.example"], &[])?)?;
    let renewed = server(&lab, &admin).trusting(&own.pem(), Some("second.example"));
    wait_served(&renewed)?;
    replace(&key, &own.server(&["third.example"], &[])?.key)?;
    log_has(&member.node, "certificate and key cannot be used together")?;
    replace(&crt, "nothing")?;
    log_has(&member.node, "has no certificate in PEM")?;
    wait_served(&renewed)?;
    member.node.finish()
}
