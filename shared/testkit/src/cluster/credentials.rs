//! What people, programs and nodes show of themselves: certificates, tokens, and the files that they are in.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;

use super::client::Credential;
use super::{Cluster, YEAR, kubeconfig};
use bulkhead_apiserver::StaticToken;
use bulkhead_apiserver::authority::Pair;
use bulkhead_apiserver::identity::{MASTERS, NODES, User};
use bulkhead_apiserver::resources::named;

impl Cluster {
    /// A node's client certificate.
    ///
    /// # Errors
    /// No randomness.
    pub fn node_certificate(&self, node: &str, lifetime: Duration) -> Result<Pair> {
        self.authority().client(&format!("system:node:{node}"), NODES, lifetime)
    }

    /// A client certificate for anybody: user name and group (empty for none).
    ///
    /// # Errors
    /// No randomness.
    pub fn client_certificate(&self, user: &str, group: &str, lifetime: Duration) -> Result<Pair> {
        self.authority().client(user, group, lifetime)
    }

    /// A token of a service account, good for an hour: what a pod of it would show.
    ///
    /// # Errors
    /// There is no such account.
    pub fn service_account_token(&self, namespace: &str, name: &str) -> Result<String> {
        let path = format!("{}/token", named("serviceaccounts").path(Some(namespace), Some(name)));
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
        let issued = self.inner.client.send_json("POST", &path, &request)?.success()?;
        issued["status"]["token"].as_str().map(str::to_owned).context("no token was issued")
    }

    /// The authority's certificate in a file: `authentication.x509.clientCAFile` of the nodes.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn client_ca_file(&self) -> Result<PathBuf> {
        let path = self.inner.folder.join("client-ca.crt");
        if !path.exists() {
            kubeconfig::write(&path, &self.ca())?;
        }
        Ok(path)
    }

    /// Writes a kubeconfig with which a node speaks as itself.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn kubeconfig_for_node(&self, node: &str) -> Result<PathBuf> {
        let credential = Credential::Certificate(self.node_certificate(node, YEAR)?);
        self.write_kubeconfig(&format!("node-{node}"), &format!("system:node:{node}"), &credential)
    }

    /// Writes a kubeconfig for a node that has yet to ask for its certificate, with a token of its own.
    ///
    /// # Errors
    /// The folder cannot be written, or the server's refusal.
    pub fn bootstrap_kubeconfig(&self, node: &str) -> Result<PathBuf> {
        let token = if let Ok(server) = self.server() {
            let token = format!("bootstrap-{}", uuid::Uuid::new_v4());
            let user = User::new(&format!("system:bootstrap:{node}"), &["system:bootstrappers"]);
            server.add_token(StaticToken { token: token.clone(), user });
            token
        } else {
            self.bootstrap_token()?
        };
        self.write_kubeconfig(&format!("bootstrap-{node}"), "bootstrap", &Credential::Token(token))
    }

    /// A bootstrap token, with what kubeadm allows those who show one: to ask for a node's certificate.
    fn bootstrap_token(&self) -> Result<String> {
        let random = uuid::Uuid::new_v4().simple().to_string();
        let (id, secret) = (&random[..6], &random[6..22]);
        self.create(&json!({"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
            "metadata": {"name": format!("bootstrap-token-{id}"), "namespace": "kube-system"},
            "stringData": {"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true"}}))?;
        for (name, role) in [
            ("kubelet-bootstrap", "system:node-bootstrapper"),
            ("node-autoapprove-bootstrap", "system:certificates.k8s.io:certificatesigningrequests:nodeclient"),
        ] {
            self.bind(name, role, "system:bootstrappers")?;
        }
        Ok(format!("{id}.{secret}"))
    }

    /// Gives a role to a group.
    pub(super) fn bind(&self, name: &str, role: &str, group: &str) -> Result<()> {
        let api = "rbac.authorization.k8s.io";
        let binding = json!({"apiVersion": format!("{api}/v1"), "kind": "ClusterRoleBinding",
            "metadata": {"name": format!("bulkhead:{name}")},
            "subjects": [{"kind": "Group", "name": group, "apiGroup": api}],
            "roleRef": {"kind": "ClusterRole", "name": role, "apiGroup": api}});
        let answer = self.inner.client.send_json("POST", &format!("/apis/{api}/v1/clusterrolebindings"), &binding)?;
        // It may have been given already.
        if answer.status != 409 {
            answer.success().with_context(|| format!("giving {role} to {group}"))?;
        }
        Ok(())
    }

    /// Somebody decides about a signing request: `Approved` or `Denied`.
    ///
    /// # Errors
    /// There is no such request, or the server's refusal.
    pub fn decide_request(&self, name: &str, condition: &str, reason: &str, message: &str) -> Result<()> {
        let mut request = self.get("certificatesigningrequests", "", name)?;
        let decided = json!({"type": condition, "status": "True", "reason": reason, "message": message});
        request["status"]["conditions"] = json!([decided]);
        let path = format!("{}/approval", named("certificatesigningrequests").path(None, Some(name)));
        self.inner
            .client
            .send_json("PUT", &path, &request)?
            .success()
            .with_context(|| format!("{condition}: {name}"))?;
        Ok(())
    }

    /// Writes a kubeconfig for people.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn admin_kubeconfig(&self) -> Result<PathBuf> {
        let path = self.inner.folder.join("admin.kubeconfig");
        if path.exists() {
            return Ok(path);
        }
        let pair = self.authority().client("kubernetes-admin", MASTERS, YEAR)?;
        self.write_kubeconfig("admin", "kubernetes-admin", &Credential::Certificate(pair))
    }

    /// Writes a kubeconfig with any credential; gives its path.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn write_kubeconfig(&self, file: &str, user: &str, credential: &Credential) -> Result<PathBuf> {
        let path = self.inner.folder.join(format!("{file}.kubeconfig"));
        kubeconfig::write(&path, &format!("{:#}", kubeconfig::content(&self.url(), &self.ca(), user, credential)))?;
        Ok(path)
    }
}
