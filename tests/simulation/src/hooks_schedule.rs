//! Hooks of containers: commands that kubelet-syncd has run in them after their start and before their end.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::dice::Dice;
use crate::schedule::{Deed, Family, Shape, Step};

/// When a hook runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum HookKind {
    PostStart,
    PreStop,
}

impl HookKind {
    pub const ALL: [HookKind; 2] = [HookKind::PostStart, HookKind::PreStop];

    /// As a container's field is called.
    pub fn name(self) -> &'static str {
        match self {
            HookKind::PostStart => "postStart",
            HookKind::PreStop => "preStop",
        }
    }
}

/// A hook by a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hook {
    pub kind: HookKind,
    /// Milliseconds. None: it does not end by itself.
    pub lasts: Option<u64>,
    pub code: i32,
}

impl Hook {
    /// As words of a command, which the model of the runtime reads from the request.
    pub fn words(&self) -> Vec<String> {
        let lasts = self.lasts.map_or_else(|| "never".to_owned(), |lasts| lasts.to_string());
        vec!["hook".to_owned(), self.kind.name().to_owned(), lasts, self.code.to_string()]
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Hook { kind, lasts, code } = self;
        match lasts {
            Some(lasts) => write!(f, "{} takes {lasts} ms and ends with {code}", kind.name()),
            None => write!(f, "{} does not end", kind.name()),
        }
    }
}

/// By container.
pub type Hooks = BTreeMap<String, Vec<Hook>>;

impl Shape {
    pub fn hook(&self, container: &str, kind: HookKind) -> Option<Hook> {
        self.hooks.get(container)?.iter().find(|hook| hook.kind == kind).copied()
    }

    /// Its start fails each time.
    pub fn fails_to_start(&self, container: &str) -> bool {
        self.hook(container, HookKind::PostStart).is_some_and(|hook| hook.code != 0)
    }

    /// A container's `lifecycle`. Null: it has no hooks.
    pub(crate) fn lifecycle(&self, container: &str) -> Value {
        let hooks = self.hooks.get(container).into_iter().flatten();
        let hooks = hooks.map(|hook| (hook.kind.name().to_owned(), json!({"exec": {"command": hook.words()}})));
        let hooks: serde_json::Map<String, Value> = hooks.collect();
        if hooks.is_empty() { Value::Null } else { Value::Object(hooks) }
    }
}

fn hook(dice: &mut Dice, kind: HookKind) -> Hook {
    // A postStart that does not end holds its pod for ever, here as under upstream.
    let lasts = match (dice.below(10), kind) {
        (0..=5, _) => Some(dice.below(500)),
        (6, HookKind::PreStop) => None,
        _ => Some(dice.between(500, 20_000)),
    };
    let code = if dice.percent(80) { 0 } else { dice.one_of(1, &[137]) };
    Hook { kind, lasts, code }
}

/// In a third of the runs of these families containers have hooks, but init containers that end: those may not.
pub(crate) fn workload(dice: &mut Dice, steps: &mut [Step], family: Family) {
    if !matches!(family, Family::Pods | Family::Api) || !dice.percent(33) {
        return;
    }
    for step in steps {
        let (Deed::Write { shape, .. } | Deed::Create { shape, .. } | Deed::Replace { shape, .. }) = &mut step.deed
        else {
            continue;
        };
        let sidecars = shape.init.iter().filter(|container| container.sidecar);
        let names: Vec<String> = sidecars.chain(&shape.containers).map(|container| container.name.clone()).collect();
        for name in names {
            let kinds = HookKind::ALL.into_iter().filter(|_| dice.percent(45)).collect::<Vec<_>>();
            let hooks: Vec<Hook> = kinds.into_iter().map(|kind| hook(dice, kind)).collect();
            if !hooks.is_empty() {
                shape.hooks.insert(name, hooks);
            }
        }
    }
}
