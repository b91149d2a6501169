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
