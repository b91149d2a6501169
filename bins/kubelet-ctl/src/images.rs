//! `images`: images of the node, who uses them, and what garbage collection would do with each.

use std::fmt::Write as _;

use bulkhead_ipc::MAX_MESSAGE_BYTES;
use bulkhead_ipc::evictiond::images_client::ImagesClient;
use bulkhead_ipc::evictiond::images_part::Part;
use bulkhead_ipc::evictiond::{ImageCollection, ImageState, ListImagesRequest};
use bulkhead_types::Process;
use serde::Serialize;

use crate::age::human;
use crate::connect::{connect, request, within};
use crate::instance::Instance;
use crate::output::Printer;
use crate::pressure::bytes;
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
    let view = view(collection, images);
    printer.print(&view, || text(&view))?;
    Ok(Exit::Success)
}

fn view(collection: ImageCollection, images: Vec<ImageState>) -> Images {
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
    }
}

fn seconds(number: f64) -> String {
    #[allow(clippy::cast_possible_truncation, reason = "the cast saturates, and whole seconds are shown")]
    human(number as i64)
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
        let shown = text(&view(collection.clone(), images.clone()));
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
        let shown = text(&view(off, Vec::new()));
        assert!(shown.starts_with("Image file system: not known\nGarbage collection: off, "), "{shown}");
        let json = serde_json::to_value(view(collection, images)).unwrap();
        assert_eq!(json["images"][0]["fate"], "goes");
        assert_eq!(json["collection"]["highThresholdPercent"], 85);
    }
}
