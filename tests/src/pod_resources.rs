//! An agent that asks on the node who has which resources, as monitoring does.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::LONG;
use kubelet_pod_resources::v1::pod_resources_lister_client::PodResourcesListerClient as V1;
use kubelet_pod_resources::v1alpha1::pod_resources_lister_client::PodResourcesListerClient as V1alpha1;
use kubelet_pod_resources::{v1, v1alpha1};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::hostile::frames;

/// Calls a method with an empty message, as programs do whose library (Go's, C's) makes the authority of a path that they dial, and
/// answers the type of the frame that the answer begins with: HEADERS, or RST_STREAM.
///
/// # Errors
/// There is no answer.
pub fn answer_to_a_path(socket: &Path, method: &str) -> Result<u8> {
    let mut stream = UnixStream::connect(socket).with_context(|| socket.display().to_string())?;
    stream.set_read_timeout(Some(LONG))?;
    let headers = frames::call_to("%2Fvar%2Flib%2Fkubelet%2Fpod-resources%2Fkubelet.sock", method);
    stream.write_all(&[frames::PREFACE, &frames::with_empty_message(&headers, 1)].concat())?;
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).context("no answer")?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        stream.read_exact(&mut vec![0; length.try_into()?])?;
        if head[8] == 1 {
            return Ok(head[3]);
        }
    }
}

/// A connection that begins anew when it broke.
#[derive(Debug)]
pub struct Agent {
    runtime: tokio::runtime::Runtime,
    channel: Channel,
}

impl Agent {
    /// `socket`: `pod-resources/kubelet.sock` of a node's root directory.
    ///
    /// # Errors
    /// There is no runtime to be had.
    pub fn new(socket: &Path) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        let channel = bulkhead_ipc::client::channel(socket);
        drop(entered);
        Ok(Agent { runtime, channel })
    }

    /// All pods.
    ///
    /// # Errors
    /// As the node answers.
    pub fn list(&self) -> Result<Vec<v1::PodResources>, Status> {
        let answer = self.runtime.block_on(V1::new(self.channel.clone()).list(v1::ListPodResourcesRequest {}))?;
        Ok(answer.into_inner().pod_resources)
    }

    /// A pod of the namespace `default`.
    ///
    /// # Errors
    /// As the node answers.
    pub fn get(&self, name: &str) -> Result<v1::PodResources, Status> {
        let request = v1::GetPodResourcesRequest { pod_name: name.into(), pod_namespace: "default".into() };
        let answer = self.runtime.block_on(V1::new(self.channel.clone()).get(request))?.into_inner();
        answer.pod_resources.ok_or_else(|| Status::internal("no pod"))
    }

    /// What containers can have for themselves at all.
    ///
    /// # Errors
    /// As the node answers.
    pub fn allocatable(&self) -> Result<v1::AllocatableResourcesResponse, Status> {
        let request = v1::AllocatableResourcesRequest {};
        Ok(self.runtime.block_on(V1::new(self.channel.clone()).get_allocatable_resources(request))?.into_inner())
    }

    /// All pods, by the version before.
    ///
    /// # Errors
    /// As the node answers.
    pub fn list_v1alpha1(&self) -> Result<Vec<v1alpha1::PodResources>, Status> {
        let request = v1alpha1::ListPodResourcesRequest {};
        Ok(self.runtime.block_on(V1alpha1::new(self.channel.clone()).list(request))?.into_inner().pod_resources)
    }

    /// So many at once: how many were refused for being too many.
    ///
    /// # Errors
    /// One was refused for something else.
    pub fn at_once(&self, number: usize) -> Result<usize> {
        let one = || {
            let channel = self.channel.clone();
            async move { V1::new(channel).list(v1::ListPodResourcesRequest {}).await.err() }
        };
        let all = (0..number).map(|_| one());
        let refused = self.runtime.block_on(futures_util::future::join_all(all));
        let refused: Vec<Status> = refused.into_iter().flatten().collect();
        for status in &refused {
            ensure!(status.code() == Code::ResourceExhausted, "{status:?}");
            ensure!(status.message() == "rejected by rate limit", "{status:?}");
        }
        Ok(refused.len())
    }
}
