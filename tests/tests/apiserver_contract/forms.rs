//! In which form one talks to the server.

use super::*;

pub fn only_what_both_sides_understand_is_spoken(server: Server) -> Result<()> {
    let place = Place::new("forms", server)?;
    let client = place.client();
    place.create(&map("a", "1"))?;
    let path = format!("{MAPS}/a");
    let both =
        client.request("GET", &path, &[("accept", "application/vnd.kubernetes.protobuf, application/json")], b"")?;
    assert_eq!(both.status, 200, "a client that takes JSON as well is answered");
    refused(&client.request("GET", &path, &[("accept", "application/x-nothing")], b"")?, 406, "NotAcceptable");
    let unknown = client.request("POST", MAPS, &[("content-type", "application/x-nothing")], b"x")?;
    refused(&unknown, 415, "UnsupportedMediaType");
    if place.is_stand_in() {
        let binary = &[("accept", "application/vnd.kubernetes.protobuf")];
        refused(&client.request("GET", &path, binary, b"")?, 406, "NotAcceptable");
        let binary = &[("content-type", "application/vnd.kubernetes.protobuf")];
        refused(&client.request("POST", MAPS, binary, b"k8s\0")?, 415, "UnsupportedMediaType");
    }
    let table = &[("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")];
    place.create(&pod("a", "node-a"))?;
    let table = client.request("GET", PODS, table, b"")?.success()?;
    let columns: Vec<_> =
        table["columnDefinitions"].as_array().into_iter().flatten().map(|one| one["name"].clone()).collect();
    assert_eq!(columns[..5], ["Name", "Ready", "Status", "Restarts", "Age"]);
    let cells = table["rows"][0]["cells"].as_array().context("no cells")?;
    assert_eq!(cells[..3], ["a", "0/1", "Pending"]);
    let metadata = &[("accept", "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io")];
    let metadata = client.request("GET", &path, metadata, b"")?.success()?;
    assert_eq!(metadata["kind"], "PartialObjectMetadata");
    assert!(metadata.get("data").is_none());
    let version = client.get("/version")?.success()?;
    assert_eq!((version["major"].as_str(), version["minor"].is_string()), (Some("1"), true));
    let core = client.get("/api/v1")?.success()?;
    assert!(core["resources"].as_array().is_some_and(|all| all.iter().any(|one| one["name"] == "pods/status")));
    let tried = client.send_json("POST", &format!("{MAPS}?dryRun=All"), &map("tried", "1"))?.success()?;
    assert_eq!(tried["metadata"]["name"], "tried");
    assert!(place.find("configmaps", "default", "tried")?.is_none());
    Ok(())
}

/// The envelope of Kubernetes' protobuf (`runtime.Unknown`), behind four bytes that say what it is.
#[derive(Clone, PartialEq, prost::Message)]
struct Unknown {
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

/// A pod with nearly everything that there is, as it was recorded beside the encoder, is made anew on the server.
/// `BULKHEAD_RECORD=1` records it again.
pub fn a_pod_is_the_same_bytes_from_the_server_and_from_us(server: Server) -> Result<()> {
    if server == Server::StandIn {
        // It speaks no protobuf; the recorded bytes are compared beside the encoder.
        return Ok(());
    }
    let place = Place::new("bytes", server)?;
    let client = place.client();
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../bins/kubelet-syncd/pods-api/tests");
    let recorded: Value = serde_json::from_slice(&std::fs::read(format!("{folder}/pod.json"))?)?;
    let mut pod = recorded.clone();
    for own in ["uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"] {
        pod["metadata"].as_object_mut().context("no metadata")?.remove(own);
    }
    let debug = pod["spec"].as_object_mut().context("no spec")?.remove("ephemeralContainers");
    let mut made = client.send_json("POST", PODS, &pod)?.success()?;
    let path = format!("{PODS}/whole");
    made["spec"]["ephemeralContainers"] = debug.context("no ephemeral containers")?;
    let mut made = client.send_json("PUT", &format!("{path}/ephemeralcontainers"), &made)?.success()?;
    made["status"] = recorded["status"].clone();
    client.send_json("PUT", &format!("{path}/status"), &made)?.success()?;

    let json = client.get(&path)?.success()?;
    let binary = client.request("GET", &path, &[("accept", "application/vnd.kubernetes.protobuf")], b"")?;
    assert_eq!(binary.status, 200);
    let envelope = binary.body.strip_prefix(b"k8s\0").context("no protobuf of Kubernetes")?;
    let bytes = <Unknown as prost::Message>::decode(envelope)?.raw;
    if std::env::var_os("BULKHEAD_RECORD").is_some() {
        std::fs::write(format!("{folder}/pod.json"), format!("{json:#}\n"))?;
        std::fs::write(format!("{folder}/pod.pb"), &bytes)?;
    }
    let ours = kubelet_pods_api::encode::pod(&json)?;
    let same = ours.iter().zip(&bytes).take_while(|(a, b)| a == b).count();
    ensure!(
        ours == bytes,
        "{} and {} bytes, the same up to {same}: {:?} and {:?}",
        ours.len(),
        bytes.len(),
        String::from_utf8_lossy(&ours[same.saturating_sub(40)..(same + 40).min(ours.len())]),
        String::from_utf8_lossy(&bytes[same.saturating_sub(40)..(same + 40).min(bytes.len())])
    );
    Ok(())
}
