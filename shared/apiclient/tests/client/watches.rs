//! Watches: how they begin, go on, break, and what their user sees of it.

use std::time::Duration;

use bulkhead_apiclient::watch::{Change, List, Scope, watch, watch_whole, watch_with};
use bulkhead_apiclient::{ApiClient, Lane};
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use k8s_openapi::api::core::v1::Pod;

use crate::world::{self, Dialogue, Secure, answer, bookmark, event, list, pod, soon, status};

type Watch = BoxStream<'static, Change<Pod>>;

fn scope() -> Scope {
    Scope { field_selector: "spec.nodeName=node-a".into(), ..Scope::default() }
}

fn pods(api: &ApiClient) -> Watch {
    watch(api, Lane::Main, scope())
}

async fn next(watch: &mut Watch) -> Change<Pod> {
    soon(watch.next()).await.unwrap()
}

/// Names with versions, to compare by.
fn show(change: &Change<Pod>) -> String {
    let one = |pod: &Pod| {
        let metadata = &pod.metadata;
        assert!(metadata.managed_fields.is_none());
        format!("{}@{}", metadata.name.as_deref().unwrap(), metadata.resource_version.as_deref().unwrap())
    };
    match change {
        Change::Restarted(List { objects, undecodable }) => {
            let read = objects.iter().map(one);
            let not = undecodable.iter().map(|one| format!("not:{}/{}/{}", one.namespace, one.name, one.uid));
            format!("all {}", read.chain(not).collect::<Vec<_>>().join(" "))
        }
        Change::Applied(pod) => format!("applied {}", one(pod)),
        Change::Deleted(pod) => format!("deleted {}/{}/{}", pod.namespace, pod.name, pod.uid),
        Change::Failed(text) => format!("failed {text}"),
    }
}

/// The beginning that most tests need: pod a at version 5.
async fn begin(dialogue: &mut Dialogue, watch: &mut Watch) -> tokio::sync::mpsc::UnboundedSender<String> {
    let (change, (seen, events)) = tokio::join!(next(watch), async {
        let (seen, events) = dialogue.stream().await;
        events.send(event("ADDED", pod("a", 5))).unwrap();
        events.send(bookmark(5, true)).unwrap();
        (seen, events)
    });
    assert_eq!(show(&change), "all a@5");
    assert!(seen.query().contains("sendInitialEvents=true"));
    events
}

#[tokio::test]
async fn a_streamed_list_and_its_watch() {
    let mut dialogue = Dialogue::start().await;
    let api = dialogue.client();
    let mut watch = pods(&api);
    let (first, (seen, events)) = tokio::join!(next(&mut watch), async {
        let (seen, events) = dialogue.stream().await;
        for line in [
            event("ADDED", pod("a", 5)),
            event("ADDED", pod("b", 6)),
            bookmark(6, false),
            event("MODIFIED", pod("a", 7)),
            event("DELETED", pod("b", 8)),
            bookmark(8, true),
        ] {
            events.send(line).unwrap();
        }
        (seen, events)
    });
    assert_eq!(show(&first), "all a@7");
    assert_eq!(seen.uri.path(), "/api/v1/pods");
    assert!(seen.query().starts_with("fieldSelector=spec.nodeName%3Dnode-a&watch=true&sendInitialEvents=true&"));
    // An event may come in pieces, and several in one.
    let line = event("MODIFIED", pod("a", 9));
    events.send(line[..30].to_owned()).unwrap();
    events.send(format!("{}{}\n", &line[30..], event("DELETED", pod("a", 10)))).unwrap();
    assert_eq!(show(&next(&mut watch).await), "applied a@9");
    assert_eq!(show(&next(&mut watch).await), "deleted ns/a/uid-a");
    events.send(bookmark(20, false)).unwrap();
    drop(events);
    // It goes on from the bookmark.
    let ((seen, events), _) =
        tokio::join!(dialogue.stream(), tokio::time::timeout(Duration::from_secs(2), watch.next()));
    assert!(seen.query().contains("&resourceVersion=20&allowWatchBookmarks=true&timeoutSeconds="), "{seen:?}");
    assert!(!seen.query().contains("sendInitialEvents"));
    events.send(event("ADDED", pod("c", 21))).unwrap();
    assert_eq!(show(&next(&mut watch).await), "applied c@21");
}

#[tokio::test]
async fn without_the_gate_no_list_is_asked_for_as_a_stream() {
    let mut dialogue = Dialogue::start().await;
    let api = dialogue.client_with(|config| {
        config.kubelet.feature_gates.insert("WatchListClient".into(), false);
    });
    let mut watch = pods(&api);
    let (first, seen) = tokio::join!(next(&mut watch), dialogue.reply(list(9, &[pod("a", 5)], "")));
    assert_eq!(show(&first), "all a@5");
    assert!(!seen.is_watch() && seen.query().ends_with("&limit=500"), "{seen:?}");
    let (_, (seen, _)) = tokio::join!(tokio::time::timeout(Duration::from_secs(1), watch.next()), dialogue.stream());
    assert!(seen.query().contains("&resourceVersion=9&") && !seen.query().contains("sendInitialEvents"), "{seen:?}");
}

#[tokio::test]
async fn a_server_that_streams_no_lists_is_asked_for_pages() {
    for streams_badly in [false, true] {
        let mut dialogue = Dialogue::start().await;
        let api = dialogue.client();
        let mut watch =
            watch_with(&api, Lane::Main, Scope { namespace: Some("ns".into()), ..scope() }, |pod: &mut Pod| {
                assert!(pod.metadata.managed_fields.is_none(), "bare");
                pod.metadata.uid = None;
            });
        let (first, seen) = tokio::join!(next(&mut watch), async {
            if streams_badly {
                // It does not know the parameter, and ends the watch without what ends a list.
                let (_, events) = dialogue.stream().await;
                events.send(event("ADDED", pod("a", 5))).unwrap();
            } else {
                dialogue.reply(answer(422, status(422, "Invalid").to_string())).await;
            }
            let first = dialogue.reply(list(9, &[pod("a", 5)], "more")).await;
            let second = dialogue.reply(list(9, &[pod("b", 6)], "")).await;
            (first, second)
        });
        assert_eq!(show(&first), "all a@5 b@6");
        let Change::Restarted(all) = &first else { panic!("{first:?}") };
        assert!(all.objects.iter().all(|pod| pod.metadata.uid.is_none()), "stripped");
        assert_eq!(seen.0.uri.path(), "/api/v1/namespaces/ns/pods");
        assert!(seen.0.query().ends_with("&limit=500") && seen.1.query().ends_with("&limit=500&continue=more"));
        let (_, (seen, events)) =
            tokio::join!(tokio::time::timeout(Duration::from_secs(1), watch.next()), dialogue.stream());
        assert!(seen.query().contains("&resourceVersion=9&"));
        events.send(event("ADDED", pod("c", 10))).unwrap();
        assert_eq!(show(&next(&mut watch).await), "applied c@10");
        // The next watch of the same client knows what the server said; that one stream was cut off says nothing.
        let mut other = pods(&api);
        if streams_badly {
            begin(&mut dialogue, &mut other).await;
        } else {
            let (first, seen) = tokio::join!(next(&mut other), dialogue.reply(list(11, &[], "")));
            assert_eq!((show(&first).as_str(), seen.is_watch()), ("all ", false));
        }
    }
}

/// What kube-apiserver answers to a streamed list when its etcd cannot report progress: HTTP 200, then this.
fn no_progress_requests() -> String {
    let message = "a watch stream was requested by the client but the required storage feature RequestWatchProgress is \
                   disabled";
    event(
        "ERROR",
        serde_json::json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": "InternalError", "code": 500}),
    )
}

#[tokio::test]
async fn a_storage_that_cannot_stream_lists_is_asked_for_pages_for_a_while() {
    let mut dialogue = Dialogue::start().await;
    let api = dialogue.client();
    let mut watch = pods(&api);
    let (first, seen) = tokio::join!(next(&mut watch), async {
        let (seen, events) = dialogue.stream().await;
        assert!(seen.query().contains("sendInitialEvents=true"), "{seen:?}");
        events.send(no_progress_requests()).unwrap();
        dialogue.reply(list(9, &[pod("a", 5)], "")).await
    });
    assert_eq!(show(&first), "all a@5", "within the same attempt");
    assert!(!seen.is_watch());
    drop(watch);
    let mut second = pods(&api);
    let (first, seen) = tokio::join!(next(&mut second), dialogue.reply(list(11, &[], "")));
    assert_eq!((show(&first).as_str(), seen.is_watch()), ("all ", false), "remembered");
    drop(second);
    // Another server may be behind that name by now.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(121)).await;
    tokio::time::resume();
    begin(&mut dialogue, &mut pods(&api)).await;
}

#[tokio::test]
async fn what_refuses_pages_as_well_is_not_remembered() {
    let mut dialogue = Dialogue::start().await;
    let api = dialogue.client();
    let mut watch = pods(&api);
    let unwell = || answer(500, status(500, "InternalError").to_string());
    let (change, seen) = tokio::join!(next(&mut watch), async {
        (dialogue.reply(unwell()).await.is_watch(), dialogue.reply(unwell()).await.is_watch())
    });
    assert!(show(&change).starts_with("failed the server answered 500 InternalError"), "{change:?}");
    assert_eq!(seen, (true, false));
    begin(&mut dialogue, &mut watch).await;
}

#[tokio::test]
async fn what_only_asks_to_come_again_brings_no_pages() {
    // Too many requests, and a version that the server has not reached.
    let large = serde_json::json!({"status": "Failure", "code": 504, "reason": "Timeout", "message": "Timeout",
        "details": {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]}});
    for (code, status) in [(429, status(429, "TooManyRequests")), (504, large)] {
        let mut dialogue = Dialogue::start().await;
        let api = dialogue.client();
        let mut watch = pods(&api);
        let (change, _) = tokio::join!(next(&mut watch), dialogue.reply(answer(code, status.to_string())));
        assert!(show(&change).starts_with("failed "), "{change:?}");
        begin(&mut dialogue, &mut watch).await;
    }
}

#[tokio::test]
async fn a_version_that_the_server_has_not_reached_is_not_asked_for_for_ever() {
    let mut dialogue = Dialogue::start().await;
    let api = dialogue.client();
    let mut watch = pods(&api);
    let events = begin(&mut dialogue, &mut watch).await;
    let large = serde_json::json!({"status": "Failure", "code": 504, "reason": "Timeout", "message": "Timeout",
        "details": {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]}});
    events.send(event("ERROR", large)).unwrap();
    assert!(show(&next(&mut watch).await).contains("has not come as far"));
    drop(events);
    begin(&mut dialogue, &mut watch).await;
}

#[tokio::test]
async fn a_watch_that_is_refused_again_and_again_is_listed_anew() {
    let mut dialogue = Dialogue::start().await;
    let api = dialogue.client();
    let mut watch = pods(&api);
    let events = begin(&mut dialogue, &mut watch).await;
    events.send(event("ERROR", status(500, "InternalError"))).unwrap();
    assert!(show(&next(&mut watch).await).starts_with("failed "));
    for _ in 0..2 {
        let refusal = answer(500, status(500, "InternalError").to_string());
        let (change, seen) = tokio::join!(next(&mut watch), dialogue.reply(refusal));
        assert!(show(&change).starts_with("failed "));
        assert!(seen.query().contains("&resourceVersion=5&"), "{seen:?}");
    }
    begin(&mut dialogue, &mut watch).await;
}

#[tokio::test]
async fn a_streamed_list_that_never_ends_is_given_up() {
    let mut dialogue = Dialogue::start().await;
    let api = dialogue.client();
    let mut watch = pods(&api);
    // Without the test's own time limits: the clock runs ahead of them.
    let (first, seen) = tokio::join!(async { watch.next().await.unwrap() }, async {
        let (_, events) = dialogue.stream().await;
        tokio::time::pause();
        // Something comes often enough, but never the end.
        let ticking = tokio::spawn(async move {
            while events.send(bookmark(5, false)).is_ok() {
                tokio::time::sleep(Duration::from_secs(20)).await;
            }
        });
        let (seen, reply) = dialogue.next_however_late().await;
        tokio::time::resume();
        ticking.abort();
        let _ = reply.send(list(9, &[pod("a", 5)], ""));
        seen
    });
    assert_eq!(show(&first), "all a@5");
    assert!(!seen.is_watch());
    // It was slow, which is no refusal.
    begin(&mut dialogue, &mut pods(&api)).await;
}

#[tokio::test]
async fn what_is_too_old_is_listed_anew() {
    // As an event, as an answer, and as a server that was put back.
    for way in 0..3 {
        let mut dialogue = Dialogue::start().await;
        let api = dialogue.client();
        let mut watch = pods(&api);
        let events = begin(&mut dialogue, &mut watch).await;
        let (change, ()) = tokio::join!(next(&mut watch), async {
            match way {
                0 => events.send(event("ERROR", status(410, "Expired"))).unwrap(),
                1 => {
                    drop(events);
                    dialogue.reply(answer(410, status(410, "Expired").to_string())).await;
                }
                _ => events.send(bookmark(3, false)).unwrap(),
            }
            let (seen, events) = dialogue.stream().await;
            assert!(seen.query().contains("sendInitialEvents=true"), "{seen:?}");
            events.send(event("ADDED", pod("b", 30))).unwrap();
            events.send(bookmark(30, true)).unwrap();
        });
        assert_eq!(show(&change), "all b@30", "way {way}");
    }
}

#[tokio::test]
async fn a_watch_on_which_nothing_comes_goes_to_another_connection() {
    let mut dialogue = Dialogue::start().await;
    let api = dialogue.client();
    let mut watch = watch(&api, Lane::Main, Scope { stall_after: Some(Duration::from_millis(300)), ..scope() });
    let events = begin(&mut dialogue, &mut watch).await;
    let stalled = next(&mut watch).await;
    assert!(matches!(&stalled, Change::Failed(text) if text.contains("nothing came")), "{stalled:?}");
    let (change, seen) = tokio::join!(next(&mut watch), async {
        let (seen, events) = dialogue.stream().await;
        events.send(event("MODIFIED", pod("a", 6))).unwrap();
        seen
    });
    assert_eq!(show(&change), "applied a@6");
    assert!(seen.query().contains("&resourceVersion=5&"), "resumed, not listed: {seen:?}");
    assert_eq!(seen.connection, 2);
    drop(events);
}

#[tokio::test]
async fn a_server_that_is_back_is_asked_by_all_watches_at_once() {
    let nobody = {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let api = world::client(&bulkhead_apiclient::MemorySource::for_server(&format!("http://{nobody}")));
    api.ready().await;
    let mut watches = [pods(&api), pods(&api), pods(&api)];
    // Until every pause is the longest: half a minute.
    tokio::time::pause();
    for _ in 0..7 {
        for watch in &mut watches {
            assert!(show(&watch.next().await.unwrap()).starts_with("failed "));
        }
    }
    tokio::time::resume();
    let mut dialogue = Dialogue::start_at(nobody).await;
    let heartbeat = api.client(Lane::Heartbeat);
    let call =
        tokio::spawn(
            async move { heartbeat.request_text(http::Request::get("/version").body(Vec::new()).unwrap()).await },
        );
    let asked = async {
        let mut seen = std::collections::BTreeMap::new();
        // A list that is not streamed is asked for in pages at once.
        while seen.get("/api/v1/pods") != Some(&6) {
            let refusal = answer(403, status(403, "Forbidden").to_string());
            let at = dialogue.reply(refusal).await.uri.path().to_owned();
            *seen.entry(at).or_insert(0) += 1;
        }
        seen
    };
    let waiting = futures_util::future::join_all(watches.iter_mut().map(|watch| watch.next()));
    // They would come by themselves, but not before anybody's patience ends.
    let (seen, _) = soon(futures_util::future::join(asked, waiting)).await;
    assert_eq!(seen["/version"], 1);
    assert!(soon(call).await.unwrap().is_err(), "a refusal is an answer");
}

#[tokio::test]
async fn a_refused_watch_is_logged_and_tried_again() {
    let mut dialogue = Dialogue::start().await;
    let api = dialogue.client();
    let mut watch = pods(&api);
    let forbidden = || answer(403, status(403, "Forbidden").to_string());
    let (change, _) = tokio::join!(next(&mut watch), async {
        dialogue.reply(forbidden()).await;
        dialogue.reply(forbidden()).await
    });
    assert_eq!(show(&change), "failed the server answered 403 Forbidden: made up: Forbidden");
    let (change, _) = tokio::join!(next(&mut watch), async {
        dialogue.reply(answer(502, "<html>bad gateway</html>")).await;
        dialogue.reply(answer(502, "<html>bad gateway</html>")).await
    });
    assert_eq!(show(&change), "failed the server answered 502 : <html>bad gateway</html>");
    begin(&mut dialogue, &mut watch).await;
}

#[tokio::test]
async fn a_broken_event_is_an_error_and_the_watch_lists_again() {
    let mut dialogue = Dialogue::start().await;
    let api = dialogue.client();
    let mut watch = pods(&api);
    let events = begin(&mut dialogue, &mut watch).await;
    events.send("{\"type\":\"ADDED\",\"object\":7}\n".to_owned()).unwrap();
    let change = next(&mut watch).await;
    assert!(matches!(&change, Change::Failed(text) if text.contains("cannot be decoded")), "{change:?}");
    // What could not be read is not passed over: everything is asked for again.
    let events = begin(&mut dialogue, &mut watch).await;
    events.send(event("ERROR", status(500, "InternalError"))).unwrap();
    let change = next(&mut watch).await;
    assert!(show(&change).contains("InternalError"));
    let (change, _) = tokio::join!(next(&mut watch), async {
        let (seen, events) = dialogue.stream().await;
        assert!(seen.query().contains("&resourceVersion=5&"));
        events.send(event("MODIFIED", pod("a", 6))).unwrap();
    });
    assert_eq!(show(&change), "applied a@6");
}

/// With what others may have noted of its managers: a time that is none here, and sets too deep for a recursive decoder.
fn hostile(name: &str, version: u32) -> String {
    let deep = format!("{}{{}}{}", r#"{"f:a":"#.repeat(200), "}".repeat(200));
    let managed = format!(r#"[{{"manager":"x","time":"9999-12-31T00:00:00Z","fieldsV1":{deep}}}]"#);
    let mut pod = pod(name, version);
    pod["metadata"]["managedFields"] = serde_json::json!("here");
    pod.to_string().replacen(r#""here""#, &managed, 1)
}

/// A pod with a time in its status that is none here.
fn undecodable(name: &str, version: u32) -> serde_json::Value {
    let mut pod = pod(name, version);
    pod["status"]["startTime"] = serde_json::json!("9999-12-31T00:00:00Z");
    pod
}

#[tokio::test]
async fn what_others_noted_of_managers_ends_no_list_and_no_watch() {
    let line = |kind: &str, object: String| format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n");
    for streamed in [true, false] {
        let mut dialogue = Dialogue::start().await;
        let api = dialogue.client();
        let mut watch = watch_whole::<Pod>(&api, Lane::Main, scope());
        let (first, events) = tokio::join!(soon(watch.next()), async {
            if streamed {
                let (_, events) = dialogue.stream().await;
                events.send(line("ADDED", hostile("a", 5))).unwrap();
                events.send(event("ADDED", pod("b", 6))).unwrap();
                events.send(bookmark(6, true)).unwrap();
                return Some(events);
            }
            dialogue.reply(answer(422, status(422, "Invalid").to_string())).await;
            let items = format!("{},{}", hostile("a", 5), pod("b", 6));
            let list = format!(r#"{{"kind":"PodList","metadata":{{"resourceVersion":"6"}},"items":[{items}]}}"#);
            dialogue.reply(answer(200, list)).await;
            None
        });
        let Some(Change::Restarted(list)) = first else { panic!("{first:?}") };
        let names: Vec<&str> = list.objects.iter().filter_map(|one| one.object.metadata.name.as_deref()).collect();
        assert!(list.undecodable.is_empty() && names == ["a", "b"], "{names:?}");
        assert!(list.objects.iter().all(|one| one.object.metadata.managed_fields.is_none()));
        let kept = list.objects[0].managed_fields.as_ref().unwrap().get();
        assert!(kept.starts_with(r#"[{"manager":"x""#) && kept.ends_with("}]"), "{kept}");
        let events = match events {
            Some(events) => events,
            None => {
                let streamed = tokio::time::timeout(Duration::from_secs(1), watch.next());
                tokio::join!(streamed, dialogue.stream()).1.1
            }
        };
        events.send(line("MODIFIED", hostile("a", 7))).unwrap();
        events.send(line("DELETED", hostile("a", 8))).unwrap();
        let change = soon(watch.next()).await.unwrap();
        assert!(
            matches!(&change, Change::Applied(one) if one.object.metadata.resource_version.as_deref() == Some("7"))
        );
        assert!(matches!(soon(watch.next()).await.unwrap(), Change::Deleted(gone) if gone.uid == "uid-a"));
    }
}

#[tokio::test]
async fn an_object_that_cannot_be_decoded_is_left_out_and_no_other() {
    let mut dialogue = Dialogue::start().await;
    let api = dialogue.client();
    let mut watch = pods(&api);
    let (first, events) = tokio::join!(next(&mut watch), async {
        let (_, events) = dialogue.stream().await;
        for line in [
            event("ADDED", undecodable("a", 1)),
            event("ADDED", pod("b", 2)),
            event("ADDED", undecodable("c", 3)),
            event("ADDED", undecodable("d", 4)),
            // Of b this list has a copy; c can be decoded after all; d is gone.
            event("MODIFIED", undecodable("b", 5)),
            event("MODIFIED", pod("c", 6)),
            event("DELETED", undecodable("d", 7)),
            bookmark(7, true),
        ] {
            events.send(line).unwrap();
        }
        events
    });
    assert_eq!(show(&first), "all b@2 c@6 not:ns/a/uid-a");
    // Nothing is told of what cannot be decoded, but its end, and the watch goes on from behind it.
    events.send(event("MODIFIED", undecodable("b", 8))).unwrap();
    events.send(event("MODIFIED", pod("c", 9))).unwrap();
    assert_eq!(show(&next(&mut watch).await), "applied c@9");
    events.send(event("DELETED", undecodable("b", 10))).unwrap();
    assert_eq!(show(&next(&mut watch).await), "deleted ns/b/uid-b");
    events.send(event("ADDED", undecodable("e", 11))).unwrap();
    drop(events);
    let ((seen, events), _) =
        tokio::join!(dialogue.stream(), tokio::time::timeout(Duration::from_secs(2), watch.next()));
    assert!(seen.query().contains("&resourceVersion=11&"), "{seen:?}");
    // In pages the same.
    events.send(event("ERROR", status(410, "Expired"))).unwrap();
    let (again, _) = tokio::join!(next(&mut watch), async {
        dialogue.reply(answer(422, status(422, "Invalid").to_string())).await;
        dialogue.reply(list(12, &[undecodable("a", 1), pod("c", 9)], "more")).await;
        dialogue.reply(list(12, &[undecodable("e", 11)], "")).await
    });
    assert_eq!(show(&again), "all c@9 not:ns/a/uid-a not:ns/e/uid-e");
}

#[tokio::test]
async fn a_watch_outlives_its_credentials() {
    let open = parking_lot::Mutex::new(Vec::new());
    let secure = Secure::start(&["h2"], move |seen| {
        let (events, response) = world::stream();
        if seen.query().contains("sendInitialEvents") {
            events.send(event("ADDED", pod("a", 5))).unwrap();
            events.send(bookmark(5, true)).unwrap();
        } else {
            events.send(event("MODIFIED", pod("a", 6))).unwrap();
        }
        open.lock().push(events);
        response
    })
    .await;
    let api = world::client(&secure.source);
    let mut watch = pods(&api);
    assert_eq!(show(&next(&mut watch).await), "all a@5");
    secure.issue("node-2");
    assert_eq!(show(&next(&mut watch).await), "applied a@6");
    let seen = secure.server.seen();
    assert_eq!(seen.len(), 2);
    assert_eq!((seen[1].connection, seen[1].client.as_deref()), (2, Some("node-2")));
    assert!(seen[1].query().contains("&resourceVersion=5&"));
}

#[tokio::test]
async fn it_waits_for_a_kubeconfig() {
    let mut dialogue = Dialogue::start().await;
    let source = bulkhead_apiclient::MemorySource::new("");
    let api = world::client(&source);
    let mut watch = pods(&api);
    source.put(
        bulkhead_apiclient::CredentialFile::Kubeconfig,
        world::kubeconfig(&format!("server: \"{}\"", dialogue.server.url()), ""),
    );
    begin(&mut dialogue, &mut watch).await;
}
