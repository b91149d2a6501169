//! What garbage collection would do with each image now, and why: for the operator. Pure.

use bulkhead_ipc::evictiond::ImageState;
use bulkhead_ipc::syncd::{ImageUse, ImageUseKind, StoredImage};

use super::ledger::Ledger;
use super::passes::{self, ImageFs, Unused};
use super::policy::Policy;

/// When it is asked, milliseconds since boot, and since when images have been watched.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    pub now_ms: i64,
    pub began_ms: i64,
}

/// "3h", "2m5s", "10s".
fn age(milliseconds: i64) -> String {
    let seconds = milliseconds.max(0) / 1000;
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// "default/web (main)".
pub fn user(user: &ImageUse) -> String {
    let name = match (user.namespace.as_str(), user.pod.as_str()) {
        ("", "") => "a container of no pod".to_owned(),
        (namespace, pod) => format!("{namespace}/{pod} ({})", user.container),
    };
    match user.kind() {
        ImageUseKind::Start | ImageUseKind::Unspecified => "a start or a pull".to_owned(),
        ImageUseKind::Volume => format!("a volume of {name}"),
        ImageUseKind::Container if user.running => name,
        ImageUseKind::Container => format!("{name}, which has ended"),
    }
}

/// Why an image that may go goes with the next round, or why it stays.
fn unused(image: &Unused, policy: &Policy, at: Moment, for_space: Option<bool>, fs: Option<ImageFs>) -> (bool, String) {
    let since = match image.last_used_ms {
        Some(last) => format!("unused for {}", age(at.now_ms.saturating_sub(last))),
        None => "never seen used".to_owned(),
    };
    let young = policy.min_age_ms.saturating_sub(at.now_ms.saturating_sub(image.first_detected_ms));
    if young > 0 {
        return (false, format!("younger than imageMinimumGCAge for {} more", age(young.saturating_add(999))));
    }
    if policy.is_disabled() {
        return (false, format!("{since}; images go under disk pressure alone"));
    }
    if image.is_too_old(policy, at.now_ms) {
        let watched = at.now_ms.saturating_sub(at.began_ms);
        if watched > policy.max_age_ms {
            return (true, format!("{since}, longer than imageMaximumGCAge"));
        }
        let left = age(policy.max_age_ms.saturating_sub(watched).saturating_add(999));
        return (false, format!("{since}; goes in {left}, when kubelet-evictiond has run for imageMaximumGCAge"));
    }
    match (for_space, fs.and_then(|fs| fs.used_percent())) {
        (Some(true), Some(used)) => (true, format!("{since}; the image file system is {used}% full")),
        (Some(false), _) => (false, format!("{since}; enough goes before it")),
        _ => (false, format!("{since}; goes when the image file system is {}% full", policy.high_percent)),
    }
}

/// All images: those that go, or would go, first first; then those that are used or pinned.
pub fn fates(
    images: &[StoredImage],
    ledger: &Ledger,
    policy: &Policy,
    fs: Option<ImageFs>,
    at: Moment,
) -> Vec<ImageState> {
    let shortage = fs.and_then(|fs| fs.shortage(policy)).filter(|_| !policy.is_disabled());
    let order = passes::order(images, ledger, at.now_ms);
    let mut missing = shortage.map(|shortage| shortage.wanted);
    let mut all: Vec<(usize, &StoredImage, bool, String)> = Vec::new();
    for (place, one) in order.iter().enumerate() {
        let Some(image) = images.iter().find(|image| image.id == one.id) else { continue };
        let for_space = missing.map(|missing| missing > 0);
        let (goes, why) = unused(one, policy, at, for_space, fs);
        if goes {
            missing = missing.map(|missing| missing.saturating_sub(one.size));
        }
        all.push((place, image, goes, why));
    }
    let kept = images.iter().filter(|image| image.uses > 0 || image.pinned).map(|image| {
        let more = usize::try_from(image.uses).unwrap_or(0).saturating_sub(1);
        let why = match image.used_by.first() {
            Some(first) if more > 0 => format!("used by {} and {more} more", user(first)),
            Some(first) => format!("used by {}", user(first)),
            None if image.pinned => "pinned".to_owned(),
            None => "used".to_owned(),
        };
        (order.len(), image, false, why)
    });
    all.extend(kept);
    // Who goes by age may stand behind one who stays.
    all.sort_by_key(|(place, image, goes, _)| (!goes, *place, image.names.first().cloned(), image.id.clone()));
    all.into_iter().map(|(_, image, goes, why)| state(image, ledger, at, goes, why)).collect()
}

#[allow(clippy::cast_precision_loss, reason = "ages are shown")]
fn state(image: &StoredImage, ledger: &Ledger, at: Moment, goes: bool, why: String) -> ImageState {
    let seconds = |since: i64| at.now_ms.saturating_sub(since).max(0) as f64 / 1000.0;
    let record = ledger.get(&image.id);
    ImageState {
        id: image.id.clone(),
        names: image.names.clone(),
        size_bytes: image.size_bytes,
        pinned: image.pinned,
        used_by: image.used_by.iter().map(user).collect(),
        uses: image.uses,
        first_seen_seconds: record.map(|record| seconds(record.first_detected_ms)),
        last_used_seconds: record.and_then(|record| record.last_used_ms).map(seconds),
        fate: if goes { "goes" } else { "stays" }.to_owned(),
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::super::ledger::Record;
    use super::super::ledger::tests::image;
    use super::*;

    #[test]
    fn what_would_become_of_each() {
        let hour = 3_600_000;
        let policy = Policy { high_percent: 85, low_percent: 80, min_age_ms: 120_000, max_age_ms: 0 };
        let at = Moment { now_ms: 10 * hour, began_ms: 9 * hour };
        let mut ledger = Ledger::default();
        let mut note = |id: &str, first, last| {
            ledger.images.insert(id.into(), Record { first_detected_ms: first, last_used_ms: last });
        };
        note("old", 0, Some(hour));
        note("newer", 0, Some(7 * hour));
        note("never", 0, None);
        note("young", 10 * hour - 30_000, None);
        note("web", 0, Some(10 * hour));
        let by = |running| ImageUse {
            kind: ImageUseKind::Container.into(),
            namespace: "default".into(),
            pod: "web".into(),
            container: "main".into(),
            running,
        };
        let images = [
            image("old", 30, 0),
            image("newer", 30, 0),
            image("never", 30, 0),
            image("young", 30, 0),
            StoredImage { used_by: vec![by(true), by(false)], ..image("web", 30, 2) },
            StoredImage { pinned: true, ..image("pause", 1, 0) },
        ];
        let shown = |policy: &Policy, available| {
            let fs = Some(ImageFs { capacity: 1000, available });
            let all = fates(&images, &ledger, policy, fs, at);
            all.into_iter().map(|one| format!("{} {}: {}", one.id, one.fate, one.why)).collect::<Vec<_>>()
        };
        let kept = ["pause stays: pinned", "web stays: used by default/web (main) and 1 more"];
        let young = "young stays: younger than imageMinimumGCAge for 90s more";
        let calm = [
            "never stays: never seen used; goes when the image file system is 85% full",
            young,
            "old stays: unused for 9h; goes when the image file system is 85% full",
            "newer stays: unused for 3h; goes when the image file system is 85% full",
        ];
        assert_eq!(shown(&policy, 500), [&calm[..], &kept[..]].concat());
        let full = shown(&policy, 145);
        assert_eq!(
            full[..4],
            [
                "never goes: never seen used; the image file system is 86% full",
                "old goes: unused for 9h; the image file system is 86% full",
                young,
                "newer stays: unused for 3h; enough goes before it",
            ]
        );
        let aged = Policy { max_age_ms: 8 * hour, ..policy };
        assert!(shown(&aged, 500).contains(
            &"old stays: unused for 9h; goes in 7h, when kubelet-evictiond has run for imageMaximumGCAge".to_owned()
        ));
        let aged = Policy { max_age_ms: hour / 2, ..policy };
        assert_eq!(shown(&aged, 500)[1], "old goes: unused for 9h, longer than imageMaximumGCAge");
        let off = Policy { high_percent: 100, ..policy };
        assert!(shown(&off, 0).contains(&"old stays: unused for 9h; images go under disk pressure alone".to_owned()));
    }

    #[test]
    fn who_uses_it() {
        let by = |kind: ImageUseKind, running| {
            user(&ImageUse {
                kind: kind.into(),
                namespace: "n".into(),
                pod: "p".into(),
                container: "c".into(),
                running,
            })
        };
        assert_eq!(by(ImageUseKind::Container, true), "n/p (c)");
        assert_eq!(by(ImageUseKind::Container, false), "n/p (c), which has ended");
        assert_eq!(by(ImageUseKind::Volume, true), "a volume of n/p (c)");
        assert_eq!(by(ImageUseKind::Start, false), "a start or a pull");
        assert_eq!(
            user(&ImageUse { kind: ImageUseKind::Container.into(), ..ImageUse::default() }),
            "a container of no pod, which has ended"
        );
    }
}
