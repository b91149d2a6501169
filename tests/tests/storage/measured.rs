//! What the node measures of volumes of the hostpath driver, beside the recording of upstream's kubelet: which series there are, with
//! which labels, and what the summary has of each volume.

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::{LONG, eventually};
use bulkhead_tests::storage::recorded::{self, same_lines};
use bulkhead_tests::storage::{NODE, Scene};
use serde_json::Value;

/// How the names of families about volumes begin.
const FAMILIES: [&str; 6] = [
    "csi_operations_seconds",
    "kubelet_volume_stats_",
    "reconstruct_volume_operations_",
    "storage_operation_duration_seconds",
    "volume_manager_total_volumes",
    "volume_operation_total_seconds",
];

/// Parts of recorded series that are not told here; docs/differences.md and docs/metrics.md say why. Pods of the scene have no token
/// of their own, whose volume is the only projected one of the recording.
const NOT_TOLD: [&str; 4] = [
    "volume_operation_total_seconds",
    "operation_name=\"volume_apply_access_control\"",
    "kubernetes.io/projected",
    "kubelet_volume_metric_collection_duration_seconds",
];
/// That volume in the summary.
const TOKEN: &str = "$TOKEN ";

/// Parts of those that an expansion makes.
const EXPANSION: [&str; 2] = ["/csi.v1.Node/NodeExpandVolume", "operation_name=\"volume_fs_resize\""];

fn has(series: &str, parts: &[&str]) -> bool {
    parts.iter().any(|part| series.contains(part))
}

fn get(scene: &Scene, path: &str) -> Result<String> {
    scene.cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{NODE}/proxy/{path}")])
}

/// Name and labels of each series about volumes; of a histogram one.
fn series(scene: &Scene) -> Result<Vec<String>> {
    let text = get(scene, "metrics")?;
    let named = text.lines().filter(|line| FAMILIES.iter().any(|family| line.starts_with(family)));
    let named = named.filter_map(|line| line.rsplit_once(' ')).map(|(series, _)| series);
    let is_part = |series: &str| {
        let name = series.split('{').next().unwrap_or_default();
        name.ends_with("_bucket") || name.ends_with("_seconds_sum")
    };
    Ok(named.filter(|series| !is_part(series)).map(str::to_owned).collect())
}

fn recorded_series(is_it: impl Fn(&str) -> bool) -> Result<Vec<String>> {
    let mut all = recorded::lines("metrics.txt")?;
    all.retain(|series| is_it(series));
    Ok(all)
}

/// The recorded pod runs, and nothing has been expanded: its volumes are measured as upstream's kubelet measured them.
pub(crate) fn as_recorded(scene: &Scene, pod: &str) -> Result<()> {
    let told = |series: &str| !has(series, &NOT_TOLD) && !has(series, &EXPANSION);
    let expected = recorded_series(told)?;
    let mut volumes = recorded::lines("summary.txt")?;
    volumes.retain(|volume| !volume.starts_with(TOKEN));
    eventually("what is measured of volumes", LONG, || {
        same_lines("volumes in the summary", &volumes, &summary(scene, pod)?)?;
        same_lines("series about volumes", &expected, &series(scene)?)
    })
}

/// A volume was expanded.
pub(crate) fn is_expansion_counted(scene: &Scene) -> Result<()> {
    let ours = series(scene)?;
    let missing = recorded_series(|series| has(series, &EXPANSION) && !ours.iter().any(|one| one == series))?;
    ensure!(missing.is_empty(), "no {missing:#?} in {ours:#?}");
    Ok(())
}

/// Name, claim and fields of each of the pod's volumes.
fn summary(scene: &Scene, pod: &str) -> Result<Vec<String>> {
    let summary: Value = serde_json::from_str(&get(scene, "stats/summary")?)?;
    let pods = summary["pods"].as_array().context("no pods")?;
    let pod = pods.iter().find(|one| one["podRef"]["name"] == pod).context("no such pod")?;
    let line = |volume: &Value| -> Result<String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let name = text(&volume["name"]);
        let claim = match &volume["pvcRef"] {
            Value::Null => "-".to_owned(),
            claim => format!("{}/{}", text(&claim["namespace"]), text(&claim["name"])),
        };
        let all = volume.as_object().context("no object")?.keys().map(String::as_str);
        let mut fields: Vec<&str> = all.filter(|field| !["name", "pvcRef"].contains(field)).collect();
        fields.sort_unstable();
        Ok(format!("{name} {claim} {}", fields.join(" ")))
    };
    pod["volume"].as_array().context("no volumes")?.iter().map(line).collect()
}
