//! `/flagz` and `/statusz`: which form is asked for, and both documents in each (upstream
//! `apiserver/pkg/server/{flagz,statusz}`). Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use http::{HeaderValue, StatusCode};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::server::answer::{self, Answer};

/// The page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Page {
    Flagz(BTreeMap<String, String>),
    Statusz(Status),
}

/// What /statusz says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    pub started: Timestamp,
    pub now: Timestamp,
    /// Without the leading `v`.
    pub binary_version: String,
    /// `1.36`.
    pub emulation_version: String,
    /// First segments of the paths that are served, sorted.
    pub paths: Vec<String>,
}

/// Versions of the structured form; the older one is deprecated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1Alpha1,
    V1Beta1,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Text,
    Json(Version),
    Yaml(Version),
}

const GROUP: &str = "config.k8s.io";
const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility \
                       guarantees and is for debugging purposes only.";

impl Page {
    fn kind(&self) -> &'static str {
        match self {
            Page::Flagz(_) => "Flagz",
            Page::Statusz(_) => "Statusz",
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Page::Flagz(_) => "flagz",
            Page::Statusz(_) => "statusz",
        }
    }

    /// The answer to a request with this `Accept` header; `pretty`: somebody reads it.
    pub fn answer(&self, accept: &str, pretty: bool) -> Answer {
        let Some(form) = negotiate(accept, self.kind()) else { return not_acceptable() };
        match form {
            Form::Text => answer::typed(StatusCode::OK, "text/plain; charset=utf-8", self.text()),
            Form::Json(version) => {
                let fields = self.fields(version);
                let text = if pretty { indented(&fields, 0) } else { compact(&fields) };
                self.structured(version, "application/json", format!("{text}\n"))
            }
            Form::Yaml(version) => self.structured(version, "application/yaml", yaml(&self.fields(version))),
        }
    }

    fn structured(&self, version: Version, content_type: &'static str, body: String) -> Answer {
        let mut answer = answer::typed(StatusCode::OK, content_type, body);
        if version == Version::V1Alpha1 {
            let words = match self {
                Page::Flagz(_) => {
                    "299 - \"This version of the flagz endpoint is deprecated. Please use a newer version.\""
                }
                Page::Statusz(_) => {
                    "299 - \"This version of the statusz endpoint is deprecated. Please use a newer version.\""
                }
            };
            answer.headers_mut().insert("warning", HeaderValue::from_static(words));
        }
        answer
    }

    /// Upstream draws the character between key and value by lot, so that nobody relies on it.
    fn text(&self) -> String {
        let mut text = format!("\nkubelet {}\n{WARNING}\n", self.name());
        // Writing to a String cannot fail.
        match self {
            Page::Flagz(flags) => {
                for (name, value) in flags {
                    let _ = writeln!(text, "{name}={value}");
                }
            }
            Page::Statusz(status) => {
                let up = status.uptime_seconds();
                let started = status.started.strftime("%a %b %e %H:%M:%S UTC %Y");
                let _ = write!(
                    text,
                    "\nStarted: {started}\nUp: {} hr {:02} min {:02} sec\nGo version: \nBinary version: {}\nEmulation version: \
                     {}\nPaths: {}\n",
                    up / 3600,
                    up / 60 % 60,
                    up % 60,
                    status.binary_version,
                    status.emulation_version,
                    status.paths.join(" ")
                );
            }
        }
        text
    }

    /// In the order of upstream's types.
    fn fields(&self, version: Version) -> Vec<(&'static str, Value)> {
        let version = if version == Version::V1Alpha1 { "v1alpha1" } else { "v1beta1" };
        let mut fields = vec![
            ("kind", json!(self.kind())),
            ("apiVersion", json!(format!("{GROUP}/{version}"))),
            ("metadata", json!({"name": "kubelet"})),
        ];
        match self {
            Page::Flagz(flags) => fields.push(("flags", json!(flags))),
            Page::Statusz(status) => fields.extend([
                ("startTime", json!(status.started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())),
                ("uptimeSeconds", json!(status.uptime_seconds())),
                ("goVersion", json!("")),
                ("binaryVersion", json!(status.binary_version)),
                ("emulationVersion", json!(status.emulation_version)),
                ("paths", json!(status.paths)),
            ]),
        }
        fields
    }
}

impl Status {
    fn uptime_seconds(&self) -> i64 {
        (self.now.as_second() - self.started.as_second()).max(0)
    }
}

fn compact(fields: &[(&str, Value)]) -> String {
    let parts: Vec<String> = fields.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
    format!("{{{}}}", parts.join(","))
}

fn indented(fields: &[(&str, Value)], depth: usize) -> String {
    let pad = "  ".repeat(depth + 1);
    let value = |value: &Value| format!("{value:#}").replace('\n', &format!("\n{pad}"));
    let parts: Vec<String> = fields.iter().map(|(key, v)| format!("{pad}\"{key}\": {}", value(v))).collect();
    format!("{{\n{}\n}}", parts.join(",\n"))
}

/// Keys in alphabetical order, as upstream's encoder has them. Texts are written as JSON's, which are YAML's too.
fn yaml(fields: &[(&str, Value)]) -> String {
    let sorted: BTreeMap<&str, &Value> = fields.iter().map(|(key, value)| (*key, value)).collect();
    let mut text = String::new();
    for (key, value) in sorted {
        // Writing to a String cannot fail.
        let _ = match value {
            Value::Object(map) => write!(text, "{key}:{}", yaml_map(map)),
            Value::Array(list) => {
                let items: String = list.iter().map(|item| format!("\n- {item}")).collect();
                writeln!(text, "{key}:{items}")
            }
            plain => writeln!(text, "{key}: {plain}"),
        };
    }
    text
}

fn yaml_map(map: &Map<String, Value>) -> String {
    if map.is_empty() {
        return " {}\n".to_owned();
    }
    let lines: String = map.iter().map(|(key, value)| format!("\n  {}: {value}", Value::from(key.as_str()))).collect();
    format!("{lines}\n")
}

/// The form that is asked for; `None` when it cannot be had. No `Accept` means text.
fn negotiate(accept: &str, kind: &str) -> Option<Form> {
    if accept.trim().is_empty() {
        return Some(Form::Text);
    }
    let mut clauses: Vec<(f32, &str)> = accept.split(',').map(|clause| (quality(clause), clause)).collect();
    // The sort is stable: of equals the first comes first.
    clauses.sort_by(|a, b| b.0.total_cmp(&a.0));
    clauses.iter().filter(|(quality, _)| *quality > 0.0).find_map(|(_, clause)| form(clause, kind))
}

fn quality(clause: &str) -> f32 {
    let q = clause.split(';').skip(1).find_map(|p| p.trim().strip_prefix("q="));
    q.map_or(1.0, |q| q.trim().parse().unwrap_or(1.0))
}

fn form(clause: &str, kind: &str) -> Option<Form> {
    let mut parts = clause.split(';').map(str::trim);
    let media = parts.next()?.to_ascii_lowercase();
    let parameters: BTreeMap<&str, &str> = parts.filter_map(|part| part.split_once('=')).collect();
    let of = |key: &str| parameters.get(key).copied();
    let version = match (of("as"), of("g"), of("v")) {
        (None, _, _) => None,
        (Some(asked), Some(GROUP), Some("v1beta1")) if asked == kind => Some(Version::V1Beta1),
        (Some(asked), Some(GROUP), Some("v1alpha1")) if asked == kind => Some(Version::V1Alpha1),
        _ => return None,
    };
    match (media.as_str(), version) {
        ("text/plain" | "text/*" | "*/*", None) => Some(Form::Text),
        ("application/json" | "application/*" | "*/*", Some(version)) => Some(Form::Json(version)),
        ("application/yaml", Some(version)) => Some(Form::Yaml(version)),
        _ => None,
    }
}

fn not_acceptable() -> Answer {
    let status = "{\n  \"kind\": \"Status\",\n  \"apiVersion\": \"v1\",\n  \"metadata\": {},\n  \"status\": \"Failure\",\n  \
                  \"message\": \"only the following media types are accepted: application/json, application/yaml, \
                  text/plain\",\n  \"reason\": \"NotAcceptable\",\n  \"code\": 406\n}";
    answer::typed(StatusCode::NOT_ACCEPTABLE, "application/json", status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;

    fn statusz() -> Page {
        Page::Statusz(Status {
            started: "2026-11-01T10:00:00Z".parse().unwrap(),
            now: "2026-11-02T11:02:03.9Z".parse().unwrap(),
            binary_version: "1.36.0".into(),
            emulation_version: "1.36".into(),
            paths: vec!["/configz".into(), "/healthz".into()],
        })
    }

    fn flagz() -> Page {
        Page::Flagz([("root-dir".to_owned(), "/r".to_owned()), ("v".to_owned(), "4".to_owned())].into())
    }

    async fn body(answer: Answer) -> String {
        String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    #[test]
    fn which_form() {
        let beta = Version::V1Beta1;
        for (accept, expected) in [
            ("", Some(Form::Text)),
            (" ", Some(Form::Text)),
            ("*/*", Some(Form::Text)),
            ("text/plain", Some(Form::Text)),
            ("text/html, */*;q=0.8", Some(Form::Text)),
            ("application/json", None),
            ("application/json;q=1, text/plain;q=0.1", Some(Form::Text)),
            ("application/json;v=v1beta1;g=config.k8s.io;as=Statusz", Some(Form::Json(beta))),
            ("application/json;as=Statusz;v=v1alpha1;g=config.k8s.io", Some(Form::Json(Version::V1Alpha1))),
            ("application/yaml;v=v1beta1;g=config.k8s.io;as=Statusz", Some(Form::Yaml(beta))),
            ("application/json;v=v1beta1;g=config.k8s.io;as=Flagz", None),
            ("application/json;v=v1;g=config.k8s.io;as=Statusz", None),
            ("application/json;v=v1beta1;g=apps;as=Statusz", None),
            ("application/cbor;v=v1beta1;g=config.k8s.io;as=Statusz", None),
            ("text/plain;q=0", None),
        ] {
            assert_eq!(negotiate(accept, "Statusz"), expected, "{accept}");
        }
    }

    #[tokio::test]
    async fn each_form_of_each_page() {
        let text = body(statusz().answer("", false)).await;
        assert_eq!(
            text,
            format!(
                "\nkubelet statusz\n{WARNING}\n\nStarted: Sun Nov  1 10:00:00 UTC 2026\nUp: 25 hr 02 min 03 sec\nGo version: \n\
                 Binary version: 1.36.0\nEmulation version: 1.36\nPaths: /configz /healthz\n"
            )
        );
        let accept = "application/json;v=v1beta1;g=config.k8s.io;as=Statusz";
        assert_eq!(
            body(statusz().answer(accept, false)).await,
            "{\"kind\":\"Statusz\",\"apiVersion\":\"config.k8s.io/v1beta1\",\"metadata\":{\"name\":\"kubelet\"},\"startTime\":\
             \"2026-11-01T10:00:00Z\",\"uptimeSeconds\":90123,\"goVersion\":\"\",\"binaryVersion\":\"1.36.0\",\
             \"emulationVersion\":\"1.36\",\"paths\":[\"/configz\",\"/healthz\"]}\n"
        );
        let pretty: Value = serde_json::from_str(&body(statusz().answer(accept, true)).await).unwrap();
        assert_eq!(pretty["uptimeSeconds"], 90123);
        assert_eq!(body(flagz().answer("*/*", true)).await, format!("\nkubelet flagz\n{WARNING}\nroot-dir=/r\nv=4\n"));
        let old = flagz().answer("application/yaml;v=v1alpha1;g=config.k8s.io;as=Flagz", false);
        assert!(old.headers()["warning"].to_str().unwrap().starts_with("299 - "));
        assert_eq!(
            body(old).await,
            "apiVersion: \"config.k8s.io/v1alpha1\"\nflags:\n  \"root-dir\": \"/r\"\n  \"v\": \"4\"\nkind: \"Flagz\"\nmetadata:\n  \
             \"name\": \"kubelet\"\n"
        );
        let refused = flagz().answer("application/json", false);
        assert_eq!(refused.status(), 406);
        let status: Value = serde_json::from_str(&body(refused).await).unwrap();
        assert_eq!(status["reason"], "NotAcceptable");
    }
}
