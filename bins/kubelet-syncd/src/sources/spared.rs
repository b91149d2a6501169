//! Which running static pods are left alone though no manifest wants them. After upstream's kubelet the folder may have a
//! manifest that upstream took and that is refused here, because it is not root's or because it is invalid: its pod would be
//! killed as an orphan. As long as such a file is there, a pod from a file that ran at the start and that no manifest of ours
//! ever had may be its.

use bulkhead_types::PodUid;
use kubelet_model::pod::source::SourceKind;

use super::{FoundPod, FullName, Merge};

#[derive(Debug, Default)]
pub(super) struct Spared {
    /// Pods from files that the runtime had at the start and that are in no record of ours.
    found: Vec<(String, FullName)>,
    /// Files that may be the manifest of one of them, each with the reason why it could not be taken.
    untaken: Vec<String>,
}

impl Spared {
    /// `was_taken`: a manifest was taken with that uid in an earlier life. If no manifest wants it now, it was edited or removed.
    pub(super) fn new(running: Vec<FoundPod>, was_taken: impl Fn(&str) -> bool) -> Self {
        let of_upstream = running.into_iter().filter(|pod| pod.source == SourceKind::File && !was_taken(&pod.uid));
        Spared { found: of_upstream.map(|pod| (pod.uid, (pod.namespace, pod.name))).collect(), untaken: Vec::new() }
    }

    /// What could not be taken of the set that is in force now.
    pub(super) fn told(&mut self, untaken: Vec<String>) {
        self.untaken = untaken;
    }

    pub(super) fn untaken(&self) -> &[String] {
        &self.untaken
    }

    /// The pod may be one of `untaken`; also one that a manifest has just adopted, of which the main loop has not heard yet. Where
    /// another manifest has its name by now, that one was taken, as another pod.
    pub(super) fn has(&self, uid: &PodUid, wanted: &Merge) -> bool {
        let found = self.found.iter().find(|(found, _)| found == uid.as_str());
        let is_another = |name| wanted.names(SourceKind::File).any(|(_, other)| other == name);
        found.is_some_and(|(_, name)| {
            wanted.pod(uid.as_str()).is_some() || !self.untaken.is_empty() && !is_another(name)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use kubelet_model::v1::Pod;
    use serde_json::json;

    #[test]
    fn a_pod_that_may_be_that_of_a_file_that_could_not_be_taken_is_spared() {
        let found = |source: SourceKind| FoundPod {
            uid: "theirs".into(),
            namespace: "kube-system".into(),
            name: "web-n".into(),
            source,
            runs: true,
            containers: Vec::new(),
        };
        let pod = |name: &str, uid: &str| -> Pod {
            serde_json::from_value(json!({"metadata": {"namespace": "kube-system", "name": name, "uid": uid}})).unwrap()
        };
        let refused = || vec!["/m/web.yaml: not root's".to_owned()];
        let (file, url, api) = (SourceKind::File, SourceKind::Http, SourceKind::Api);
        let other = || vec![pod("other-n", "other")];
        type Case<'a> = (&'a str, SourceKind, bool, Vec<String>, Vec<Pod>, bool);
        #[rustfmt::skip]
        let cases: [Case<'_>; 9] = [
            // source of what runs, whether we had it, what is not taken, what is; spared
            ("a file is not taken",              file, false, refused(), other(),                      true),
            ("nothing else is there",            file, false, refused(), vec![],                       true),
            ("all files are taken",              file, false, vec![],    other(),                      false),
            ("its file was removed",             file, false, vec![],    vec![],                       false),
            ("its manifest was edited",          file, false, refused(), vec![pod("web-n", "another")], false),
            ("its manifest has just adopted it", file, false, vec![],    vec![pod("web-n", "theirs")],  true),
            ("ours, its manifest was removed",   file, true,  refused(), other(),                      false),
            ("from the URL",                     url,  false, refused(), other(),                      false),
            ("of the API server",                api,  false, refused(), other(),                      false),
        ];
        for (case, source, was_taken, untaken, wanted, spared) in cases {
            let mut merge = Merge::default();
            merge.set(SourceKind::File, wanted, Timestamp::UNIX_EPOCH);
            let mut all = Spared::new(vec![found(source)], |_| was_taken);
            all.told(untaken);
            assert_eq!(all.has(&PodUid::parse("theirs").unwrap(), &merge), spared, "{case}");
            assert!(!all.has(&PodUid::parse("unknown").unwrap(), &merge), "{case}");
        }
    }
}
