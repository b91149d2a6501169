use std::time::Duration;

use bulkhead_types::NodeName;

use super::file::{Change, Content, Entry, EntryKind, Listing, StoreError};
use super::uids::Forgetful;
use super::*;

/// A folder of fixed manifests; the watch never speaks.
struct Fixed(Vec<(String, String)>);

impl ManifestStore for Fixed {
    async fn list(&mut self) -> Result<Listing, StoreError> {
        let entries = self.0.iter().map(|(name, _)| Entry { name: name.clone(), kind: EntryKind::Regular }).collect();
        Ok(Listing::Folder { device: 1, entries })
    }

    async fn read(&mut self, name: &str) -> Result<Content, StoreError> {
        let found = self.0.iter().find(|(n, _)| n == name);
        Ok(found.map_or(Content::Missing, |(_, text)| Content::Bytes(text.clone().into_bytes())))
    }

    async fn changed(&mut self) -> Change {
        std::future::pending().await
    }
}

#[tokio::test]
async fn sources_deliver_in_order_and_become_ready() {
    let manifest = |name: &str| {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: i}}]}}\n"
        );
        (format!("{name}.yaml"), text)
    };
    let mut files = vec![manifest("a"), manifest("b")];
    files.push(("broken".to_owned(), "x: [".to_owned()));
    let config = SourcesConfig {
        node: NodeName::parse("n").unwrap().into(),
        file: Some(FileConfig { path: "/m".into(), check_every: Duration::from_secs(20) }),
        http: None,
        api: true,
        running: Vec::new(),
    };
    let dropped = Arc::new(Mutex::new(Vec::new()));
    let sink: DroppedSink = {
        let dropped = dropped.clone();
        Arc::new(move |pod| dropped.lock().push(pod.message))
    };
    let (sources, mut updates) = Sources::start(config, Fixed(files), Box::new(Forgetful), sink);
    let first = updates.recv().await.unwrap();
    assert_eq!((first.op, first.source, first.pods.len()), (PodOp::Add, SourceKind::File, 2));
    sources.consumed(first.source);
    assert!(!sources.all_ready(), "the API server has not spoken");
    assert!(sources.states().iter().any(|s| s.kind == SourceKind::File && s.seen && s.pods == 2));

    let mut api = sources.api_sender().unwrap();
    let mut twice = (*first.pods[0]).clone();
    twice.metadata.uid = Some("other".to_owned());
    assert!(api.set(vec![twice.clone(), (*first.pods[0]).clone()]).await);
    let second = updates.recv().await.unwrap();
    assert_eq!((second.op, second.source, second.pods.len()), (PodOp::Add, SourceKind::Api, 1));
    assert_eq!(dropped.lock().len(), 1);
    assert!(!sources.all_ready(), "delivered, but not heard yet");
    sources.consumed(second.source);
    assert!(sources.all_ready());
    let file = sources.states().into_iter().find(|s| s.kind == SourceKind::File).unwrap();
    assert!(file.errors.iter().any(|e| e.contains("/m/broken")), "{:?}", file.errors);
}

#[tokio::test]
async fn who_may_be_spared_is_known_when_the_sources_are_ready() {
    let found = FoundPod::of_file("theirs", "default", "web-n");
    let config = SourcesConfig {
        node: NodeName::parse("n").unwrap().into(),
        file: Some(FileConfig { path: "/m".into(), check_every: Duration::from_secs(20) }),
        http: None,
        api: false,
        running: vec![found],
    };
    let files = vec![("web".to_owned(), "x: [".to_owned())];
    let (sources, mut updates) = Sources::start(config, Fixed(files), Box::new(Forgetful), Arc::new(|_| {}));
    updates.recv().await.unwrap();
    sources.consumed(SourceKind::File);
    assert!(sources.all_ready());
    let spares = |uid| sources.spares(&PodUid::parse(uid).unwrap());
    assert!(spares("theirs") && !spares("unknown"));
    assert!(sources.untaken()[0].starts_with("/m/web: couldn't parse as pod"), "{:?}", sources.untaken());
}
