//! The cluster's controllers: the models of them, on the stand-in for kube-apiserver, or kube-controller-manager and kube-scheduler on a
//! real control plane. Everything else knows them by the API alone.

mod claims;
mod volumes;

use anyhow::{Context as _, Result, ensure};
use bulkhead_simulation::apiserver::Model;
use bulkhead_simulation::world::Shared;
use bulkhead_testkit::Cluster;
use bulkhead_testkit::apiserver::Config;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// Who is asked.
#[derive(Debug)]
enum Subject {
    Model { model: Model, world: Shared, _runtime: Runtime },
    // The folder last: it goes when the cluster has ended.
    Real { cluster: Cluster, _folder: tempfile::TempDir },
}

impl Subject {
    fn model() -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().context("making a runtime")?;
        let world = Shared::new(1);
        let model = Model::start(world.clone(), runtime.handle())?;
        Ok(Subject::Model { model, world, _runtime: runtime })
    }

    fn real() -> Result<Self> {
        let folder = tempfile::tempdir().context("making a folder")?;
        let cluster = Cluster::start(folder.path(), Config::default())?;
        cluster.start_controllers()?;
        Ok(Subject::Real { cluster, _folder: folder })
    }

    /// None: there is no such object.
    fn get(&self, path: &str) -> Result<Option<Value>> {
        match self {
            Subject::Model { model, .. } => Ok(model.request("GET", path, &Value::Null).ok()),
            Subject::Real { cluster, .. } => {
                let answer = cluster.client().get(path)?;
                if answer.status == 404 { Ok(None) } else { answer.success().map(Some) }
            }
        }
    }

    fn create(&self, path: &str, object: &Value) -> Result<Value> {
        match self {
            Subject::Model { model, .. } => {
                model.request("POST", path, object).map_err(|refusal| anyhow::anyhow!("{path}: {refusal}"))
            }
            Subject::Real { cluster, .. } => cluster.client().send_json("POST", path, object)?.success(),
        }
    }

    fn patch(&self, path: &str, patch: &Value) -> Result<()> {
        match self {
            Subject::Model { model, .. } => {
                model.patch(path, patch);
                Ok(())
            }
            Subject::Real { cluster, .. } => {
                cluster.client().patch(path, "strategic-merge-patch", patch)?.success().map(drop)
            }
        }
    }

    /// At once, as somebody does whose node is gone.
    fn delete_pod(&self, pod: &str) -> Result<()> {
        self.delete_pod_within(pod, 0)
    }

    /// With so many seconds of grace.
    fn delete_pod_within(&self, pod: &str, grace: u64) -> Result<()> {
        let path = format!("{PODS}/{pod}?gracePeriodSeconds={grace}");
        match self {
            Subject::Model { model, .. } => {
                let done = model.request("DELETE", &path, &Value::Null);
                done.map(drop).map_err(|refusal| anyhow::anyhow!("{path}: {refusal}"))
            }
            Subject::Real { cluster, .. } => cluster.client().request("DELETE", &path, &[], b"")?.success().map(drop),
        }
    }

    /// The model's own checks have held.
    fn is_content(&self) -> Result<()> {
        match self {
            Subject::Model { world, .. } => {
                let broken = world.lock().broken.clone();
                ensure!(broken.is_empty(), "{broken:?}");
                Ok(())
            }
            Subject::Real { .. } => Ok(()),
        }
    }
}
