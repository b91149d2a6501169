//! Server-side apply, as far as tests need it: what the applied configuration says is so afterwards; lists with a key
//! merge by it. Who owns which field is not recorded, so nothing is removed for no longer being applied, and there
//! are no conflicts between managers.

use serde_json::{Map, Value};

use super::strategy::{List, Schema};

/// `object` with the applied configuration in it.
pub fn applied(schema: &Schema, object: &Value, configuration: &Value) -> Value {
    let Value::Object(configuration) = configuration else { return configuration.clone() };
    let mut result = match object {
        Value::Object(map) => map.clone(),
        _ => Map::new(),
    };
    for (key, value) in configuration {
        let (list, below) = schema.field(key);
        let after = match (result.get(key), value, list) {
            (Some(before @ Value::Object(_)), Value::Object(_), _) => applied(below, before, value),
            (Some(Value::Array(before)), Value::Array(after), List::Keyed(key)) => {
                Value::Array(keyed(key, below, before, after))
            }
            (Some(Value::Array(before)), Value::Array(after), List::Set) => {
                let mut all = before.clone();
                all.extend(after.iter().filter(|one| !before.contains(one)).cloned());
                Value::Array(all)
            }
            _ => value.clone(),
        };
        result.insert(key.clone(), after);
    }
    Value::Object(result)
}

fn keyed(key: &str, below: &Schema, before: &[Value], after: &[Value]) -> Vec<Value> {
    let mut all = before.to_vec();
    for one in after {
        match all.iter_mut().find(|other| other.get(key).is_some() && other.get(key) == one.get(key)) {
            Some(other) => *other = applied(below, other, one),
            None => all.push(one.clone()),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::strategy::of;
    use super::*;
    use crate::resources::named;

    #[test]
    fn applies_over_what_is_there_and_from_nothing() {
        let schema = of(named("pods"));
        let object = json!({"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b"}]}});
        let configuration = json!({"spec": {"containers": [{"name": "a", "image": "2"}]}});
        let result = applied(schema, &object, &configuration);
        assert_eq!(result["spec"]["containers"], json!([{"name": "a", "image": "2"}, {"name": "b"}]));
        assert_eq!(applied(schema, &Value::Null, &configuration), configuration);
    }
}
