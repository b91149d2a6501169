//! ginkgo's report (`--json-report`): what became of each spec.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// What became of a spec that was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    /// Failed, panicked, timed out, or was interrupted.
    Failed,
    /// The spec found, once it ran, that this machine or cluster is none for it.
    Skipped,
}

/// A spec that was begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    pub outcome: Outcome,
    pub took: Duration,
    /// Why it failed or was skipped.
    pub message: String,
}

/// What became of all specs that were begun, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    pub specs: BTreeMap<String, Spec>,
}

impl Report {
    /// Reads ginkgo's report. Specs that the filters left out are not in the result.
    ///
    /// # Errors
    /// It is no such report, or what precedes all specs has failed.
    pub fn read(json: &[u8]) -> Result<Self> {
        let suites: Vec<Value> = serde_json::from_slice(json).context("ginkgo's report is no list of suites")?;
        let mut specs = BTreeMap::new();
        for one in suites.iter().flat_map(|suite| suite["SpecReports"].as_array().into_iter().flatten()) {
            let outcome = match one["State"].as_str().context("a spec without a state in ginkgo's report")? {
                "passed" => Outcome::Passed,
                "skipped" => Outcome::Skipped,
                "pending" => continue,
                _ => Outcome::Failed,
            };
            let message = one["Failure"]["Message"].as_str().unwrap_or_default().to_owned();
            if one["LeafNodeType"] != "It" {
                if outcome == Outcome::Failed
                    && one["LeafNodeType"].as_str().is_some_and(|kind| kind.contains("Before"))
                {
                    bail!("the specs were not begun, because what precedes all of them failed: {message}");
                }
                continue;
            }
            // A spec that a filter left out has been tried no time.
            if one["NumAttempts"].as_u64().unwrap_or(0) == 0 {
                continue;
            }
            let took = Duration::from_nanos(one["RunTime"].as_u64().unwrap_or(0));
            specs.insert(name(one), Spec { outcome, took, message });
        }
        Ok(Self { specs })
    }

    /// How many specs came out so.
    pub fn count(&self, outcome: Outcome) -> usize {
        self.specs.values().filter(|spec| spec.outcome == outcome).count()
    }
}

/// The texts of a spec's containers and its own, as ginkgo's filters see them, in one line.
fn name(spec: &Value) -> String {
    let containers = spec["ContainerHierarchyTexts"].as_array().into_iter().flatten();
    let texts = containers.chain([&spec["LeafNodeText"]]).filter_map(Value::as_str);
    texts.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec(text: &str, state: &str, attempts: u64, message: &str) -> Value {
        json!({
            "ContainerHierarchyTexts": ["[sig-node] Pods"], "LeafNodeType": "It", "LeafNodeText": text,
            "State": state, "NumAttempts": attempts, "RunTime": 1_500_000_000_u64, "Failure": {"Message": message},
        })
    }

    #[test]
    fn specs_are_named_by_all_their_texts_and_those_left_out_are_absent() -> Result<()> {
        let report = json!([{"SpecReports": [
            {"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed", "NumAttempts": 1},
            spec("should a", "passed", 1, ""),
            spec("should\n  b", "timedout", 1, "too late"),
            spec("should c", "skipped", 1, "needs two nodes"),
            spec("left out", "skipped", 0, ""),
            spec("unwritten", "pending", 0, ""),
        ]}]);
        let report = Report::read(report.to_string().as_bytes())?;
        let seen: Vec<_> =
            report.specs.iter().map(|(name, s)| (name.as_str(), s.outcome, s.message.as_str())).collect();
        assert_eq!(
            seen,
            [
                ("[sig-node] Pods should a", Outcome::Passed, ""),
                ("[sig-node] Pods should b", Outcome::Failed, "too late"),
                ("[sig-node] Pods should c", Outcome::Skipped, "needs two nodes"),
            ]
        );
        assert_eq!(report.specs["[sig-node] Pods should a"].took, Duration::from_millis(1500));
        Ok(())
    }

    #[test]
    fn a_failed_beginning_is_no_report_without_failures() {
        let report = json!([{"SpecReports": [
            {"LeafNodeType": "SynchronizedBeforeSuite", "State": "failed", "NumAttempts": 1,
             "Failure": {"Message": "no node is ready"}},
            spec("should a", "skipped", 0, ""),
        ]}]);
        let error = Report::read(report.to_string().as_bytes()).unwrap_err().to_string();
        assert!(error.contains("no node is ready"), "{error}");
    }

    #[test]
    fn what_is_no_report_is_refused() {
        for wrong in ["", "{}", "[{\"SpecReports\": [{}]}]"] {
            assert!(Report::read(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
    }
}
