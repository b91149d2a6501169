//! Single questions to the API server, and what its answers mean: whether an object does not exist, is refused, or
//! could only not be had now.

use std::fmt::Debug;

use bulkhead_apiclient::watch::{Change, Scope, watch};
use bulkhead_apiclient::{ApiClient, Bare, Lane};
use bulkhead_types::chain;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::GetParams;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use kubelet_model::objects::ObjectError;

pub type Got<T> = Result<T, ObjectError>;

/// Reads a failed call. 404 is the server's word that there is none; what it may answer otherwise later (429, 5xx) and
/// a server that cannot be reached mean "ask again".
pub fn object_error(error: &kube::Error) -> ObjectError {
    match error {
        kube::Error::Api(status) if status.code == 404 => ObjectError::NotFound(status.message.clone()),
        kube::Error::Api(status) if status.code == 429 || status.code == 408 || status.code >= 500 => {
            ObjectError::Away(status.message.clone())
        }
        kube::Error::Api(status) => ObjectError::Refused(status.message.clone()),
        // Without the decoder's words: they may quote a secret.
        kube::Error::SerdeError(error) => {
            let place = format!("line {}, column {}", error.line(), error.column());
            ObjectError::Away(format!("the API server's answer cannot be decoded ({place})"))
        }
        other => ObjectError::Away(chain(other)),
    }
}

/// A configMap or a secret.
pub trait Content: Clone + Debug + Send + Sync + 'static {
    /// As upstream's texts name it.
    const KIND: &'static str;
    fn resource_version(&self) -> &str;
    /// It will never change: nothing need be watched any more.
    fn is_immutable(&self) -> bool;
}

impl Content for ConfigMap {
    const KIND: &'static str = "configmap";

    fn resource_version(&self) -> &str {
        self.metadata.resource_version.as_deref().unwrap_or_default()
    }

    fn is_immutable(&self) -> bool {
        self.immutable == Some(true)
    }
}

impl Content for Secret {
    const KIND: &'static str = "secret";

    fn resource_version(&self) -> &str {
        self.metadata.resource_version.as_deref().unwrap_or_default()
    }

    fn is_immutable(&self) -> bool {
        self.immutable == Some(true)
    }
}

/// Where single objects come from.
pub trait ObjectServer<K>: Send + Sync + 'static {
    /// `from_cache`: what the server has in memory will do, even if it is a little old.
    fn get<'a>(&'a self, namespace: &'a str, name: &'a str, from_cache: bool) -> BoxFuture<'a, Got<K>>;
    /// That object alone, for ever.
    fn watch(&self, namespace: &str, name: &str) -> BoxStream<'static, Change<K>>;
}

impl<K> ObjectServer<K> for ApiClient
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Content + DeserializeOwned,
{
    fn get<'a>(&'a self, namespace: &'a str, name: &'a str, from_cache: bool) -> BoxFuture<'a, Got<K>> {
        Box::pin(async move {
            let api: Api<Bare<K>> = Api::namespaced(self.client(Lane::Main), namespace);
            let params = if from_cache { GetParams::any() } else { GetParams::default() };
            let got = api.get_with(name, &params).await;
            got.map(|Bare(object)| object).map_err(|error| object_error(&error))
        })
    }

    fn watch(&self, namespace: &str, name: &str) -> BoxStream<'static, Change<K>> {
        let field_selector = format!("metadata.name={name}");
        watch(self, Lane::Main, Scope { namespace: Some(namespace.to_owned()), field_selector, ..Scope::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_decoded_is_not_quoted() {
        let error = serde_json::from_str::<u8>("\"geheim\"").unwrap_err();
        assert!(error.to_string().contains("geheim"));
        let told = object_error(&kube::Error::SerdeError(error));
        assert!(matches!(&told, ObjectError::Away(text) if !text.contains("geheim")), "{told}");
    }

    #[test]
    fn answers() {
        let api = |code: u16| {
            let status = kube::core::Status { code, message: "words".to_owned(), ..kube::core::Status::default() };
            object_error(&kube::Error::Api(Box::new(status)))
        };
        assert_eq!(api(404), ObjectError::NotFound("words".into()));
        for code in [408, 429, 500, 503] {
            assert_eq!(api(code), ObjectError::Away("words".into()), "{code}");
        }
        for code in [400, 401, 403, 422] {
            assert_eq!(api(code), ObjectError::Refused("words".into()), "{code}");
        }
        let unreachable = kube::Error::Service(Box::new(std::io::Error::other("refused")));
        assert!(matches!(object_error(&unreachable), ObjectError::Away(text) if text.contains("refused")));
    }
}
