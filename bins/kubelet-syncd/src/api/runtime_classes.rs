//! RuntimeClasses: which handler of the runtime a class stands for (upstream `pkg/kubelet/runtimeclass`).

use std::collections::BTreeMap;
use std::sync::Arc;

use bulkhead_apiclient::watch::{Change, Scope, watch};
use bulkhead_apiclient::{ApiClient, Lane};
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use k8s_openapi::api::node::v1::RuntimeClass;
use parking_lot::Mutex;

use super::server::Got;
use kubelet_model::objects::ObjectError;

pub fn changes(client: &ApiClient) -> BoxStream<'static, Change<RuntimeClass>> {
    watch(client, Lane::Main, Scope::default())
}

/// Handlers by class; None until they were listed.
#[derive(Debug, Clone, Default)]
pub struct RuntimeClasses(Arc<Mutex<Option<BTreeMap<String, String>>>>);

impl RuntimeClasses {
    /// The handler of a class. The empty class is the runtime's default handler.
    pub fn handler(&self, class: &str) -> Got<String> {
        if class.is_empty() {
            return Ok(String::new());
        }
        match &*self.0.lock() {
            Some(classes) => classes
                .get(class)
                .cloned()
                .ok_or_else(|| ObjectError::NotFound(format!("runtimeclass.node.k8s.io {class:?} not found"))),
            None => Err(ObjectError::Away(format!(
                "failed to lookup RuntimeClass {class}: runtime classes have not yet been read at least once"
            ))),
        }
    }

    /// Follows the classes for ever.
    pub async fn follow(self, mut changes: BoxStream<'static, Change<RuntimeClass>>) {
        let entry = |class: RuntimeClass| (class.metadata.name.unwrap_or_default(), class.handler);
        while let Some(change) = changes.next().await {
            let mut classes = self.0.lock();
            match change {
                Change::Restarted(all) => {
                    let last = classes.take().unwrap_or_default();
                    *classes = Some(all.keyed(last, |one| one.name.clone(), entry));
                }
                Change::Applied(class) => {
                    let (name, handler) = entry(class);
                    classes.get_or_insert_default().insert(name, handler);
                }
                Change::Deleted(class) => {
                    classes.get_or_insert_default().remove(&class.name);
                }
                Change::Failed(error) => {
                    tracing::debug!("runtime classes could not be watched on the API server: {error}");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_apiclient::ObjectRef;
    use bulkhead_apiclient::watch::List;

    use super::*;

    #[tokio::test]
    async fn classes() {
        let class = |name: &str, handler: &str| -> RuntimeClass {
            serde_json::from_value(serde_json::json!({"metadata": {"name": name}, "handler": handler})).unwrap()
        };
        let object = |name: &str| ObjectRef { name: name.to_owned(), ..ObjectRef::default() };
        let classes = RuntimeClasses::default();
        assert_eq!(classes.handler(""), Ok(String::new()));
        assert!(matches!(classes.handler("a"), Err(ObjectError::Away(_))));
        let stream = futures_util::stream::iter([
            Change::Failed("away".into()),
            Change::Restarted(vec![class("a", "runc"), class("b", "gvisor"), class("d", "x")].into()),
            // One of them cannot be decoded any more, one could never be, one is gone.
            Change::Restarted(List {
                objects: vec![class("b", "gvisor")],
                undecodable: vec![object("a"), object("e")],
            }),
            Change::Applied(class("c", "kata")),
            Change::Deleted(object("b")),
        ]);
        classes.clone().follow(stream.boxed()).await;
        for missing in ["d", "e"] {
            assert!(matches!(classes.handler(missing), Err(ObjectError::NotFound(_))), "{missing}");
        }
        assert_eq!(classes.handler("a").unwrap(), "runc");
        assert_eq!(classes.handler("c").unwrap(), "kata");
        let missing = ObjectError::NotFound("runtimeclass.node.k8s.io \"b\" not found".into());
        assert_eq!(classes.handler("b"), Err(missing));
    }
}
