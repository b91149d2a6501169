use super::*;
use crate::spec::Source;

fn volume(name: &str, spec_name: &str) -> DesiredVolume {
    let spec = VolumeSpec::inline(spec_name.into(), Source::Nfs { server: "s".into(), path: "/p".into() });
    DesiredVolume {
        spec: Arc::new(spec),
        names: BTreeSet::from([name.to_owned()]),
        attachable: false,
        remount: false,
        label: Label::default(),
    }
}

fn found(name: &str, unique: &str, spec_name: &str) -> (String, Found) {
    (name.to_owned(), Found::Volume(UniqueName(unique.into()), volume(name, spec_name)))
}

fn error(text: &str) -> Unresolved {
    Unresolved { text: text.into(), away: false }
}

/// Each volume by its unique name, with the PersistentVolume's and all names in the pod; then what is not resolved.
fn shown(pod: &DesiredPod) -> (Vec<String>, Vec<String>) {
    let names = |volume: &DesiredVolume| volume.names.iter().cloned().collect::<Vec<_>>().join(",");
    let volumes =
        pod.volumes.iter().map(|(unique, volume)| format!("{unique} {}: {}", volume.spec.name, names(volume)));
    (volumes.collect(), pod.unresolved.iter().map(|(name, error)| format!("{name}: {}", error.text)).collect())
}

fn update(before: Option<&DesiredPod>, found: Vec<(String, Found)>) -> DesiredPod {
    DesiredPod::update(before, Arc::default(), found)
}

#[test]
fn two_names_of_one_volume_are_one_volume_as_the_first_has_it() {
    let pod = update(None, vec![found("a", "u", "first"), found("b", "u", "second"), found("c", "w", "third")]);
    assert_eq!(shown(&pod).0, ["u first: a,b", "w third: c"]);
    assert!(!pod.prepared);
}

#[test]
fn what_cannot_be_looked_at_stays_as_it_was_known() {
    let mut before = update(None, vec![found("a", "u", "one"), found("b", "u", "one"), found("c", "w", "two")]);
    before.prepared = true;
    let unknown = |name: &str| (name.to_owned(), Found::Unknown(error("away")));
    // Of a volume with two names both stay, whichever of them could be read.
    let pod = update(Some(&before), vec![found("a", "u", "new"), unknown("b"), unknown("c"), unknown("d")]);
    assert_eq!(shown(&pod), (vec!["u one: a,b".into(), "w two: c".into()], vec!["d: away".into()]));
    assert!(pod.prepared, "its folders are there");
}

#[test]
fn what_is_refused_does_not_stay() {
    let before = update(None, vec![found("a", "u", "one"), found("b", "w", "two")]);
    let refused = ("a".to_owned(), Found::Refused(error("another label")));
    let pod = update(Some(&before), vec![refused, found("b", "w", "two")]);
    assert_eq!(shown(&pod), (vec!["w two: b".into()], vec!["a: another label".into()]));
}

#[test]
fn a_specification_that_is_as_before_is_kept_once() {
    let before = update(None, vec![found("a", "u", "one"), found("b", "w", "two")]);
    let pod = update(Some(&before), vec![found("a", "u", "one"), found("b", "w", "other")]);
    let same = |unique: &str| {
        let unique = UniqueName(unique.into());
        Arc::ptr_eq(&pod.volumes[&unique].spec, &before.volumes[&unique].spec)
    };
    assert!(same("u") && !same("w"));
    assert!(!pod.wants_as_before(&before));
}
