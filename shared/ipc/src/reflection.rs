//! Server reflection, for grpcurl. It is asked for now and then, by a person; what it answers from is megabytes once it is decoded, so
//! that is done for each call and lasts as long.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bulkhead_types::Process;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic_reflection::server::{Builder, Error};
use tower_service::Service;

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

/// Answers with the services of these names.
#[derive(Debug, Clone)]
pub struct Reflection {
    names: Arc<[&'static str]>,
}

impl Reflection {
    pub fn new(names: Vec<&'static str>) -> Self {
        Reflection { names: names.into() }
    }

    pub fn v1(&self) -> V1 {
        V1(self.clone())
    }

    pub fn v1alpha(&self) -> V1Alpha {
        V1Alpha(self.clone())
    }

    fn builder(&self) -> Builder<'static> {
        let builder = Builder::configure()
            .register_encoded_file_descriptor_set(crate::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
        self.names.iter().fold(builder, |builder, name| builder.with_service_name(*name))
    }
}

/// Version 1 of the protocol.
#[derive(Debug, Clone)]
pub struct V1(Reflection);

/// The version before it: the same messages by another name.
#[derive(Debug, Clone)]
pub struct V1Alpha(Reflection);

impl NamedService for V1 {
    const NAME: &'static str = "grpc.reflection.v1.ServerReflection";
}

impl NamedService for V1Alpha {
    const NAME: &'static str = "grpc.reflection.v1alpha.ServerReflection";
}

impl Service<http::Request<Body>> for V1 {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer {
        answer(self.0.builder().build_v1(), request)
    }
}

impl Service<http::Request<Body>> for V1Alpha {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer {
        answer(self.0.builder().build_v1alpha(), request)
    }
}

type Answer = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

fn answer<S>(service: Result<S, Error>, request: http::Request<Body>) -> Answer
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible> + Send + 'static,
    S::Future: Send + 'static,
{
    match service {
        Ok(mut service) => Box::pin(async move { service.call(request).await }),
        // A build whose descriptors cannot be decoded fails the test of this crate.
        Err(error) => {
            let status = Status::internal(format!("failed to decode the descriptors of the API: {error}"));
            Box::pin(std::future::ready(Ok(status.into_http())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptors_can_be_served() {
        let reflection = Reflection::new(every_package());
        assert!(reflection.builder().build_v1().is_ok() && reflection.builder().build_v1alpha().is_ok());
    }

    #[test]
    fn a_process_advertises_its_own_services_and_the_common_ones() {
        let names = served_by(Process::Syncd);
        assert!(names.contains(&"kubelet.syncd.v1.Pods") && names.contains(&"grpc.health.v1.Health"), "{names:?}");
        assert!(!names.iter().any(|name| name.starts_with("kubelet.volnetd.")), "{names:?}");
        assert!(every_package().iter().any(|name| name.starts_with("kubelet.volnetd.")));
    }
}
