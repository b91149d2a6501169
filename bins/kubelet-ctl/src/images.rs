//! `images`: images of the node, who uses them, what garbage collection would do with each, and what is being pulled.

use std::fmt::Write as _;

use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::evictiond::images_client::ImagesClient;
use bulkhead_ipc::evictiond::images_part::Part;
use bulkhead_ipc::evictiond::{ImageCollection, ImageState, ListImagesRequest};
use bulkhead_ipc::syncd::images_client::ImagesClient as SyncdImagesClient;
use bulkhead_ipc::syncd::{ImagePull, ImagePullStage, ListPullsRequest};
use bulkhead_types::Process;
use serde::Serialize;

use crate::age::seconds;
use crate::amount::bytes;
use crate::connect::{connect, request, within};
use crate::instance::Instance;
use crate::output::Printer;
use crate::table::{Table, printable};
use crate::{Exit, Failure};

/// More images than a node can have; what comes after them is not shown.
const MAX_IMAGES: usize = 20_000;
/// Letters of an id, as runtimes' own tools cut it.
const ID_LETTERS: usize = 13;

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Images {
    collection: Collection,
    images: Vec<Image>,
    /// None: kubelet-syncd does not say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pulls: Option<Vec<Pull>>,
}

/// Seconds; `forSeconds` is since when it is in its stage, or since it failed.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Pull {
    image: String,
    registry: String,
    pod_uid: String,
    namespace: String,
    pod: String,
    stage: &'static str,
    for_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_seconds: Option<f64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    error: String,
}

/// Bytes, percent, seconds.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Collection {
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    available: Option<i64>,
    high_threshold_percent: u32,
    low_threshold_percent: u32,
    minimum_age_seconds: f64,
    maximum_age_seconds: f64,
    disabled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_round_seconds: Option<f64>,
    next_round_seconds: f64,
    last_outcome: String,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Image {
    id: String,
    names: Vec<String>,
    size_bytes: u64,
    pinned: bool,
    used_by: Vec<String>,
    uses: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_seen_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_used_seconds: Option<f64>,
    fate: String,
    why: String,
}

/// `images`.
pub(crate) async fn show(instance: &Instance, printer: &mut Printer<'_>) -> Result<Exit, Failure> {
    let connected = connect(instance, Process::Evictiond).await?;
    let mut client = ImagesClient::new(connected.channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let call = async {
        let mut stream = client.list(request(ListImagesRequest {})).await?.into_inner();
        let (mut collection, mut images) = (ImageCollection::default(), Vec::new());
        while let Some(part) = stream.message().await? {
            match part.part {
                Some(Part::Collection(head)) => collection = head,
                Some(Part::Image(image)) if images.len() < MAX_IMAGES => images.push(image),
                Some(Part::Image(_)) | None => {}
            }
        }
        Ok((collection, images))
    };
    let (collection, images) = within(Process::Evictiond, instance, call).await?;
    let view = view(collection, images, pulls(instance).await);
    printer.print(&view, || text(&view))?;
    Ok(Exit::Success)
}

/// None: kubelet-syncd is away, or is of a version that does not tell.
async fn pulls(instance: &Instance) -> Option<Vec<ImagePull>> {
    let connected = connect(instance, Process::Syncd).await.ok()?;
    let mut client = SyncdImagesClient::new(connected.channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let call = async {
        let mut stream = client.pulls(request(ListPullsRequest {})).await?.into_inner();
        let mut pulls = Vec::new();
        while let Some(pull) = stream.message().await? {
            if pulls.len() < MAX_IMAGES {
                pulls.push(pull);
            }
        }
        Ok(pulls)
    };
    within(Process::Syncd, instance, call).await.ok()
}

fn pull(pull: ImagePull) -> Pull {
    Pull {
        stage: match pull.stage() {
            ImagePullStage::Unspecified => "unknown",
            ImagePullStage::Queued => "queued",
            ImagePullStage::Pulling => "pulling",
            ImagePullStage::BackOff => "back-off",
        },
        for_seconds: pull.seconds,
        retry_seconds: pull.retry_seconds,
        image: pull.image,
        registry: pull.registry,
        pod_uid: pull.pod_uid,
        namespace: pull.namespace,
        pod: pull.pod,
        error: pull.error,
    }
}

fn view(collection: ImageCollection, images: Vec<ImageState>, pulls: Option<Vec<ImagePull>>) -> Images {
    let image = |image: ImageState| Image {
        id: image.id,
        names: image.names,
        size_bytes: image.size_bytes,
        pinned: image.pinned,
        used_by: image.used_by,
        uses: image.uses,
        first_seen_seconds: image.first_seen_seconds,
        last_used_seconds: image.last_used_seconds,
        fate: image.fate,
        why: image.why,
    };
    Images {
        collection: Collection {
            capacity: collection.capacity,
            available: collection.available,
            high_threshold_percent: collection.high_threshold_percent,
            low_threshold_percent: collection.low_threshold_percent,
            minimum_age_seconds: collection.minimum_age_seconds,
            maximum_age_seconds: collection.maximum_age_seconds,
            disabled: collection.disabled,
            last_round_seconds: collection.last_round_seconds,
            next_round_seconds: collection.next_round_seconds,
            last_outcome: collection.last_outcome,
        },
        images: images.into_iter().map(image).collect(),
        pulls: pulls.map(|pulls| pulls.into_iter().map(pull).collect()),
    }
}

/// The first name, or the beginning of the id of one that has none.
fn name(image: &Image) -> String {
    match image.names.first() {
        Some(name) => name.clone(),
        None => image.id.trim_start_matches("sha256:").chars().take(ID_LETTERS).collect(),
    }
}

fn text(view: &Images) -> String {
    let (all, mut out) = (&view.collection, String::new());
    // Writing to a String cannot fail.
    let _ = match (all.capacity, all.available) {
        (Some(capacity), Some(available)) if capacity > 0 => {
            let used = i128::from(capacity.saturating_sub(available)) * 100 / i128::from(capacity);
            writeln!(out, "Image file system: {used}% of {} used", bytes(capacity))
        }
        _ => writeln!(out, "Image file system: not known"),
    };
    let _ = if all.disabled {
        writeln!(out, "Garbage collection: off, unused images go under disk pressure alone")
    } else {
        let age = match all.maximum_age_seconds {
            age if age > 0.0 => format!(", and those that were not used for {}", seconds(age)),
            _ => String::new(),
        };
        let (high, low) = (all.high_threshold_percent, all.low_threshold_percent);
        writeln!(out, "Garbage collection: unused images go from {high}% on, down to {low}%{age}")
    };
    if let Some(ago) = all.last_round_seconds {
        let (ago, next) = (seconds(ago), seconds(all.next_round_seconds));
        let _ = writeln!(out, "Last round: {ago} ago, {}; the next one in {next}", printable(&all.last_outcome));
    }
    let mut table = Table::new(&["PULL", "POD", "STAGE", "FOR", "NEXT TRY", "LAST ERROR"]);
    for pull in view.pulls.iter().flatten() {
        let pod = if pull.pod.is_empty() { pull.pod_uid.clone() } else { format!("{}/{}", pull.namespace, pull.pod) };
        table.row([
            pull.image.clone(),
            pod,
            pull.stage.to_owned(),
            seconds(pull.for_seconds),
            pull.retry_seconds.map(|left| format!("in {}", seconds(left))).unwrap_or_default(),
            pull.error.clone(),
        ]);
    }
    let _ = match &view.pulls {
        None => writeln!(out, "Pulls: not known, kubelet-syncd does not say"),
        Some(pulls) if pulls.is_empty() => Ok(()),
        Some(_) => write!(out, "\n{}", table.render(0)),
    };
    let mut table = Table::new(&["IMAGE", "SIZE", "PINNED", "USED BY", "FIRST SEEN", "LAST USED", "NEXT", "WHY"]);
    for image in &view.images {
        let age = |age: Option<f64>| age.map(seconds).unwrap_or_default();
        let used_by = match (image.uses, image.used_by.first()) {
            (0, _) | (_, None) => String::new(),
            (1, Some(user)) => user.clone(),
            (uses, Some(user)) => format!("{user} and {} more", uses - 1),
        };
        table.row([
            name(image),
            bytes(i64::try_from(image.size_bytes).unwrap_or(i64::MAX)),
            if image.pinned { "yes" } else { "no" }.to_owned(),
            used_by,
            age(image.first_seen_seconds),
            age(image.last_used_seconds),
            image.fate.clone(),
            image.why.clone(),
        ]);
    }
    let _ = write!(out, "\n{}", table.render(0));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_with_what_would_become_of_them() {
        let collection = ImageCollection {
            capacity: Some(10 << 30),
            available: Some(1 << 30),
            high_threshold_percent: 85,
            low_threshold_percent: 80,
            minimum_age_seconds: 120.0,
            maximum_age_seconds: 86_400.0,
            disabled: false,
            last_round_seconds: Some(61.0),
            next_round_seconds: 239.0,
            last_outcome: "removed nothing".into(),
        };
        let image = |name: &str, used_by: &[&str], last, fate: &str, why: &str| ImageState {
            id: "sha256:0123456789abcdef".into(),
            names: (!name.is_empty()).then(|| name.to_owned()).into_iter().collect(),
            size_bytes: 5 << 20,
            used_by: used_by.iter().map(|user| (*user).to_owned()).collect(),
            uses: u32::try_from(used_by.len()).unwrap(),
            first_seen_seconds: Some(11_000.0),
            last_used_seconds: last,
            fate: fate.into(),
            why: why.into(),
            ..ImageState::default()
        };
        let images = vec![
            image("", &[], Some(10_800.0), "goes", "unused for 3h; the image file system is 90% full"),
            image(
                "r.test/web:1",
                &["default/web (main)", "default/b (c)"],
                Some(0.0),
                "stays",
                "used by default/web (main)",
            ),
        ];
        let shown = text(&view(collection.clone(), images.clone(), Some(Vec::new())));
        let expected = "\
Image file system: 90% of 10.0Gi used
Garbage collection: unused images go from 85% on, down to 80%, and those that were not used for 24h
Last round: 61s ago, removed nothing; the next one in 3m59s

IMAGE           SIZE    PINNED   USED BY                         FIRST SEEN   LAST USED   NEXT    WHY
0123456789abc   5.0Mi   no       -                               3h3m         3h          goes    unused for 3h; the image file system is 90% full
r.test/web:1    5.0Mi   no       default/web (main) and 1 more   3h3m         0s          stays   used by default/web (main)
";
        assert_eq!(shown, expected, "{shown}");
        let off = ImageCollection { disabled: true, capacity: None, last_round_seconds: None, ..collection.clone() };
        let shown = text(&view(off, Vec::new(), None));
        assert!(shown.starts_with("Image file system: not known\nGarbage collection: off, "), "{shown}");
        assert!(shown.contains("\nPulls: not known, kubelet-syncd does not say\n"), "{shown}");
        let json = serde_json::to_value(view(collection, images, None)).unwrap();
        assert_eq!(json.get("pulls"), None);
        assert_eq!(json["images"][0]["fate"], "goes");
        assert_eq!(json["collection"]["highThresholdPercent"], 85);
    }

    #[test]
    fn pulls_with_their_stages() {
        let queued = ImagePull {
            image: "r.test/web:1".into(),
            registry: "r.test".into(),
            pod_uid: "u1".into(),
            namespace: "default".into(),
            pod: "web".into(),
            stage: ImagePullStage::Queued.into(),
            seconds: 61.5,
            ..ImagePull::default()
        };
        let pulling = ImagePull { stage: ImagePullStage::Pulling.into(), seconds: 3.0, ..queued.clone() };
        let failed = ImagePull {
            pod: String::new(),
            stage: ImagePullStage::BackOff.into(),
            retry_seconds: Some(7.0),
            error: "ErrImagePull: no".into(),
            ..queued.clone()
        };
        let view = view(ImageCollection::default(), Vec::new(), Some(vec![pulling, queued, failed]));
        let expected = "
PULL           POD           STAGE      FOR   NEXT TRY   LAST ERROR
r.test/web:1   default/web   pulling    3s    -          -
r.test/web:1   default/web   queued     61s   -          -
r.test/web:1   u1            back-off   61s   in 7s      ErrImagePull: no
";
        let shown = text(&view);
        assert!(shown.contains(expected), "{shown}");
        let json = serde_json::to_value(view).unwrap();
        assert_eq!((&json["pulls"][1]["stage"], &json["pulls"][2]["retrySeconds"]), (&"queued".into(), &7.0.into()));
        assert_eq!(json["pulls"][0].get("error"), None);
    }
}
