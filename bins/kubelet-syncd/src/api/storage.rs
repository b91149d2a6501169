//! What is read of the API server for volumes: claims, volumes, attachments and secrets by name, as nodes may, and one watch of the
//! CSIDrivers.

use std::collections::BTreeMap;
use std::sync::Arc;

use bulkhead_apiclient::watch::{Change, Scope, watch};
use bulkhead_apiclient::{ApiClient, Bare, Lane};
use futures_util::stream::BoxStream;
use futures_util::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Secret};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use kube::Api;
use tokio::sync::watch as value;

use super::server::object_error;
use kubelet_model::objects::{ObjectError, Objects, Token, TokenWanted};
use kubelet_volume_manager::ports::{ClusterReader, Read};

/// Drivers by name; None until they were listed.
pub type Known = Option<BTreeMap<String, Arc<CSIDriver>>>;

/// The API server as volumes need it; without one there is nothing to be had.
#[derive(Debug)]
pub struct StorageObjects {
    client: Option<ApiClient>,
    objects: Arc<dyn Objects>,
    drivers: value::Sender<Known>,
}

impl StorageObjects {
    /// Starts the watch. Must be called within a tokio runtime.
    pub fn start(client: Option<ApiClient>, objects: Arc<dyn Objects>) -> Arc<Self> {
        let drivers = value::Sender::new(None);
        if let Some(client) = &client {
            let changes = watch::<CSIDriver>(client, Lane::Main, Scope::default());
            tokio::spawn(follow(changes, drivers.clone()));
        }
        Arc::new(StorageObjects { client, objects, drivers })
    }

    /// The CSIDrivers, and each change of them.
    pub fn drivers(&self) -> value::Receiver<Known> {
        self.drivers.subscribe()
    }
}

async fn follow(mut changes: BoxStream<'static, Change<CSIDriver>>, known: value::Sender<Known>) {
    let entry = |driver: CSIDriver| (driver.metadata.name.clone().unwrap_or_default(), Arc::new(driver));
    while let Some(change) = changes.next().await {
        match change {
            Change::Restarted(all) => {
                let last = known.borrow().clone().unwrap_or_default();
                known.send_replace(Some(all.keyed(last, |one| one.name.clone(), entry)));
            }
            Change::Applied(driver) => known.send_modify(|known| {
                let (name, driver) = entry(driver);
                known.get_or_insert_default().insert(name, driver);
            }),
            Change::Deleted(driver) => known.send_modify(|known| {
                known.get_or_insert_default().remove(&driver.name);
            }),
            Change::Failed(error) => {
                tracing::debug!("CSIDrivers could not be watched on the API server: {error}");
            }
        }
    }
}

fn none<T>(kind: &'static str, namespace: &str, name: &str) -> Result<T, ObjectError> {
    Err(ObjectError::NoApiServer { kind, namespace: namespace.to_owned(), name: name.to_owned() })
}

impl ClusterReader for StorageObjects {
    fn claim<'a>(&'a self, namespace: &'a str, name: &'a str) -> Read<'a, Arc<PersistentVolumeClaim>> {
        self.objects.persistent_volume_claim(namespace, name)
    }

    fn volume<'a>(&'a self, name: &'a str) -> Read<'a, Arc<PersistentVolume>> {
        self.objects.persistent_volume(name)
    }

    fn attachment<'a>(&'a self, name: &'a str) -> Read<'a, VolumeAttachment> {
        async move {
            let Some(client) = &self.client else { return none("volumeAttachment", "", name) };
            let api: Api<Bare<VolumeAttachment>> = Api::all(client.client(Lane::Main));
            api.get(name).await.map(|Bare(object)| object).map_err(|error| object_error(&error))
        }
        .boxed()
    }

    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> Read<'a, Secret> {
        async move {
            let Some(client) = &self.client else { return none("secret", namespace, name) };
            let api: Api<Bare<Secret>> = Api::namespaced(client.client(Lane::Main), namespace);
            api.get(name).await.map(|Bare(object)| object).map_err(|error| object_error(&error))
        }
        .boxed()
    }

    fn token<'a>(&'a self, wanted: &'a TokenWanted) -> Read<'a, Token> {
        self.objects.token(wanted)
    }

    fn driver(&self, name: &str) -> Result<Option<Arc<CSIDriver>>, ObjectError> {
        if self.client.is_none() {
            return Ok(None);
        }
        match &*self.drivers.borrow() {
            Some(drivers) => Ok(drivers.get(name).cloned()),
            None => Err(ObjectError::Away("CSIDrivers have not been read at least once".to_owned())),
        }
    }

    fn driver_changes(&self) -> BoxStream<'static, ()> {
        let next = |mut seen: value::Receiver<Known>| async move { seen.changed().await.ok().map(|()| ((), seen)) };
        futures_util::stream::unfold(self.drivers(), next).boxed()
    }

    fn node(&self) -> value::Receiver<Option<Arc<Node>>> {
        self.objects.node()
    }
}
