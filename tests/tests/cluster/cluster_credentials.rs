//! A member of a cluster whose credentials come late, break, are replaced and are refused: it goes on with what it has,
//! takes what is new, and pods do not notice.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::apiserver::authority::Pair;
use bulkhead_testkit::apiserver::identity::{NODES, User};
use bulkhead_testkit::apiserver::{Config, StaticToken};
use bulkhead_testkit::cluster::client::Credential;
use bulkhead_testkit::cluster::kubeconfig;
use bulkhead_testkit::{Cluster, Pod};
use bulkhead_tests::joined::{NODE, condition, is_no_storm, never_stirred, one_life, wait_ready};
use bulkhead_tests::lab;
use serde_json::json;

const USER: &str = "system:node:alpha";

/// The node's kubeconfig and the files that it may name.
struct Files<'a> {
    cluster: &'a Cluster,
}

impl Files<'_> {
    fn path(&self, file: &str) -> PathBuf {
        self.cluster.folder().join(file)
    }

    fn kubeconfig(&self) -> PathBuf {
        self.path("node-alpha.kubeconfig")
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        kubeconfig::write(&self.path(file), text)
    }

    /// A certificate and its key, one file after the other.
    fn write_pair(&self, pair: &Pair) -> Result<()> {
        self.write("client.crt", &pair.certificate)?;
        self.write("client.key", &pair.key)
    }

    /// A kubeconfig that names files.
    fn write_naming(&self, user: serde_json::Value) -> Result<()> {
        let content = kubeconfig::with_user(&self.cluster.url(), &self.cluster.ca(), USER, user);
        kubeconfig::write(&self.kubeconfig(), &content.to_string())
    }
}

fn pair(cluster: &Cluster) -> Result<Pair> {
    cluster.node_certificate(NODE, std::time::Duration::from_secs(3600))
}

fn token(cluster: &Cluster, token: &str) -> Result<()> {
    cluster.server()?.add_token(StaticToken { token: token.to_owned(), user: User::new(USER, &[NODES]) });
    Ok(())
}

#[test]
fn credentials_come_late_break_and_are_replaced() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.stand_in(Config::default())?;
    let files = Files { cluster: &cluster };
    let builder = lab.node(NODE).joins(&cluster)?;
    std::fs::remove_file(files.kubeconfig()).context("no kubeconfig yet")?;
    let node = builder.start()?;
    node.write(&Pod::idle("static"))?;
    node.wait_running("static", 1)?;
    let before = node.fingerprint()?;

    files.write("node-alpha.kubeconfig", "{ this is: no kubeconfig")?;
    let first = pair(&cluster)?;
    files.write_pair(&first)?;
    let naming = json!({"client-certificate": files.path("client.crt"), "client-key": files.path("client.key")});
    files.write_naming(naming.clone())?;
    wait_ready(&cluster, &node.pod_name("static"))?;
    cluster.wait_for("nodes", "", NODE, "it is ready", |node| condition(node, "Ready") == "True")?;
    one_life(&cluster, &node, "late")?;

    // The new certificate of the same authority; the old one is refused from then on.
    let second = pair(&cluster)?;
    files.write_pair(&second)?;
    cluster.server()?.revoke(&first)?;
    one_life(&cluster, &node, "rotated")?;

    // Refused first, replaced then: nobody tells the node but the server's 401.
    cluster.server()?.revoke(&second)?;
    let third = pair(&cluster)?;
    files.write_pair(&third)?;
    one_life(&cluster, &node, "replaced")?;

    // What cannot be used changes nothing.
    for (name, content) in [("garbage", "\u{0}\u{1}"), ("empty", ""), ("contextless", "{\"kind\": \"Config\"}")] {
        files.write("node-alpha.kubeconfig", content)?;
        one_life(&cluster, &node, name)?;
    }
    std::fs::remove_file(files.kubeconfig())?;
    one_life(&cluster, &node, "missing")?;
    files.write("client.key", &first.key)?;
    files.write_naming(naming)?;
    one_life(&cluster, &node, "mismatch")?;

    // A kubeconfig with a token's file, then another token in it.
    token(&cluster, "first-token")?;
    files.write("token", "first-token\n")?;
    files.write_naming(json!({"tokenFile": files.path("token")}))?;
    cluster.server()?.revoke(&third)?;
    one_life(&cluster, &node, "token")?;
    token(&cluster, "second-token")?;
    files.write("token", "second-token")?;
    cluster.server()?.remove_token("first-token");
    one_life(&cluster, &node, "token-replaced")?;
    cluster.kubeconfig_for_node(NODE)?;
    cluster.server()?.remove_token("second-token");
    one_life(&cluster, &node, "inline")?;

    let requests = cluster.requests()?;
    let refused = requests.iter().filter(|one| one.status == 401).count();
    println!("{refused} of {} requests were refused", requests.len());
    ensure!(refused <= 60, "{refused} requests were refused");
    is_no_storm(&requests, 50, 100)?;
    let now = node.fingerprint()?;
    ensure!(now == before, "{before:#?} became {now:#?}");
    never_stirred(&cluster, &node.pod_name("static"))?;
    node.finish()
}

#[test]
fn a_certificate_that_ends_before_it_is_replaced() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.stand_in(Config::default())?;
    let node = lab.node(NODE).joins(&cluster)?.start()?;
    one_life(&cluster, &node, "before")?;
    node.write(&Pod::idle("static"))?;
    wait_ready(&cluster, &node.pod_name("static"))?;
    let before = node.fingerprint()?;
    // For the server a year and a day has passed; our own certificate has ended.
    cluster.server()?.clock().set_offset_seconds(366 * 24 * 3600);
    let mark = cluster.log()?.mark();
    node.write(&Pod::idle("meanwhile"))?;
    node.wait_running("meanwhile", 1)?;
    bulkhead_testkit::eventually("the server refuses the node", bulkhead_testkit::LONG, || {
        ensure!(cluster.log()?.after(mark).iter().any(|one| one.status == 401), "no request was refused");
        Ok(())
    })?;
    cluster.server()?.clock().set_offset_seconds(0);
    let renewed = Credential::Certificate(pair(&cluster)?);
    cluster.write_kubeconfig("node-alpha", USER, &renewed)?;
    wait_ready(&cluster, &node.pod_name("meanwhile"))?;
    let now: Vec<_> = node.fingerprint()?.into_iter().filter(|one| before.contains(one)).collect();
    ensure!(now == before, "{before:#?} became {now:#?}");
    node.finish()
}

#[test]
fn a_program_gives_the_credentials() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let cluster = lab.stand_in(Config::default())?;
    let files = Files { cluster: &cluster };
    // The daemons' users run it: it has to be in a folder that everybody may enter.
    let folder = tempfile::tempdir()?;
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
    let (program, answer) = (folder.path().join("credentials"), folder.path().join("answer.json"));
    let give = |text: &str| -> Result<()> {
        let credential = json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
            "status": {"token": text}});
        let next = folder.path().join("next.json");
        std::fs::write(&next, credential.to_string())?;
        std::fs::set_permissions(&next, Permissions::from_mode(0o644))?;
        std::fs::rename(&next, &answer).context("replacing the answer")
    };
    std::fs::write(&program, format!("#!/bin/sh\ntest \"$WHO\" = node || exit 3\nexec cat {}\n", answer.display()))?;
    std::fs::set_permissions(&program, Permissions::from_mode(0o755))?;
    token(&cluster, "first-token")?;
    give("first-token")?;
    let builder = lab.node(NODE).joins(&cluster)?;
    files.write_naming(json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
        "command": program, "env": [{"name": "WHO", "value": "node"}]}}))?;
    let node = builder.start()?;
    one_life(&cluster, &node, "program")?;

    // The server refuses what the program said last: it is asked again.
    token(&cluster, "second-token")?;
    give("second-token")?;
    cluster.server()?.remove_token("first-token");
    one_life(&cluster, &node, "asked-again")?;
    is_no_storm(&cluster.requests()?, 50, 100)?;
    node.finish()
}
