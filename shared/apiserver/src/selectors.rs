//! Which objects a list or a watch is about: label and field selectors
//! (apimachinery `pkg/labels`, `pkg/fields`; the fields of each registry's strategy).

use serde_json::Value;

use super::resources::Resource;
use super::status::ApiError;

/// Both selectors of a request. The default selects everything.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Selector {
    pub labels: Vec<Requirement>,
    pub fields: Vec<FieldRequirement>,
}

/// One term of a label selector.
#[derive(Debug, Clone, PartialEq)]
pub struct Requirement {
    pub key: String,
    pub operator: Operator,
}

/// What a label must be.
#[derive(Debug, Clone, PartialEq)]
pub enum Operator {
    In(Vec<String>),
    /// True as well where the label is missing.
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
    GreaterThan(i64),
    LessThan(i64),
}

/// One term of a field selector.
#[derive(Debug, Clone, PartialEq)]
pub struct FieldRequirement {
    pub field: String,
    pub value: String,
    pub equal: bool,
}

impl Selector {
    /// From the query's `labelSelector` and `fieldSelector`.
    ///
    /// # Errors
    /// 400 where a selector cannot be read or names a field that the resource does not offer.
    pub fn parse(resource: &Resource, labels: &str, fields: &str) -> Result<Self, ApiError> {
        let fields = parse_fields(fields)?;
        for one in &fields {
            if field_of(resource, &Value::Null, &one.field).is_none() {
                return Err(ApiError::bad_request(if has_own_fields(resource) {
                    format!("field label not supported: {}", one.field)
                } else {
                    format!(
                        "{:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
                        one.field
                    )
                }));
            }
        }
        Ok(Self { labels: parse_labels(labels)?, fields })
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub fn matches(&self, resource: &Resource, object: &Value) -> bool {
        self.fields.iter().all(|one| {
            let value = field_of(resource, object, &one.field).unwrap_or_default();
            (value == one.value) == one.equal
        }) && self.labels.iter().all(|one| one.matches(object["metadata"]["labels"][&one.key].as_str()))
    }

    /// The value that a field is required to have, if it is.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.fields.iter().find(|one| one.equal && one.field == field).map(|one| one.value.as_str())
    }
}

impl Requirement {
    pub fn matches(&self, value: Option<&str>) -> bool {
        let number = |text: &str| text.parse::<i64>().ok();
        match &self.operator {
            Operator::In(values) => value.is_some_and(|value| values.iter().any(|one| one == value)),
            Operator::NotIn(values) => value.is_none_or(|value| values.iter().all(|one| one != value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan(limit) => value.and_then(number).is_some_and(|value| value > *limit),
            Operator::LessThan(limit) => value.and_then(number).is_some_and(|value| value < *limit),
        }
    }
}

/// `a=b,c!=d` (`==` is the same as `=`); `\` makes the next character plain.
fn parse_fields(text: &str) -> Result<Vec<FieldRequirement>, ApiError> {
    let mut terms = vec![String::new()];
    let mut escaped = false;
    for character in text.chars() {
        match (escaped, character) {
            (false, ',') => terms.push(String::new()),
            (false, '\\') => {
                escaped = true;
                continue;
            }
            (_, other) => terms.iter_mut().rev().take(1).for_each(|term| term.push(other)),
        }
        escaped = false;
    }
    terms
        .iter()
        .filter(|term| !term.is_empty())
        .map(|term| {
            let (field, value, equal) = if let Some((field, value)) = term.split_once("!=") {
                (field, value, false)
            } else if let Some((field, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
                (field, value, true)
            } else {
                let why = format!("invalid field selector: {text:?}; can't understand '{term}'");
                return Err(ApiError::bad_request(why));
            };
            Ok(FieldRequirement { field: field.to_owned(), value: value.to_owned(), equal })
        })
        .collect()
}

/// Equality- and set-based terms, separated by commas outside of parentheses.
fn parse_labels(text: &str) -> Result<Vec<Requirement>, ApiError> {
    let mut terms = Vec::new();
    let (mut depth, mut begin) = (0u32, 0);
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                terms.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[begin..]);
    if terms.iter().all(|term| term.trim().is_empty()) {
        return Ok(Vec::new());
    }
    terms.into_iter().map(|term| parse_label_term(term.trim())).collect()
}

fn parse_label_term(term: &str) -> Result<Requirement, ApiError> {
    let refuse = |why: &str| ApiError::bad_request(format!("unable to parse requirement: {why}: {term:?}"));
    let with = |key: &str, operator: Operator| {
        let key = key.trim();
        if is_label_key(key) {
            Ok(Requirement { key: key.to_owned(), operator })
        } else {
            Err(refuse("invalid label key"))
        }
    };
    if let Some(key) = term.strip_prefix('!') {
        return with(key, Operator::DoesNotExist);
    }
    if let Some(list) = term.strip_suffix(')') {
        let Some((head, list)) = list.split_once('(') else { return Err(refuse("found ')' without '('")) };
        let values: Vec<String> = list.split(',').map(|value| value.trim().to_owned()).collect();
        let Some((key, word)) = head.trim_end().rsplit_once(char::is_whitespace) else {
            return Err(refuse("expected 'in' or 'notin'"));
        };
        return match word {
            "in" => with(key, Operator::In(values)),
            "notin" => with(key, Operator::NotIn(values)),
            _ => Err(refuse("expected 'in' or 'notin'")),
        };
    }
    if let Some((key, value)) = term.split_once("!=") {
        return with(key, Operator::NotIn(vec![value.trim().to_owned()]));
    }
    if let Some((key, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        return with(key, Operator::In(vec![value.trim().to_owned()]));
    }
    for (sign, make) in [('>', Operator::GreaterThan as fn(i64) -> Operator), ('<', Operator::LessThan)] {
        if let Some((key, value)) = term.split_once(sign) {
            let number =
                value.trim().parse().map_err(|_| refuse("for 'Gt', 'Lt' operators, the value must be an integer"))?;
            return with(key, make(number));
        }
    }
    with(term, Operator::Exists)
}

fn is_label_key(key: &str) -> bool {
    let name = key.rsplit('/').next().unwrap_or_default();
    !name.is_empty()
        && key.matches('/').count() <= 1
        && key.chars().all(|one| one.is_ascii_alphanumeric() || "-_./".contains(one))
}

fn has_own_fields(resource: &Resource) -> bool {
    resource.group.is_empty()
        && ["pods", "nodes", "events", "namespaces", "secrets", "services"].contains(&resource.plural)
}

/// The value of a selectable field; `None` where the resource does not offer it.
fn field_of(resource: &Resource, object: &Value, field: &str) -> Option<String> {
    let text = |pointer: &str| match object.pointer(pointer) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Bool(flag)) => flag.to_string(),
        Some(Value::Number(number)) => number.to_string(),
        _ => String::new(),
    };
    let flag = |pointer: &str| object.pointer(pointer).and_then(Value::as_bool).unwrap_or(false).to_string();
    let pointer = format!("/{}", field.replace('.', "/"));
    match (resource.plural, field) {
        (_, "metadata.name") => Some(text(&pointer)),
        (_, "metadata.namespace") => Some(text(&pointer)),
        (
            "pods",
            "spec.nodeName"
            | "spec.restartPolicy"
            | "spec.schedulerName"
            | "spec.serviceAccountName"
            | "status.phase"
            | "status.podIP"
            | "status.nominatedNodeName",
        ) => Some(text(&pointer)),
        ("pods", "spec.hostNetwork") => Some(flag(&pointer)),
        ("nodes", "spec.unschedulable") => Some(flag(&pointer)),
        ("namespaces", "status.phase") => Some(text(&pointer)),
        ("secrets", "type") => Some(text("/type")),
        ("services", "spec.clusterIP" | "spec.type") => Some(text(&pointer)),
        ("certificatesigningrequests", "spec.signerName") => Some(text(&pointer)),
        ("resourceslices", "spec.nodeName" | "spec.driver") => Some(text(&pointer)),
        (
            "events",
            "involvedObject.kind"
            | "involvedObject.namespace"
            | "involvedObject.name"
            | "involvedObject.uid"
            | "involvedObject.apiVersion"
            | "involvedObject.resourceVersion"
            | "involvedObject.fieldPath"
            | "reason"
            | "reportingComponent"
            | "type",
        ) => Some(text(&pointer)),
        ("events", "source") => {
            let source = text("/source/component");
            Some(if source.is_empty() { text("/reportingComponent") } else { source })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::resources::named;

    fn selects(labels: &str, object: &Value) -> bool {
        Selector::parse(named("pods"), labels, "").unwrap().matches(named("pods"), object)
    }

    #[test]
    fn label_selectors() {
        let pod = json!({"metadata": {"labels": {"app": "web", "tier": "3", "example.com/x": ""}}});
        for (selector, expected) in [
            ("", true),
            ("app=web", true),
            ("app==web,tier=3", true),
            ("app!=web", false),
            ("other!=web", true),
            ("app in (a, web)", true),
            ("app notin (a,web)", false),
            ("other notin (a)", true),
            ("app", true),
            ("!app", false),
            ("!other", true),
            ("example.com/x", true),
            ("example.com/x=", true),
            ("tier>2", true),
            ("tier<3", false),
            ("app in (web),tier notin (4),!other", true),
        ] {
            assert_eq!(selects(selector, &pod), expected, "{selector}");
        }
        for broken in ["app in web)", "a b", "=x", "tier>x", "(a)"] {
            assert_eq!(Selector::parse(named("pods"), broken, "").unwrap_err().code, 400, "{broken}");
        }
    }

    #[test]
    fn field_selectors() {
        let pod = json!({"metadata": {"name": "a", "namespace": "n"}, "spec": {"nodeName": "x"}, "status": {"phase": "Running"}});
        for (selector, expected) in [
            ("spec.nodeName=x", true),
            ("spec.nodeName!=x", false),
            ("spec.nodeName=x,status.phase==Running", true),
            ("metadata.name=b", false),
            ("spec.hostNetwork=false", true),
            ("status.podIP=", true),
        ] {
            let parsed = Selector::parse(named("pods"), "", selector).unwrap();
            assert_eq!(parsed.matches(named("pods"), &pod), expected, "{selector}");
        }
        let service = json!({"spec": {"clusterIP": "None"}});
        let parsed = Selector::parse(named("services"), "", "spec.clusterIP!=None").unwrap();
        assert!(!parsed.matches(named("services"), &service));
        let error = Selector::parse(named("pods"), "", "spec.foo=1").unwrap_err();
        assert_eq!(error.message, "field label not supported: spec.foo");
        assert_eq!(Selector::parse(named("nodes"), "", "nonsense").unwrap_err().code, 400);
    }

    proptest! {
        /// In and NotIn, Exists and DoesNotExist are each other's opposite, whatever the labels are.
        #[test]
        fn opposites(value in proptest::option::of("[a-c]{0,2}"), values in proptest::collection::vec("[a-c]{0,2}", 1..4)) {
            let pod = match &value {
                Some(value) => json!({"metadata": {"labels": {"k": value}}}),
                None => json!({"metadata": {}}),
            };
            let list = values.join(",");
            prop_assert_ne!(selects(&format!("k in ({list})"), &pod), selects(&format!("k notin ({list})"), &pod));
            prop_assert_ne!(selects("k", &pod), selects("!k", &pod));
            prop_assert_eq!(selects(&format!("k in ({list})"), &pod), value.is_some_and(|value| values.contains(&value)));
        }

        #[test]
        fn nothing_makes_the_parser_panic(labels in ".{0,40}", fields in ".{0,40}") {
            let _ = Selector::parse(named("pods"), &labels, &fields);
        }
    }
}
