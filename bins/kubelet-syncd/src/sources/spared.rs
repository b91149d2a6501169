//! Static pods of refused manifests: which running pods are left alone though no manifest wants them. After upstream's kubelet
//! the folder may have a manifest that upstream took and that is refused here, because it is not root's or because it is
//! invalid: its pod would be killed as an orphan. As long as such a file is there, a pod from a file that ran at the start and
//! that no manifest of ours ever had may be its.

use bulkhead_types::PodUid;
use kubelet_model::pod::source::SourceKind;

use super::{FoundPod, FullName, Merge};

#[derive(Debug, Default)]
pub(super) struct Spared {
    /// Pods from files that the runtime had at the start, that are in no record of ours and that no manifest was taken for since.
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

    /// The manifests' set that is in force now: what could not be taken, and what the sources want with it. Who was adopted by a manifest
    /// has found it; where another pod has its name, that manifest was taken as another pod.
    pub(super) fn told(&mut self, untaken: Vec<String>, wanted: &Merge) {
        self.untaken = untaken;
        let taken: Vec<(&str, &FullName)> = wanted.names(SourceKind::File).collect();
        self.found.retain(|(uid, name)| !taken.iter().any(|(other, taken)| other == uid || *taken == name));
    }

    pub(super) fn untaken(&self) -> &[String] {
        &self.untaken
    }

    /// A pod that the main loop does not know is no orphan: it may be one of `untaken`, or a source wants it and the main loop has not
    /// heard of that yet.
    pub(super) fn has(&self, uid: &PodUid, wanted: &Merge) -> bool {
        let may_be_untaken = || !self.untaken.is_empty() && self.found.iter().any(|(found, _)| found == uid.as_str());
        wanted.pod(uid.as_str()).is_some() || may_be_untaken()
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
        let found = |source: SourceKind| FoundPod { source, ..FoundPod::of_file("theirs", "kube-system", "web-n") };
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
            all.told(untaken, &merge);
            assert_eq!(all.has(&PodUid::parse("theirs").unwrap(), &merge), spared, "{case}");
            assert!(!all.has(&PodUid::parse("unknown").unwrap(), &merge), "{case}");
        }
    }

    #[test]
    fn a_pod_whose_manifest_was_taken_once_is_spared_for_no_other() {
        let found = FoundPod::of_file("theirs", "kube-system", "web-n");
        let pod = |uid: &str| -> Pod {
            let metadata = json!({"namespace": "kube-system", "name": "web-n", "uid": uid});
            serde_json::from_value(json!({ "metadata": metadata })).unwrap()
        };
        type Case<'a> = (&'a str, Vec<Vec<Pod>>, bool);
        #[rustfmt::skip]
        let cases: [Case<'_>; 4] = [
            // the sets after one another, while another manifest is refused all the time; spared at the end
            ("no manifest was taken",           vec![vec![], vec![]],             true),
            ("adopted, and wanted",             vec![vec![pod("theirs")]],         true),
            ("adopted, its manifest removed",   vec![vec![pod("theirs")], vec![]], false),
            ("edited, and then removed",        vec![vec![pod("edited")], vec![]], false),
        ];
        for (case, sets, spared) in cases {
            let mut merge = Merge::default();
            let mut all = Spared::new(vec![found.clone()], |_| false);
            for set in sets {
                merge.set(SourceKind::File, set, Timestamp::UNIX_EPOCH);
                all.told(vec!["/m/other.yaml: not root's".to_owned()], &merge);
            }
            assert_eq!(all.has(&PodUid::parse("theirs").unwrap(), &merge), spared, "{case}");
        }
    }
}
