//! What the node says of garbage collection of images that has failed; the words are upstream's (`pkg/kubelet/kubelet.go`
//! StartGarbageCollection, `pkg/kubelet/images/image_gc_manager.go`). Pure.

use bulkhead_ipc::syncd::{ImageCollectionFailureKind as Failure, ReportImageCollectionRequest};
use bulkhead_types::{GoDuration, go_aggregate};
use kubelet_model::events::{EventType, NodeEvent};

const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];

/// "10.0 GiB" (upstream formatSize).
fn size(bytes: i64) -> String {
    #[allow(clippy::cast_precision_loss, reason = "one digit after the point is shown")]
    let mut amount = bytes.max(0) as f64;
    if amount < 1024.0 {
        return format!("{amount} B");
    }
    let mut unit = UNITS[0];
    for name in UNITS {
        if amount < 1024.0 {
            break;
        }
        (amount, unit) = (amount / 1024.0, name);
    }
    format!("{amount:.1} {unit}")
}

/// The events, in order. `errors`: what the runtime said of images that it could not remove.
pub fn events(report: &ReportImageCollectionRequest, errors: &[String]) -> Vec<NodeEvent> {
    let warning = |reason: &'static str, message: &str| NodeEvent {
        kind: EventType::Warning,
        reason,
        message: message.to_owned(),
    };
    let (wanted, freed) = (report.wanted, report.freed);
    let (reason, message) = match report.kind() {
        Failure::NotEnough => {
            let (percent, capacity) = (report.used_percent, size(report.capacity));
            let message = format!(
                "Insufficient free disk space on the node's image filesystem ({percent}% of {capacity} used). Failed to free \
                 sufficient space by deleting unused images (freed {freed} bytes). Investigate disk usage, as it could be used \
                 by active images, logs, volumes, or other data."
            );
            (Some("FreeDiskSpaceFailed"), message)
        }
        Failure::NoCapacity => (Some("InvalidDiskCapacity"), "invalid capacity 0 on image filesystem".to_owned()),
        Failure::SpaceErrors => {
            let errors = go_aggregate(errors).unwrap_or_default();
            let message = format!(
                "wanted to free {wanted} bytes, but freed {freed} bytes space with errors in image deletion: {errors}"
            );
            (None, message)
        }
        Failure::AgeErrors => {
            #[allow(clippy::cast_possible_truncation, reason = "the cast saturates")]
            let age = GoDuration::from_millis((report.maximum_age_seconds * 1000.0) as i64);
            let errors = go_aggregate(errors).unwrap_or_default();
            (None, format!("wanted to free images older than {age}, encountered errors in image deletion: {errors}"))
        }
        Failure::Unknown | Failure::Unspecified => {
            (None, "failed to get images or the figures of the image filesystem".to_owned())
        }
    };
    let first = reason.map(|reason| warning(reason, &message));
    let again = report.repeated.then(|| warning("ImageGCFailed", &message));
    first.into_iter().chain(again).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_upstreams() {
        let of = |kind: Failure, repeated, errors: &[&str]| {
            let report = ReportImageCollectionRequest {
                kind: kind.into(),
                repeated,
                capacity: 10 << 30,
                wanted: 500,
                freed: 100,
                used_percent: 95,
                maximum_age_seconds: 90.0,
            };
            let errors: Vec<String> = errors.iter().map(|error| (*error).to_owned()).collect();
            events(&report, &errors).into_iter().map(|event| (event.reason, event.message)).collect::<Vec<_>>()
        };
        let full = "Insufficient free disk space on the node's image filesystem (95% of 10.0 GiB used). Failed to free \
                    sufficient space by deleting unused images (freed 100 bytes). Investigate disk usage, as it could be \
                    used by active images, logs, volumes, or other data."
            .to_owned();
        assert_eq!(of(Failure::NotEnough, false, &[]), [("FreeDiskSpaceFailed", full.clone())]);
        let both = [("FreeDiskSpaceFailed", full.clone()), ("ImageGCFailed", full)];
        assert_eq!(of(Failure::NotEnough, true, &[]), both);
        let none = ("InvalidDiskCapacity", "invalid capacity 0 on image filesystem".to_owned());
        assert_eq!(of(Failure::NoCapacity, false, &[]), [none]);
        assert!(of(Failure::SpaceErrors, false, &["x"]).is_empty());
        let text = "wanted to free 500 bytes, but freed 100 bytes space with errors in image deletion: [x, y]";
        assert_eq!(of(Failure::SpaceErrors, true, &["x", "y"]), [("ImageGCFailed", text.to_owned())]);
        assert_eq!(of(Failure::SpaceErrors, true, &["x", "y", "x"]), [("ImageGCFailed", text.to_owned())]);
        let text = "wanted to free images older than 1m30s, encountered errors in image deletion: x";
        assert_eq!(of(Failure::AgeErrors, true, &["x"]), [("ImageGCFailed", text.to_owned())]);
        assert_eq!(of(Failure::Unknown, true, &[])[0].0, "ImageGCFailed");
    }

    #[test]
    fn sizes() {
        let all = [0, 1023, 1024, 1536 << 10, 115_343_360, 96_500_000_000].map(size);
        assert_eq!(all, ["0 B", "1023 B", "1.0 KiB", "1.5 MiB", "110.0 MiB", "89.9 GiB"]);
    }
}
