//! Who containers run as. The runtime of the recordings does not tell it, so what upstream's kubelet told of the same pods on a
//! newer one is written down beside them: `golden/runtimes/<release>-users.json`, by pod and container.

use std::path::Path;

use anyhow::{Context as _, Result};
use bulkhead_testkit::Release;
use serde_json::Value;

/// The lists of a pod's status.
const LISTS: [&str; 3] = ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];

/// See the module.
#[derive(Debug)]
pub struct Users {
    /// `{pod: {container: user}}`; null where the runtime tells none.
    by_pod: Value,
}

impl Users {
    /// What is told on that release.
    ///
    /// # Errors
    /// The list cannot be read.
    pub fn on(release: Release) -> Result<Self> {
        let by_pod = match release {
            Release::Installed | Release::V1_7 => Value::Null,
            Release::V2_1 => {
                let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/runtimes/2.1-users.json");
                let text = std::fs::read(&file).with_context(|| file.display().to_string())?;
                serde_json::from_slice(&text).with_context(|| file.display().to_string())?
            }
        };
        Ok(Self { by_pod })
    }

    /// A recorded status of a pod as it would have been told there: with the user of each container that the runtime knows.
    pub fn told(&self, pod: &str, status: &Value) -> Value {
        let mut status = status.clone();
        for list in LISTS {
            let containers = status.get_mut(list).and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten() {
                let user = container["name"].as_str().and_then(|name| self.by_pod[pod].get(name)).cloned();
                if let Some(user) = user.filter(|_| container["containerID"].is_string()) {
                    container["user"] = user;
                }
            }
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_container_that_the_runtime_knows_has_a_user() {
        let root = json!({"linux": {"uid": 0, "gid": 0}});
        let users = Users { by_pod: json!({"p": {"a": root, "b": root}}) };
        let status =
            json!({"phase": "Running", "containerStatuses": [{"name": "a", "containerID": "x"}, {"name": "b"}]});
        let told = users.told("p", &status);
        assert_eq!(told["containerStatuses"][0]["user"], root);
        assert_eq!(told["containerStatuses"][1], status["containerStatuses"][1]);
        assert_eq!(users.told("q", &status), status);
        let nobody = Users::on(Release::Installed).unwrap();
        assert_eq!(nobody.told("p", &status), status);
    }
}
