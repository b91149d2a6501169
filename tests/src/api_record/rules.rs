//! Which differences between two versions of the internal API a peer of the older version would stumble over.
//!
//! What may come: new packages, services, methods, messages, fields with new numbers, values of enums. Nothing that a
//! released version knows may go or mean something else: no protobuf decoder would complain, the two would
//! just misunderstand each other. Names count as well as numbers, because `grpcurl` and `kubelet-ctl -o json` show them.

use std::collections::BTreeSet;
use std::fmt;

use super::{Api, Enum, Field, Message, Method, Reserved};

/// What is wrong with a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    PackageGone,
    MessageGone,
    FieldGone,
    FieldRenumbered,
    FieldRenamed,
    FieldRetyped,
    CardinalityChanged,
    JsonRenamed,
    OneofChanged,
    NumberReused,
    NameReused,
    ReservationGone,
    EnumGone,
    ValueGone,
    ValueRenumbered,
    ServiceGone,
    MethodGone,
    MethodRetyped,
    StreamingChanged,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rule::PackageGone => "a package may not go or be renamed",
            Rule::MessageGone => "a message may not go",
            Rule::FieldGone => "a field may not go",
            Rule::FieldRenumbered => "a field keeps its number",
            Rule::FieldRenamed => "a field keeps its name",
            Rule::FieldRetyped => "a field keeps its type",
            Rule::CardinalityChanged => "a field stays single, optional, repeated or a map",
            Rule::JsonRenamed => "a field keeps its JSON name",
            Rule::OneofChanged => "a field stays in its oneof, or outside of all",
            Rule::NumberReused => "a number is never used again",
            Rule::NameReused => "a reserved name is never used again",
            Rule::ReservationGone => "what is reserved stays reserved",
            Rule::EnumGone => "an enum may not go",
            Rule::ValueGone => "a value of an enum may not go",
            Rule::ValueRenumbered => "a value of an enum keeps its number",
            Rule::ServiceGone => "a service may not go",
            Rule::MethodGone => "a method may not go",
            Rule::MethodRetyped => "a method keeps its request and its reply",
            Rule::StreamingChanged => "a method keeps its streaming",
        })
    }
}

/// One thing that a peer of the older version would stumble over.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Break {
    /// Full name of the package, message, field, enum, value, service or method.
    pub at: String,
    pub rule: Rule,
    /// What was and what is.
    pub what: String,
}

impl fmt::Display for Break {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.at, self.rule, self.what)
    }
}

/// Everything in `new` that breaks a promise of `old`, in the order of the names. Pure.
pub fn breaks(old: &Api, new: &Api) -> Vec<Break> {
    let mut found = Found::default();
    let packages = packages(new);
    let gone: BTreeSet<String> =
        self::packages(old).into_iter().filter(|package| !packages.contains(package)).collect();
    for package in &gone {
        found.add(package.clone(), Rule::PackageGone, "nothing has this name any more".into());
    }
    let kept = |name: &&String| !gone.contains(package_of(name));
    for (name, old) in old.messages.iter().filter(|(name, _)| kept(name)) {
        match new.messages.get(name) {
            Some(new) => message(&mut found, name, old, new),
            None => found.gone(name, Rule::MessageGone),
        }
    }
    for (name, old) in old.enums.iter().filter(|(name, _)| kept(name)) {
        match new.enums.get(name) {
            Some(new) => enumeration(&mut found, name, old, new),
            None => found.gone(name, Rule::EnumGone),
        }
    }
    for (name, old) in old.services.iter().filter(|(name, _)| kept(name)) {
        let Some(new) = new.services.get(name) else {
            found.gone(name, Rule::ServiceGone);
            continue;
        };
        for (method, old) in old {
            let at = format!("{name}/{method}");
            match new.get(method) {
                Some(new) => compare_method(&mut found, &at, old, new),
                None => found.gone(&at, Rule::MethodGone),
            }
        }
    }
    found.0.sort();
    found.0
}

#[derive(Default)]
struct Found(Vec<Break>);

impl Found {
    fn add(&mut self, at: String, rule: Rule, what: String) {
        self.0.push(Break { at, rule, what });
    }

    fn gone(&mut self, at: &str, rule: Rule) {
        self.add(at.to_owned(), rule, "it is not there any more".into());
    }

    fn changed(&mut self, at: &str, rule: Rule, old: impl fmt::Display, new: impl fmt::Display) {
        let (old, new) = (old.to_string(), new.to_string());
        if old != new {
            self.add(at.to_owned(), rule, format!("{old} has become {new}"));
        }
    }
}

/// `kubelet.syncd.v1` of `kubelet.syncd.v1.Pod.Kind`: up to the part that is a version.
fn package_of(name: &str) -> &str {
    let mut end = 0;
    for part in name.split('.') {
        end += part.len();
        let digits = part.strip_prefix('v').unwrap_or("");
        if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
            break;
        }
        end += 1;
    }
    name.get(..end).unwrap_or(name)
}

fn packages(api: &Api) -> BTreeSet<String> {
    let names = api.messages.keys().chain(api.enums.keys()).chain(api.services.keys());
    names.map(|name| package_of(name).to_owned()).collect()
}

fn message(found: &mut Found, name: &str, old: &Message, new: &Message) {
    for (number, was) in &old.fields {
        let at = format!("{name}.{}", was.name);
        match new.fields.get(number) {
            Some(is) if is.name == was.name => field(found, &at, was, is),
            other => {
                let moved = new.fields.iter().find(|(_, field)| field.name == was.name);
                if let Some((now, _)) = moved {
                    found.changed(&at, Rule::FieldRenumbered, number, now);
                }
                match other {
                    // The same thing under another name, as far as can be seen.
                    Some(is) if moved.is_none() && is.kind == was.kind && is.cardinality == was.cardinality => {
                        found.changed(&at, Rule::FieldRenamed, &was.name, &is.name);
                    }
                    Some(is) => {
                        let what = format!(
                            "{number} was {} {} {}, and is {} {} {}",
                            was.cardinality, was.kind, was.name, is.cardinality, is.kind, is.name
                        );
                        found.add(at, Rule::NumberReused, what);
                    }
                    None if moved.is_none() => found.gone(&at, Rule::FieldGone),
                    None => {}
                }
            }
        }
    }
    for (number, is) in &new.fields {
        let at = format!("{name}.{}", is.name);
        if old.reserved.holds(i64::from(*number)) {
            found.add(at.clone(), Rule::NumberReused, format!("{number} was reserved"));
        }
        if old.reserved.names.contains(&is.name) {
            found.add(at, Rule::NameReused, "it was reserved".into());
        }
    }
    let in_use = |number: i64| new.fields.keys().any(|used| i64::from(*used) == number);
    reservations(found, name, &old.reserved, &new.reserved, in_use);
}

fn field(found: &mut Found, at: &str, was: &Field, is: &Field) {
    let outside = || "none".to_owned();
    found.changed(at, Rule::CardinalityChanged, &was.cardinality, &is.cardinality);
    found.changed(at, Rule::FieldRetyped, &was.kind, &is.kind);
    found.changed(at, Rule::JsonRenamed, &was.json, &is.json);
    let [before, after] = [was, is].map(|field| field.oneof.clone().unwrap_or_else(outside));
    found.changed(at, Rule::OneofChanged, before, after);
}

fn enumeration(found: &mut Found, name: &str, old: &Enum, new: &Enum) {
    for (value, was) in &old.values {
        let at = format!("{name}.{value}");
        match new.values.get(value) {
            Some(is) => found.changed(&at, Rule::ValueRenumbered, was, is),
            None => found.gone(&at, Rule::ValueGone),
        }
    }
    for (value, number) in &new.values {
        let at = format!("{name}.{value}");
        if old.reserved.holds(*number) {
            found.add(at.clone(), Rule::NumberReused, format!("{number} was reserved"));
        }
        if old.reserved.names.contains(value) {
            found.add(at.clone(), Rule::NameReused, "it was reserved".into());
        }
        let anothers = old.values.iter().find(|(other, was)| *was == number && *other != value);
        if let Some((other, _)) = anothers.filter(|_| !old.values.contains_key(value)) {
            found.add(at, Rule::NumberReused, format!("{number} is {other}"));
        }
    }
    let in_use = |number: i64| new.values.values().any(|used| *used == number);
    reservations(found, name, &old.reserved, &new.reserved, in_use);
}

/// `in_use` numbers are told as reused already.
fn reservations(found: &mut Found, name: &str, old: &Reserved, new: &Reserved, in_use: impl Fn(i64) -> bool) {
    for (first, last) in &old.ranges {
        // Ranges may be joined or split: what counts is each number. Long ones ("to max") are looked at by their ends.
        let numbers: Vec<i64> = if last - first < 10_000 { (*first..=*last).collect() } else { vec![*first, *last] };
        if numbers.into_iter().any(|number| !new.holds(number) && !in_use(number)) {
            found.add(name.to_owned(), Rule::ReservationGone, format!("{first} to {last}"));
        }
    }
    for name_of in old.names.difference(&new.names) {
        found.add(name.to_owned(), Rule::ReservationGone, format!("the name {name_of}"));
    }
}

fn compare_method(found: &mut Found, at: &str, was: &Method, is: &Method) {
    found.changed(at, Rule::MethodRetyped, &was.input, &is.input);
    found.changed(at, Rule::MethodRetyped, &was.output, &is.output);
    let shape = |method: &Method| {
        let many = |streams| if streams { "a stream" } else { "one" };
        format!("{} to {}", many(method.input_streams), many(method.output_streams))
    };
    found.changed(at, Rule::StreamingChanged, shape(was), shape(is));
}
