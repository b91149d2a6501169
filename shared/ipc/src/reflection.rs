//! Server reflection, for grpcurl. A person asks seldom; what reflection answers from is megabytes once it is decoded, so that is done
//! when a call comes, once for all calls that are open, and lasts as long as they do.

use std::convert::Infallible;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use bulkhead_types::Process;
use parking_lot::Mutex;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic_reflection::server::{Builder, Error};
use tower_service::Service;

use crate::holding::Holding;

/// Package and full name of each service of the internal API.
const SERVICES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/services.rs"));
/// What every process has.
const COMMON: [&str; 2] = ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"];

/// The services that a process serves.
pub fn served_by(process: Process) -> Vec<&'static str> {
    let own = format!("kubelet.{}.v1", process.short());
    let served = SERVICES.iter().filter(|(package, _)| *package == own || *package == "kubelet.common.v1");
    served.map(|(_, name)| *name).chain(COMMON).collect()
}

/// The services of every process.
pub fn every_package() -> Vec<&'static str> {
    SERVICES.iter().map(|(_, name)| *name).chain(COMMON).collect()
}

type Answer = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;
/// Answers from the decoded descriptors.
type Decoded = dyn Fn(http::Request<Body>) -> Answer + Send + Sync;

/// A version of the protocol.
pub trait Version: Send + Sync + 'static {
    const NAME: &'static str;

    /// # Errors
    /// The descriptors cannot be decoded.
    fn decode(builder: Builder<'static>) -> Result<Arc<Decoded>, Error>;
}

#[derive(Debug)]
pub struct V1;

/// What older tools still ask for: the same messages by another name.
#[derive(Debug)]
pub struct V1Alpha;

impl Version for V1 {
    const NAME: &'static str = "grpc.reflection.v1.ServerReflection";

    fn decode(builder: Builder<'static>) -> Result<Arc<Decoded>, Error> {
        Ok(shared(builder.build_v1()?))
    }
}

impl Version for V1Alpha {
    const NAME: &'static str = "grpc.reflection.v1alpha.ServerReflection";

    fn decode(builder: Builder<'static>) -> Result<Arc<Decoded>, Error> {
        Ok(shared(builder.build_v1alpha()?))
    }
}

fn shared<S>(service: S) -> Arc<Decoded>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send + 'static,
{
    Arc::new(move |request| {
        let mut service = service.clone();
        Box::pin(async move { service.call(request).await })
    })
}

/// Answers with the services of these names.
#[derive(Debug)]
pub struct Reflection<V> {
    names: Arc<[&'static str]>,
    decoded: Arc<Mutex<Option<Weak<Decoded>>>>,
    version: PhantomData<V>,
}

impl<V> Clone for Reflection<V> {
    fn clone(&self) -> Self {
        Reflection { names: self.names.clone(), decoded: self.decoded.clone(), version: PhantomData }
    }
}

impl<V: Version> Reflection<V> {
    pub fn new(names: &[&'static str]) -> Self {
        Reflection { names: names.into(), decoded: Arc::default(), version: PhantomData }
    }

    /// What open calls use, or decoded anew.
    fn decoded(&self) -> Result<Arc<Decoded>, Error> {
        let mut held = self.decoded.lock();
        if let Some(decoded) = held.as_ref().and_then(Weak::upgrade) {
            return Ok(decoded);
        }
        let builder = Builder::configure()
            .register_encoded_file_descriptor_set(crate::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
        let builder = self.names.iter().fold(builder, |builder, name| builder.with_service_name(*name));
        let decoded = V::decode(builder)?;
        *held = Some(Arc::downgrade(&decoded));
        Ok(decoded)
    }
}

impl<V: Version> NamedService for Reflection<V> {
    const NAME: &'static str = V::NAME;
}

impl<V: Version> Service<http::Request<Body>> for Reflection<V> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer {
        match self.decoded() {
            Ok(decoded) => Box::pin(async move {
                let response = decoded(request).await?;
                Ok(response.map(|body| Body::new(Holding::new(body, decoded))))
            }),
            // A build with such descriptors fails the test below.
            Err(error) => {
                let status = Status::internal(format!("failed to decode the descriptors of the API: {error}"));
                Box::pin(std::future::ready(Ok(status.into_http())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_advertises_its_own_services_and_the_common_ones() {
        let names = served_by(Process::Syncd);
        assert!(names.contains(&"kubelet.syncd.v1.Pods") && names.contains(&"grpc.health.v1.Health"), "{names:?}");
        assert!(!names.iter().any(|name| name.starts_with("kubelet.volnetd.")), "{names:?}");
        assert!(every_package().iter().any(|name| name.starts_with("kubelet.volnetd.")));
    }

    async fn decoded_once_and_let_go_of<V: Version>() {
        let mut service = Reflection::<V>::new(&every_package());
        let holds = |service: &Reflection<V>| {
            let decoded = service.decoded.lock().as_ref().and_then(Weak::upgrade);
            // The one that this look has is not counted.
            decoded.map_or(0, |decoded| Arc::strong_count(&decoded) - 1)
        };
        assert_eq!(holds(&service), 0);
        let path = format!("http://localhost/{}/ServerReflectionInfo", V::NAME);
        let ask = || {
            let request = http::Request::post(&path).header(http::header::CONTENT_TYPE, "application/grpc");
            request.body(Body::empty()).unwrap()
        };
        let first = service.call(ask()).await.unwrap();
        let second = service.clone().call(ask()).await.unwrap();
        assert!(first.status().is_success() && first.headers().get("grpc-status").is_none(), "{first:?}");
        assert_eq!(holds(&service), 2);
        drop((first, second));
        assert_eq!(holds(&service), 0);
    }

    #[tokio::test]
    async fn descriptors_are_decoded_once_for_all_open_calls_and_let_go_of() {
        decoded_once_and_let_go_of::<V1>().await;
        decoded_once_and_let_go_of::<V1Alpha>().await;
    }
}
