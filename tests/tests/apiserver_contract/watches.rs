//! What a list selects and a watch tells.

use super::*;

pub fn lists_select_and_page(server: Server) -> Result<()> {
    let place = Place::new("lists", server)?;
    let client = place.client();
    for (name, node) in [("a", "node-a"), ("b", "node-b"), ("c", "node-a")] {
        place.create(&pod(name, node))?;
    }
    let names = |query: &str| -> Result<Vec<String>> {
        let list = client.get(&format!("/api/v1/pods?{query}"))?.success()?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        Ok(items.iter().map(|one| one["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect())
    };
    assert_eq!(names("fieldSelector=spec.nodeName%3Dnode-a")?, ["a", "c"]);
    assert_eq!(names("fieldSelector=metadata.name%3Db")?, ["b"]);
    assert_eq!(names("fieldSelector=status.phase%3DPending,spec.nodeName!%3Dnode-a")?, ["b"]);
    assert_eq!(names("labelSelector=app+in+(a,b)")?, ["a", "b"]);
    assert_eq!(names("labelSelector=app!%3Da,app")?, ["b", "c"]);
    assert_eq!(names("labelSelector=!app")?, [""; 0]);
    let first = client.get(&format!("{PODS}?limit=2"))?.success()?;
    assert_eq!(first["kind"], "PodList");
    assert!(first["items"][0].get("kind").is_none(), "elements do not repeat the list's kind");
    assert_eq!(first["metadata"]["remainingItemCount"], 1);
    let token = first["metadata"]["continue"].as_str().context("no token")?;
    place.create(&pod("d", "node-a"))?;
    let second = client.get(&format!("{PODS}?limit=2&continue={token}"))?.success()?;
    assert_eq!(second["items"].as_array().map(Vec::len), Some(1), "the list is of one version");
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    refused(&client.get(&format!("{PODS}?resourceVersionMatch=Exact"))?, 422, "Invalid");
    Ok(())
}

pub fn a_watch_tells_every_change_from_where_it_was_asked_to(server: Server) -> Result<()> {
    let place = Place::new("watch", server)?;
    let client = place.client();
    let first = place.create(&map("a", "1"))?;
    let mut from_there = client.watch(&format!("{MAPS}?resourceVersion={}", version(&first)))?;
    let mut all = client.watch(&format!("{MAPS}?fieldSelector=metadata.name%3Da"))?;
    let event = all.expect(SHORT)?;
    assert_eq!((event.kind.as_str(), event.name()), ("ADDED", "a"), "what is there comes first");
    let updated = place.patch("configmaps", "default", "a", &json!({"data": {"k": "2"}}))?;
    place.create(&map("b", "1"))?;
    place.delete("configmaps", "default", "a", None)?;
    let mut seen = Vec::new();
    for _ in 0..3 {
        let event = from_there.expect(SHORT)?;
        seen.push((event.kind.clone(), event.name().to_owned()));
    }
    let kind = |kind: &str, name: &str| (kind.to_owned(), name.to_owned());
    assert_eq!(seen, [kind("MODIFIED", "a"), kind("ADDED", "b"), kind("DELETED", "a")]);
    let event = all.expect(SHORT)?;
    assert_eq!((event.kind.as_str(), event.object["data"]["k"].as_str()), ("MODIFIED", Some("2")));
    let gone = all.expect(SHORT)?;
    assert_eq!(gone.kind, "DELETED");
    assert!(version(&gone.object) > version(&updated), "the deletion has a version of its own");
    let mut short = client.watch(&format!("{MAPS}?timeoutSeconds=1&resourceVersion={}", version(&gone.object)))?;
    assert_eq!(short.next(LONG)?, None, "it ends when its time is up");
    Ok(())
}

pub fn a_watch_follows_its_selector(server: Server) -> Result<()> {
    let place = Place::new("selector", server)?;
    let client = place.client();
    let mut mine = client.watch("/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-a")?;
    place.create(&pod("other", "node-b"))?;
    place.create(&pod("waiting", ""))?;
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "waiting"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "node-a"}});
    let answer = client.send_json("POST", &format!("{PODS}/waiting/binding"), &binding)?;
    assert_eq!(answer.status, 201, "{:?}", answer.json());
    let event = mine.expect(SHORT)?;
    assert_eq!((event.kind.as_str(), event.name()), ("ADDED", "waiting"), "bound to this node: new for its watcher");
    let scheduled = event.object["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|one| one["type"] == "PodScheduled" && one["status"] == "True");
    assert!(scheduled, "{}", event.object["status"]);
    let message = refused(&client.send_json("POST", &format!("{PODS}/waiting/binding"), &binding)?, 409, "Conflict");
    assert!(message.contains("pod waiting is already assigned to node \"node-a\""), "{message}");

    let mut labelled = client.watch(&format!("{PODS}?labelSelector=app%3Dwaiting"))?;
    assert_eq!(labelled.expect(SHORT)?.kind, "ADDED");
    let changed = place.patch("pods", "default", "waiting", &json!({"metadata": {"labels": {"app": "x"}}}))?;
    let event = labelled.expect(SHORT)?;
    assert_eq!(event.kind, "DELETED", "it no longer matches");
    assert_eq!(event.object["metadata"]["labels"]["app"], "waiting", "as it was");
    assert_eq!(version(&event.object), version(&changed), "at the version of the change");
    Ok(())
}

pub fn initial_events_end_with_a_bookmark(server: Server) -> Result<()> {
    let place = Place::new("initial", server)?;
    let client = place.client();
    let last = place.create(&map("a", "1"))?;
    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&fieldSelector=metadata.name%3Da";
    let mut events = client.watch(&format!("{MAPS}?{query}"))?;
    assert_eq!(events.expect(SHORT)?.kind, "ADDED");
    let mark = events.expect(SHORT)?;
    assert_eq!(mark.kind, "BOOKMARK");
    assert_eq!(mark.object["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert!(version(&mark.object) >= version(&last));
    assert_eq!(mark.object["kind"], "ConfigMap");
    place.patch("configmaps", "default", "a", &json!({"data": {"k": "2"}}))?;
    assert_eq!(events.expect(SHORT)?.kind, "MODIFIED");
    let refused_query = client.request("GET", &format!("{MAPS}?watch=true&sendInitialEvents=true"), &[], b"")?;
    refused(&refused_query, 422, "Invalid");
    Ok(())
}

#[test]
fn a_version_that_is_forgotten_is_gone_and_bookmarks_keep_watches_fresh() -> Result<()> {
    // How much is remembered, and how often a bookmark comes, is the stand-in's alone to say.
    let config =
        Config { history: 3, bookmark_every: Duration::from_millis(50), scheduler: false, ..Config::default() };
    let place = Place::with("gone", config, Server::StandIn)?;
    let client = place.client();
    let first = place.create(&map("a", "0"))?;
    for value in ["1", "2", "3", "4", "5"] {
        place.patch("configmaps", "default", "a", &json!({"data": {"k": value}}))?;
    }
    let mut events = client.watch(&format!("{MAPS}?resourceVersion={}", version(&first)))?;
    let event = events.expect(SHORT)?;
    assert_eq!(
        (event.kind.as_str(), event.object["code"].clone(), event.object["reason"].clone()),
        ("ERROR", json!(410), json!("Expired"))
    );
    let message = event.object["message"].as_str().unwrap_or_default();
    assert!(message.starts_with(&format!("too old resource version: {} (", version(&first))), "{message}");
    assert_eq!(events.next(SHORT)?, None, "and the watch is over");
    let mut marked = client.watch(&format!("{MAPS}?allowWatchBookmarks=true&fieldSelector=metadata.name%3Dnone"))?;
    let now = place.patch("configmaps", "default", "a", &json!({"data": {"k": "6"}}))?;
    let mut mark = marked.expect(SHORT)?;
    while version(&mark.object) < version(&now) {
        mark = marked.expect(SHORT)?;
    }
    assert_eq!(mark.kind, "BOOKMARK", "although nothing that it selects has changed");
    client.watch(&format!("{MAPS}?resourceVersion={}", version(&mark.object)))?;
    let page = client.get(&format!("{MAPS}?limit=1"))?.success()?;
    place.server()?.with_store(|store| {
        let a = store.get(bulkhead_testkit::apiserver::resources::named("configmaps"), "default", "a");
        let mut changed = a.map(|one| one.value.clone()).unwrap_or_default();
        changed["data"]["k"] = json!("7");
        store.put(bulkhead_testkit::apiserver::resources::named("configmaps"), changed);
        store.compact();
    });
    if let Some(token) = page["metadata"]["continue"].as_str() {
        let message = refused(&client.get(&format!("{MAPS}?limit=1&continue={token}"))?, 410, "Expired");
        assert!(message.starts_with("The provided continue parameter is too old"), "{message}");
    }
    Ok(())
}

pub fn a_version_of_zero_is_whatever_is_at_hand(server: Server) -> Result<()> {
    let place = Place::new("zero", server)?;
    let client = place.client();
    let made = place.create(&map("a", "1"))?;
    let named = "fieldSelector=metadata.name%3Da";
    // Perhaps of a moment ago.
    let list = bulkhead_testkit::eventually("the cache has it", SHORT, || {
        let list = client.get(&format!("{MAPS}?resourceVersion=0&{named}"))?.success()?;
        ensure!(list["items"].as_array().is_some_and(|all| all.len() == 1), "{list}");
        Ok(list)
    })?;
    assert!(version(&list) >= version(&made), "{}", list["metadata"]);
    let one = client.get(&format!("{MAPS}/a?resourceVersion=0"))?.success()?;
    assert_eq!(one["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
    // A limit is no limit for what comes out of the cache.
    place.create(&map("b", "1"))?;
    bulkhead_testkit::eventually("the cache has both", SHORT, || {
        let list = client.get(&format!("{MAPS}?resourceVersion=0&limit=1"))?.success()?;
        let all = list["items"].as_array().map_or(0, Vec::len);
        ensure!(all >= 2 && list["metadata"].get("continue").is_none(), "{all} and {}", list["metadata"]);
        Ok(())
    })?;
    let mut events = client.watch(&format!("{MAPS}?resourceVersion=0&{named}"))?;
    assert_eq!(events.expect(SHORT)?.kind, "ADDED", "what there is comes first");
    let ahead = version(&made) + 1_000_000;
    let message = refused(&client.get(&format!("{MAPS}?resourceVersion={ahead}"))?, 504, "Timeout");
    assert!(message.contains("Too large resource version"), "{message}");
    let exact = client.get(&format!("{MAPS}?resourceVersion=0&resourceVersionMatch=Exact"))?;
    refused(&exact, 422, "Invalid");
    Ok(())
}
