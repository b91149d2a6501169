//! An API server that knows pods and events, counts requests, and fails when told to.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

/// A wait that is longer than anything here should take.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What becomes of a request that a fault meets.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Not carried out; answered so.
    Answer(u16, Value),
    /// Not carried out; the connection breaks.
    Broken,
    /// Carried out; the connection breaks.
    Unheard,
    /// Nothing happens until [`Api::release`].
    Held,
}

struct Rule {
    part: String,
    times: usize,
    fault: Fault,
}

#[derive(Default)]
struct State {
    version: u64,
    objects: BTreeMap<String, Value>,
    log: Vec<(String, Value)>,
    rules: Vec<Rule>,
}

/// The server. Cheap to clone.
#[derive(Clone, Default)]
pub struct Api {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    released: Arc<Notify>,
}

impl Api {
    /// A client whose requests come here.
    pub fn client(&self) -> kube::Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let api = api.clone();
            async move { api.serve(request).await }
        });
        kube::Client::new(service, "default")
    }

    /// The next requests whose "METHOD path" contains this meet a fault.
    pub fn fail(&self, part: &str, times: usize, fault: Fault) {
        self.state.lock().rules.push(Rule { part: part.into(), times, fault });
    }

    /// No more faults.
    pub fn heal(&self) {
        self.state.lock().rules.clear();
        self.changed.notify_waiters();
    }

    /// Requests that were held are answered.
    pub fn release(&self) {
        self.heal();
        self.released.notify_waiters();
    }

    /// Puts an object as somebody else would.
    pub fn put(&self, path: &str, mut object: Value) -> Value {
        let mut state = self.state.lock();
        state.version += 1;
        object["metadata"]["resourceVersion"] = json!(state.version.to_string());
        state.objects.insert(path.into(), object.clone());
        object
    }

    pub fn get(&self, path: &str) -> Option<Value> {
        self.state.lock().objects.get(path).cloned()
    }

    /// Removes an object as somebody else would.
    pub fn remove(&self, path: &str) {
        self.state.lock().objects.remove(path);
    }

    /// "METHOD path" of the requests so far whose line contains this.
    pub fn requests(&self, part: &str) -> Vec<(String, Value)> {
        self.state.lock().log.iter().filter(|(line, _)| line.contains(part)).cloned().collect()
    }

    /// Objects below a path.
    pub fn list(&self, path: &str) -> Vec<Value> {
        let state = self.state.lock();
        state.objects.iter().filter(|(key, _)| key.starts_with(path)).map(|(_, value)| value.clone()).collect()
    }

    /// Waits until this holds.
    pub async fn until(&self, what: &str, holds: impl Fn(&Api) -> bool) {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if holds(self) {
                    return;
                }
                changed.await;
            }
        };
        if tokio::time::timeout(PATIENCE, wait).await.is_err() {
            panic!("{what}: did not come; requests were {:#?}", self.requests(""));
        }
    }

    async fn serve(
        &self,
        request: Request<kube::client::Body>,
    ) -> Result<Response<Full<bytes::Bytes>>, std::io::Error> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let line = format!("{} {}", head.method, head.uri.path());
        let fault = {
            let mut state = self.state.lock();
            state.log.push((line.clone(), body.clone()));
            let rule = state.rules.iter_mut().find(|rule| rule.times > 0 && line.contains(&rule.part));
            rule.map(|rule| {
                rule.times -= 1;
                rule.fault.clone()
            })
        };
        self.changed.notify_waiters();
        let answer = match fault {
            Some(Fault::Broken) => Err(std::io::Error::other("connection refused")),
            Some(Fault::Answer(code, details)) => Ok(failure(code, details)),
            Some(Fault::Unheard) => {
                self.carry_out(&head.method, head.uri.path(), body);
                Err(std::io::Error::other("connection reset"))
            }
            Some(Fault::Held) => {
                self.released.notified().await;
                Ok(self.carry_out(&head.method, head.uri.path(), body))
            }
            None => Ok(self.carry_out(&head.method, head.uri.path(), body)),
        };
        self.changed.notify_waiters();
        let (code, value) = answer?;
        Ok(Response::builder().status(code).body(Full::from(value.to_string())).unwrap())
    }

    fn carry_out(&self, method: &Method, path: &str, mut body: Value) -> (u16, Value) {
        let mut state = self.state.lock();
        state.version += 1;
        let version = json!(state.version.to_string());
        if *method == Method::POST {
            let key = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap());
            if state.objects.contains_key(&key) {
                return failure(409, json!({}));
            }
            body["metadata"]["uid"] = json!(format!("uid-{}", state.version));
            body["metadata"]["resourceVersion"] = version;
            if body["kind"] == "Pod" {
                body["status"] = json!({"phase": "Pending"});
            }
            state.objects.insert(key, body.clone());
            return (201, body);
        }
        let key = path.trim_end_matches("/status").to_owned();
        let Some(object) = state.objects.get_mut(&key) else { return failure(404, json!({})) };
        if *method == Method::GET {
            return (200, object.clone());
        }
        let precondition = [&body["metadata"]["uid"], &body["preconditions"]["uid"]];
        if precondition.iter().any(|uid| uid.is_string() && **uid != object["metadata"]["uid"]) {
            return failure(409, json!({}));
        }
        if *method == Method::DELETE {
            return (200, state.objects.remove(&key).unwrap());
        }
        merge(object.as_object_mut().unwrap(), body.as_object().unwrap());
        object["metadata"]["resourceVersion"] = version;
        (200, object.clone())
    }
}

fn failure(code: u16, details: Value) -> (u16, Value) {
    (
        code,
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "m", "code": code, "details": details}),
    )
}

/// A strategic merge, as far as a pod's status needs one.
fn merge(object: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (key, value) in patch.iter().filter(|(key, _)| !key.starts_with('$')) {
        match value {
            Value::Null => {
                object.remove(key);
            }
            Value::Object(inner) => {
                let place = object.entry(key.clone()).or_insert_with(|| json!({}));
                merge(place.as_object_mut().unwrap(), inner);
            }
            Value::Array(items) if key == "conditions" => {
                let place = object.entry(key.clone()).or_insert_with(|| json!([]));
                let conditions = place.as_array_mut().unwrap();
                for item in items {
                    match conditions.iter_mut().find(|c| c["type"] == item["type"]) {
                        Some(condition) => merge(condition.as_object_mut().unwrap(), item.as_object().unwrap()),
                        None => conditions.push(item.clone()),
                    }
                }
            }
            other => {
                object.insert(key.clone(), other.clone());
            }
        }
    }
}
