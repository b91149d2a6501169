//! Variables: first exactly those of the allocation record, then those that the container's spec may have. Runtimes' hooks give devices by
//! a variable's name, so one that nobody asked for may be a grant.

use bulkhead_cri::v1;

use super::{Checked, RequestContext, Starting, must};

const FIELD: &str = "envs";

/// Values are not told: they may be secrets.
pub(super) fn container(known: &RequestContext<'_>, starting: &Starting<'_>, asked: &v1::ContainerConfig) -> Checked {
    let given = &starting.options.envs;
    let (first, rest) = asked.envs.split_at(given.len().min(asked.envs.len()));
    let same = |(asked, given): (&v1::KeyValue, &(String, Vec<u8>))| asked.key == given.0 && asked.value == given.1;
    let all = first.len() == given.len() && first.iter().zip(given).all(same);
    let names = |pairs: &[v1::KeyValue]| pairs.iter().map(|pair| pair.key.clone()).collect::<Vec<_>>();
    let wanted: Vec<&str> = given.iter().map(|(name, _)| name.as_str()).collect();
    must(all, FIELD, names(first), format!("first {wanted:?} with the values that were allocated"))?;
    let foreign = rest.iter().find(|pair| !is_of_spec(known, starting, pair)).map(|pair| &pair.key);
    must(foreign.is_none(), FIELD, foreign, "those of the container's env and envFrom, and of services")
}

/// What stands there in plain words has to be the same. What an object holds that `envFrom` names is not known here, but for the names'
/// beginning.
fn is_of_spec(known: &RequestContext<'_>, starting: &Starting<'_>, asked: &v1::KeyValue) -> bool {
    let mut own = starting.container.env.iter().flatten().filter(|variable| variable.name == asked.key);
    let is_own = own.any(|variable| {
        let literal = variable.value.as_deref().unwrap_or_default();
        let computed = literal.contains('$') || (literal.is_empty() && variable.value_from.is_some());
        computed || literal.as_bytes() == asked.value
    });
    let mut from = starting.container.env_from.iter().flatten();
    is_own
        || from.any(|source| asked.key.starts_with(source.prefix.as_deref().unwrap_or_default()))
        || is_of_service(known, &asked.key)
}

/// `NAME_SERVICE_HOST`, `NAME_PORT_80_TCP_ADDR` and so on, of services in capitals; without links of the API server's alone.
fn is_of_service(known: &RequestContext<'_>, name: &str) -> bool {
    let links = known.pod.spec.as_ref().and_then(|spec| spec.enable_service_links) == Some(true);
    let in_capitals = name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_');
    let is_of_one = name.ends_with("_SERVICE_HOST") || name.ends_with("_PORT") || name.contains("_PORT_");
    in_capitals && is_of_one && (links || name.starts_with("KUBERNETES_"))
}
