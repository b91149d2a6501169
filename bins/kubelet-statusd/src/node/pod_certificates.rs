//! Requests for certificates of pods: kubelet-syncd has made the key and asks, this process writes
//! (`docs/decisions/0074-certificates-of-pods.md`).

use bulkhead_ipc::syncd::PodCertificateAsk;
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1beta1::{PodCertificateRequest, PodCertificateRequestSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use super::server::{RequestError, Server, Written};

/// Writes one. Of one that is refused who asks makes another.
pub async fn write(server: &Server, wanted: &PodCertificateAsk) -> Result<Written, RequestError> {
    match server.create_pod_certificate_request(&object(wanted, server.name())).await {
        Ok(_) => Ok(Written::Done),
        // The answer to an earlier try was lost: nobody else knows the name.
        Err(error) if error.already_exists() => Ok(Written::Done),
        Err(error) if error.is_invalid() || error.is_forbidden() || error.is_not_found() => {
            Ok(Written::Refused(error.to_string()))
        }
        Err(error) => Err(error),
    }
}

/// The request. Pure.
fn object(wanted: &PodCertificateAsk, node: &str) -> PodCertificateRequest {
    let mut request = PodCertificateRequest::default();
    request.metadata.namespace = Some(wanted.namespace.clone());
    request.metadata.name = Some(wanted.name.clone());
    request.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: wanted.pod_name.clone(),
        uid: wanted.pod_uid.clone(),
        ..OwnerReference::default()
    }]);
    request.spec = PodCertificateRequestSpec {
        max_expiration_seconds: wanted.max_expiration_seconds,
        node_name: node.to_owned(),
        node_uid: wanted.node_uid.clone(),
        pod_name: wanted.pod_name.clone(),
        pod_uid: wanted.pod_uid.clone(),
        service_account_name: wanted.service_account_name.clone(),
        service_account_uid: wanted.service_account_uid.clone(),
        signer_name: wanted.signer_name.clone(),
        stub_pkc_s10_request: ByteString(wanted.stub_pkcs10_request.clone()),
        unverified_user_annotations: (!wanted.annotations.is_empty())
            .then(|| wanted.annotations.clone().into_iter().collect()),
        ..PodCertificateRequestSpec::default()
    };
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_its_pod_and_this_node() {
        let wanted = PodCertificateAsk {
            namespace: "ns".into(),
            name: "req-1".into(),
            pod_name: "p".into(),
            pod_uid: "u".into(),
            service_account_name: "sa".into(),
            service_account_uid: "sau".into(),
            node_uid: "nu".into(),
            signer_name: "example.com/s".into(),
            max_expiration_seconds: Some(3600),
            stub_pkcs10_request: vec![1, 2, 3],
            annotations: [("example.com/a".to_owned(), "b".to_owned())].into(),
        };
        let expected = serde_json::json!({
            "apiVersion": "certificates.k8s.io/v1beta1", "kind": "PodCertificateRequest",
            "metadata": {"namespace": "ns", "name": "req-1",
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]},
            "spec": {"nodeName": "n", "nodeUID": "nu", "podName": "p", "podUID": "u", "serviceAccountName": "sa",
                "serviceAccountUID": "sau", "signerName": "example.com/s", "maxExpirationSeconds": 3600,
                "stubPKCS10Request": "AQID", "unverifiedUserAnnotations": {"example.com/a": "b"}},
        });
        assert_eq!(serde_json::to_value(object(&wanted, "n")).unwrap(), expected);
    }
}
