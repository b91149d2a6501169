//! Certificate signing requests: who approves them by itself, and what is signed once somebody has approved
//! (`pkg/controller/certificates/{approver,signer}`).

use base64::Engine as _;
use serde_json::{Value, json};

use super::super::Shared;
use super::super::authority::requested;
use super::super::resources::named;

/// Which requests are approved without anybody asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Approval {
    /// None.
    Manual,
    /// Client certificates of nodes, as a real cluster does.
    Clients,
    /// Serving certificates of nodes as well.
    All,
}

const CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const SERVING: &str = "kubernetes.io/kubelet-serving";

/// Approves and signs what there is.
pub(super) fn sign_all(shared: &Shared) {
    let resource = named("certificatesigningrequests");
    let mut store = shared.store();
    let all: Vec<Value> = store.list(resource, None).map(|request| request.value.clone()).collect();
    for mut request in all {
        let has = |request: &Value, kind: &str| {
            request["status"]["conditions"].as_array().is_some_and(|list| list.iter().any(|one| one["type"] == kind))
        };
        if has(&request, "Denied") || has(&request, "Failed") || request["status"]["certificate"].is_string() {
            continue;
        }
        let signer = request["spec"]["signerName"].as_str().unwrap_or_default().to_owned();
        let known = [CLIENT, SERVING, "kubernetes.io/kube-apiserver-client"].contains(&signer.as_str());
        if !has(&request, "Approved") {
            let by_itself = match shared.config.approval {
                Approval::Manual => false,
                Approval::Clients => signer == CLIENT,
                Approval::All => signer == CLIENT || signer == SERVING,
            };
            if !by_itself || !is_a_nodes(&request, &signer) {
                continue;
            }
            add_condition(
                shared,
                &mut request,
                "Approved",
                "AutoApproved",
                "Auto approving kubelet client certificate after SubjectAccessReview.",
            );
            store.put(resource, request.clone());
        }
        if !known {
            continue;
        }
        let config = &shared.config;
        match shared.ca.sign(&request["spec"], config.certificates_backdated, config.certificate_lifetime) {
            Ok(pem) => {
                let encoded = base64::engine::general_purpose::STANDARD.encode(pem);
                request["status"]["certificate"] = json!(encoded);
            }
            Err(error) => {
                add_condition(shared, &mut request, "Failed", "SignerValidationFailure", &format!("{error:#}"))
            }
        }
        store.put(resource, request);
    }
}

fn add_condition(shared: &Shared, request: &mut Value, kind: &str, reason: &str, message: &str) {
    let now = shared.clock.stamp();
    let condition = json!({
        "type": kind, "status": "True", "reason": reason, "message": message, "lastUpdateTime": now, "lastTransitionTime": now,
    });
    match request["status"]["conditions"].as_array_mut() {
        Some(conditions) => conditions.push(condition),
        None => request["status"]["conditions"] = json!([condition]),
    }
}

/// Whether the request is of the form that nodes send, for the signer.
fn is_a_nodes(request: &Value, signer: &str) -> bool {
    let Ok(asked) = requested(&request["spec"]) else { return false };
    let names = !asked.dns_names.is_empty() || asked.addresses > 0;
    asked.organizations == ["system:nodes"]
        && asked.common_name.starts_with("system:node:")
        && (signer == SERVING) == names
}
