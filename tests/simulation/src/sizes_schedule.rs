//! CPU and memory that containers ask for, and wishes for others while they run: the subresource `resize` of a pod.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::dice::Dice;
use crate::schedule::{CALM, CallFault, ContainerShape, Deed, Peer, Shape, Step};

/// What a container requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Thousandths of a CPU.
    pub cpu: u64,
    /// MiB.
    pub memory: u64,
}

impl Size {
    #[must_use]
    pub fn plus(self, other: Size) -> Size {
        Size { cpu: self.cpu + other.cpu, memory: self.memory + other.memory }
    }

    /// The larger one of each.
    #[must_use]
    pub fn at_least(self, other: Size) -> Size {
        Size { cpu: self.cpu.max(other.cpu), memory: self.memory.max(other.memory) }
    }

    #[must_use]
    pub fn times(self, factor: u64) -> Size {
        Size { cpu: self.cpu * factor, memory: self.memory * factor }
    }

    fn amounts(self) -> Value {
        json!({"cpu": format!("{}m", self.cpu), "memory": format!("{}Mi", self.memory)})
    }
}

/// What the limits of a pod's containers are; it stays, as its QoS class has to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limits {
    /// There are none (Burstable).
    #[default]
    None,
    /// Twice what is requested (Burstable).
    Twice,
    /// What is requested (Guaranteed).
    Same,
}

impl Limits {
    /// How often the request is the limit. None: there is no limit.
    pub fn factor(self) -> Option<u64> {
        match self {
            Limits::None => None,
            Limits::Twice => Some(2),
            Limits::Same => Some(1),
        }
    }

    /// As a container's `resources`.
    pub fn resources(self, size: Size) -> Value {
        match self.factor() {
            None => json!({"requests": size.amounts()}),
            Some(factor) => json!({"requests": size.amounts(), "limits": size.times(factor).amounts()}),
        }
    }
}

/// By container. One that is not named requests nothing.
pub type Sizes = BTreeMap<String, Size>;

/// What the containers of a pod request, and may be given while they run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sized {
    pub limits: Limits,
    pub sizes: Sizes,
    /// Those that are to restart when they get other memory (`resizePolicy`).
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub restart: BTreeSet<String>,
}

impl Sized {
    /// Puts resources and resize policies into a container as a manifest has it.
    pub(crate) fn put_into(&self, container: &mut Value, name: &str) {
        if let Some(size) = self.sizes.get(name) {
            container["resources"] = self.limits.resources(*size);
        }
        if self.restart.contains(name) {
            container["resizePolicy"] = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
        }
    }
}

impl fmt::Display for Sized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = match self.limits {
            Limits::None => "no limits",
            Limits::Twice => "twice that as limits",
            Limits::Same => "the same as limits",
        };
        write!(f, "requests{}, {limits}", Words(&self.sizes))?;
        for name in &self.restart {
            write!(f, ", other memory restarts {name}")?;
        }
        Ok(())
    }
}

/// Sizes for people.
pub(crate) struct Words<'a>(pub &'a Sizes);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (name, Size { cpu, memory })) in self.0.iter().enumerate() {
            write!(f, "{} {name} {cpu}m and {memory} MiB", if place > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

/// What all of a pod requests (upstream `component-helpers/resource` PodRequests): its containers and sidecars together, or one of its init
/// containers with the sidecars before it, where that is more.
pub fn whole(shape: &Shape, sizes: &Sizes) -> Size {
    let of = |container: &ContainerShape| sizes.get(&container.name).copied().unwrap_or_default();
    let (mut sidecars, mut most) = (Size::default(), Size::default());
    for container in &shape.init {
        let alone = sidecars.plus(of(container));
        most = most.at_least(alone);
        if container.sidecar {
            sidecars = alone;
        }
    }
    shape.containers.iter().map(of).fold(sidecars, Size::plus).at_least(most)
}

/// Of many pods all fit the node.
fn small(dice: &mut Dice) -> Size {
    Size { cpu: dice.between(10, 60), memory: dice.between(8, 80) }
}

/// Most of them fit; of large ones there is room for one; and some are more than the node has.
fn wish(dice: &mut Dice) -> Size {
    let mut size = small(dice);
    let (cpu, memory) = match dice.below(10) {
        0 => (5_000, 40_000),
        1..=3 => (1_100, 9_000),
        _ => return size,
    };
    match dice.below(3) {
        0 => size.cpu = cpu,
        1 => size.memory = memory,
        _ => size = Size { cpu, memory },
    }
    size
}

fn sized(dice: &mut Dice, shape: &Shape) -> Sized {
    let limits = dice.one_of(Limits::Same, &[Limits::Twice, Limits::None]);
    let mut sized = Sized { limits, ..Sized::default() };
    for container in shape.init.iter().chain(&shape.containers) {
        // A Guaranteed pod has them all.
        if limits != Limits::Same && container.name != "c0" && !dice.percent(80) {
            continue;
        }
        sized.sizes.insert(container.name.clone(), small(dice));
        // Validation refuses it in others: who is not to restart, and init containers that end.
        let may_restart = shape.restart_policy != "Never" && (container.sidecar || container.name.starts_with('c'));
        if may_restart && dice.percent(25) {
            sized.restart.insert(container.name.clone());
        }
    }
    sized
}

/// Some of a pod's containers are to have other sizes.
fn resized(dice: &mut Dice, shape: &Shape, sized: &Sized) -> Sizes {
    let ends = |name: &str| shape.init.iter().any(|container| container.name == name && !container.sidecar);
    let mut sizes = Sizes::new();
    for name in sized.sizes.keys() {
        if dice.percent(if ends(name) { 15 } else { 70 }) {
            sizes.insert(name.clone(), wish(dice));
        }
    }
    if sizes.is_empty() {
        sizes.insert("c0".to_owned(), wish(dice));
    }
    sizes
}

/// In two of five runs of family `api` most pods have sizes, and are resized now and then: with faults right beside it, some of them.
pub(crate) fn workload(dice: &mut Dice, steps: &mut Vec<Step>) {
    if !dice.percent(40) {
        return;
    }
    let calm = u64::try_from(CALM.as_millis()).unwrap_or(u64::MAX);
    let has_faults = dice.percent(70);
    let mut new = Vec::new();
    for step in steps.iter_mut() {
        let (Deed::Create { pod, shape } | Deed::Replace { pod, shape, .. }) = &mut step.deed else { continue };
        if !dice.percent(75) {
            continue;
        }
        let sized = sized(dice, shape);
        let mut at = step.at;
        for _ in 0..dice.below(5) {
            at += if dice.percent(40) { dice.between(1, 1_000) } else { dice.between(1_000, calm / 4) };
            if at >= calm {
                break;
            }
            let deed = Deed::Resize { pod: pod.clone(), sizes: resized(dice, shape, &sized) };
            new.push(Step { at, deed });
            if has_faults && dice.percent(40) {
                let late = if dice.percent(50) { dice.below(20) } else { dice.below(600) };
                new.push(Step { at: at + late, deed: beside(dice) });
            }
        }
        shape.sized = Some(sized);
    }
    steps.append(&mut new);
}

/// What goes wrong about a resize.
fn beside(dice: &mut Dice) -> Deed {
    let down = dice.one_of(20, &[200, 5_000]);
    match dice.below(8) {
        0..=2 => Deed::KillSyncd { down },
        3 => Deed::Exit { pick: dice.draw(), code: 1, out_of_memory: false },
        4 => Deed::RestartVolnetd { down },
        5 => Deed::Call { peer: Peer::Volnetd, fault: fault(dice) },
        _ => Deed::Call { peer: Peer::Runtime, fault: fault(dice) },
    }
}

fn fault(dice: &mut Dice) -> CallFault {
    let all = [CallFault::AnswerLost, CallFault::DeathBefore, CallFault::DeathAfter, CallFault::Late(3_000)];
    dice.one_of(CallFault::Refused, &all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Behaviour;

    #[test]
    fn an_init_container_counts_where_it_is_more() {
        let container = |name: &str, sidecar: bool| ContainerShape {
            name: name.to_owned(),
            behaviour: Behaviour { ends_after: None, exit_code: 0, heeds_term: None },
            sidecar,
            probes: Vec::new(),
            devices: 0,
            cpus: 0,
        };
        let shape = Shape {
            init: vec![container("i0", false), container("i1", true), container("i2", false)],
            containers: vec![container("c0", false), container("c1", false)],
            ..Shape::default()
        };
        let sizes = |all: &[(&str, u64)]| -> Sizes {
            all.iter().map(|(name, cpu)| ((*name).to_owned(), Size { cpu: *cpu, memory: 1 })).collect()
        };
        for (all, cpu) in [
            (sizes(&[("i1", 4), ("c0", 2), ("c1", 3)]), 9),
            (sizes(&[("i0", 20), ("i1", 4), ("c0", 2)]), 20),
            (sizes(&[("i0", 20), ("i1", 4), ("i2", 17), ("c0", 2)]), 21),
        ] {
            assert_eq!(whole(&shape, &all).cpu, cpu, "{all:?}");
        }
    }
}
