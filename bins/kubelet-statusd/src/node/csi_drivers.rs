//! What CSI drivers change on the Node and on its CSINode (upstream `pkg/volume/csi/nodeinfomanager`). Pure.
//!
//! The Node: an annotation with what each driver calls it, and the labels of its topology, which stay when the driver goes. The
//! CSINode: an entry each.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_ipc::syncd::{CsiDriverEntry, CsiDrivers};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, VolumeNodeResources};
use serde_json::{Value, json};

/// Names of drivers to the node's names with them, as JSON.
pub const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";

/// What the objects are to be, and who is left out.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    /// The annotation's new text; the inner `None` takes it out.
    pub node_ids: Option<Option<String>>,
    /// Labels that the Node does not have yet.
    pub labels: BTreeMap<String, String>,
    /// `spec.drivers` of the CSINode, where it is to change.
    pub drivers: Option<Vec<CSINodeDriver>>,
    /// Before that, where an entry that stands is to have another node's name or topology: the list without it. The API server takes no
    /// other way.
    pub without: Option<Vec<CSINodeDriver>>,
    /// By name: why a driver is not written.
    pub refused: BTreeMap<String, String>,
}

impl Plan {
    /// The Node's patch, if it has one.
    pub fn node_patch(&self) -> Option<Value> {
        let mut metadata = serde_json::Map::new();
        if let Some(text) = &self.node_ids {
            metadata.insert("annotations".to_owned(), json!({NODE_IDS: text}));
        }
        if !self.labels.is_empty() {
            metadata.insert("labels".to_owned(), json!(self.labels));
        }
        (!metadata.is_empty()).then(|| json!({"metadata": metadata}))
    }
}

/// A patch of the CSINode that is refused when somebody else has written it since.
pub fn csi_node_patch(csi_node: &CSINode, drivers: &[CSINodeDriver]) -> Value {
    json!({"metadata": {"resourceVersion": csi_node.metadata.resource_version}, "spec": {"drivers": drivers}})
}

/// What to write. Drivers of `rejected` (by an earlier try) are left out as those that collide.
pub fn plan(wanted: &CsiDrivers, rejected: &BTreeMap<String, String>, node: &Node, csi_node: &CSINode) -> Plan {
    let mut plan = Plan { refused: rejected.clone(), ..Plan::default() };
    let none = BTreeMap::new();
    let have = node.metadata.labels.as_ref().unwrap_or(&none);
    let mut labels: BTreeMap<String, String> = BTreeMap::new();
    let mut taken: BTreeMap<&str, &CsiDriverEntry> = BTreeMap::new();
    for driver in &wanted.drivers {
        if plan.refused.contains_key(&driver.name) {
            continue;
        }
        let collides = driver.topology.iter().find_map(|(key, value)| {
            let there = have.get(key).or_else(|| labels.get(key))?;
            (there != value).then(|| collision(key, value, there))
        });
        match collides {
            Some(why) => {
                plan.refused.insert(driver.name.clone(), why);
            }
            None => {
                labels.extend(driver.topology.iter().map(|(key, value)| (key.clone(), value.clone())));
                taken.insert(&driver.name, driver);
            }
        }
    }
    labels.retain(|key, _| !have.contains_key(key));
    plan.labels = labels;
    let leaves: BTreeSet<&str> = wanted.gone.iter().chain(plan.refused.keys()).map(String::as_str).collect();
    let stays = |name: &str| !leaves.contains(name) && (taken.contains_key(name) || !wanted.complete);

    let text = node.metadata.annotations.as_ref().and_then(|annotations| annotations.get(NODE_IDS));
    // What cannot be read is nobody's: upstream refuses every driver for it from then on.
    let before: BTreeMap<String, String> = text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let mut ids: BTreeMap<String, String> = before.clone();
    ids.retain(|name, _| stays(name));
    ids.extend(taken.values().map(|driver| (driver.name.clone(), driver.node_id.clone())));
    if ids != before || (text.is_some() && ids.is_empty()) {
        plan.node_ids = Some((!ids.is_empty()).then(|| json!(ids).to_string()));
    }

    let mut drivers: Vec<CSINodeDriver> = csi_node.spec.drivers.clone();
    drivers.retain(|driver| stays(&driver.name));
    let mut changed = Vec::new();
    for driver in taken.values() {
        let new = entry(driver);
        match drivers.iter_mut().find(|there| there.name == driver.name) {
            Some(there) if is_same(there, &new) => {}
            Some(there) => {
                // The count alone may be changed where it stands: no scheduler is to see the node without the driver meanwhile.
                if !is_same_but_for_the_count(there, &new) {
                    changed.push(new.name.clone());
                }
                *there = new;
            }
            None => drivers.push(new),
        }
    }
    if drivers != csi_node.spec.drivers {
        if !changed.is_empty() {
            plan.without = Some(drivers.iter().filter(|driver| !changed.contains(&driver.name)).cloned().collect());
        }
        plan.drivers = Some(drivers);
    }
    plan
}

/// In upstream's words.
fn collision(key: &str, value: &str, there: &str) -> String {
    format!(
        "error updating Node object with CSI driver node info: error updating node: timed out waiting for the condition; caused by: \
         detected topology value collision: driver reported {key:?}:{value:?} but existing label is {key:?}:{there:?}"
    )
}

fn entry(driver: &CsiDriverEntry) -> CSINodeDriver {
    let mut keys: Vec<String> = driver.topology.keys().cloned().collect();
    keys.sort();
    CSINodeDriver {
        name: driver.name.clone(),
        node_id: driver.node_id.clone(),
        topology_keys: Some(keys),
        allocatable: (driver.allocatable_count > 0)
            .then_some(VolumeNodeResources { count: Some(driver.allocatable_count) }),
    }
}

/// Lists that are empty are absent in answers.
fn is_same(there: &CSINodeDriver, new: &CSINodeDriver) -> bool {
    let count = |driver: &CSINodeDriver| driver.allocatable.as_ref().and_then(|allocatable| allocatable.count);
    is_same_but_for_the_count(there, new) && count(there) == count(new)
}

fn is_same_but_for_the_count(there: &CSINodeDriver, new: &CSINodeDriver) -> bool {
    let keys = |driver: &CSINodeDriver| driver.topology_keys.clone().unwrap_or_default();
    there.node_id == new.node_id && keys(there) == keys(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver(name: &str, topology: &[(&str, &str)]) -> CsiDriverEntry {
        let topology = topology.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        CsiDriverEntry { name: name.into(), node_id: "node-a".into(), topology, allocatable_count: 0 }
    }

    fn wanted(drivers: &[CsiDriverEntry], complete: bool) -> CsiDrivers {
        CsiDrivers { drivers: drivers.to_vec(), complete, gone: Vec::new() }
    }

    fn node(labels: Value, annotations: Value) -> Node {
        serde_json::from_value(json!({"metadata": {"name": "n", "labels": labels, "annotations": annotations}}))
            .unwrap()
    }

    fn csi_node(drivers: Value) -> CSINode {
        serde_json::from_value(json!({"metadata": {"name": "n", "resourceVersion": "7"}, "spec": {"drivers": drivers}}))
            .unwrap()
    }

    const NONE: BTreeMap<String, String> = BTreeMap::new();

    /// As in the recording of upstream with the hostpath driver.
    #[test]
    fn a_driver_comes_and_goes() {
        let comes = wanted(&[driver("hostpath.csi.k8s.io", &[("topology.hostpath.csi/node", "node-a")])], true);
        let (before, empty) = (node(json!({"a": "b"}), json!({})), csi_node(json!([])));
        let first = plan(&comes, &NONE, &before, &empty);
        assert_eq!(
            first.node_patch().unwrap(),
            json!({"metadata": {
                "annotations": {NODE_IDS: "{\"hostpath.csi.k8s.io\":\"node-a\"}"},
                "labels": {"topology.hostpath.csi/node": "node-a"},
            }})
        );
        let drivers = first.drivers.unwrap();
        assert_eq!(
            csi_node_patch(&empty, &drivers),
            json!({"metadata": {"resourceVersion": "7"}, "spec": {"drivers": [{
                "name": "hostpath.csi.k8s.io", "nodeID": "node-a", "topologyKeys": ["topology.hostpath.csi/node"],
            }]}})
        );
        let labels = json!({"a": "b", "topology.hostpath.csi/node": "node-a"});
        let after = node(labels, json!({NODE_IDS: "{\"hostpath.csi.k8s.io\":\"node-a\"}"}));
        let with_it = csi_node(json!(drivers));
        assert_eq!(plan(&comes, &NONE, &after, &with_it), Plan::default(), "nothing is written twice");
        let gone = plan(&wanted(&[], true), &NONE, &after, &with_it);
        assert_eq!((gone.node_ids, gone.labels.len(), gone.drivers), (Some(None), 0, Some(vec![])));
    }

    #[test]
    fn others_stay_until_all_are_known() {
        let after = node(json!({}), json!({NODE_IDS: "{\"old\":\"n\",\"left\":\"n\"}"}));
        let there = csi_node(json!([{"name": "old", "nodeID": "n"}, {"name": "left", "nodeID": "n"}]));
        let mut comes = wanted(&[driver("new", &[])], false);
        comes.gone = vec!["left".into()];
        let early = plan(&comes, &NONE, &after, &there);
        let names = |drivers: Option<Vec<CSINodeDriver>>| {
            drivers.unwrap().into_iter().map(|driver| driver.name).collect::<Vec<_>>()
        };
        assert_eq!(names(early.drivers), ["old", "new"]);
        assert_eq!(early.node_ids, Some(Some("{\"new\":\"node-a\",\"old\":\"n\"}".into())));
        comes.complete = true;
        assert_eq!(names(plan(&comes, &NONE, &after, &there).drivers), ["new"]);
    }

    #[test]
    fn a_label_that_collides_refuses_its_driver_alone() {
        let before = node(json!({"zone": "a"}), json!({}));
        let comes = wanted(&[driver("bad", &[("zone", "b")]), driver("good", &[("zone", "a"), ("rack", "1")])], true);
        let plan = plan(&comes, &NONE, &before, &csi_node(json!([])));
        assert!(
            plan.refused["bad"].ends_with(
                "detected topology value collision: driver reported \"zone\":\"b\" but existing label is \"zone\":\"a\""
            ),
            "{plan:?}"
        );
        assert_eq!(plan.labels, [("rack".to_owned(), "1".to_owned())].into());
        assert_eq!(plan.drivers.unwrap().iter().map(|driver| driver.name.as_str()).collect::<Vec<_>>(), ["good"]);
        // Two that collide with each other: the first has it.
        let both = wanted(&[driver("one", &[("k", "1")]), driver("two", &[("k", "2")])], true);
        let both = super::plan(&both, &NONE, &before, &csi_node(json!([])));
        assert_eq!(both.refused.keys().collect::<Vec<_>>(), ["two"]);
    }

    #[test]
    fn an_entry_that_is_another_goes_first() {
        let there = csi_node(json!([{"name": "d", "nodeID": "old"}, {"name": "e", "nodeID": "node-a"}]));
        let comes = wanted(&[driver("d", &[]), driver("e", &[])], true);
        let plan = plan(&comes, &NONE, &node(json!({}), json!({NODE_IDS: "no JSON"})), &there);
        assert_eq!(plan.without.unwrap().iter().map(|driver| driver.name.as_str()).collect::<Vec<_>>(), ["e"]);
        assert_eq!(plan.drivers.unwrap().len(), 2);
        assert_eq!(plan.node_ids, Some(Some("{\"d\":\"node-a\",\"e\":\"node-a\"}".into())));
    }

    /// No scheduler sees the node without a driver because its limit is another one.
    #[test]
    fn a_limit_is_changed_where_it_stands() {
        let there = csi_node(json!([{"name": "d", "nodeID": "node-a", "allocatable": {"count": 5}}]));
        let of = |count| CsiDriverEntry { allocatable_count: count, ..driver("d", &[]) };
        let known = node(json!({}), json!({NODE_IDS: "{\"d\":\"node-a\"}"}));
        for (count, expected) in [(7, Some(7)), (0, None)] {
            let plan = plan(&wanted(&[of(count)], true), &NONE, &known, &there);
            assert_eq!(plan.without, None);
            let allocatable = plan.drivers.unwrap().remove(0).allocatable;
            assert_eq!(allocatable.and_then(|allocatable| allocatable.count), expected);
        }
        assert_eq!(plan(&wanted(&[of(5)], true), &NONE, &known, &there), Plan::default());
    }
}
