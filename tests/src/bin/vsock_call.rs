//! Calls a method over vsock with an empty message and prints the gRPC code of the answer: what kubelet-ctl never does.
//!
//! `vsock_call CID PORT METHOD`, as in `vsock_call 1 10240 /kubelet.volnetd.v1.Cgroups/SetQos`.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_ipc::client::vsock_channel;
use http::uri::PathAndQuery;
use tonic::{Code, Request, Status};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    ensure!(arguments.len() == 3, "CID PORT METHOD");
    let (cid, port) = (arguments[0].parse().context("CID")?, arguments[1].parse().context("PORT")?);
    let method: PathAndQuery = arguments[2].parse().context("METHOD")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answer = async { tokio::time::timeout(Duration::from_secs(60), call(cid, port, method)).await };
    let answer = runtime.block_on(answer).context("no answer within a minute")?;
    println!("{:?}", answer.map_or_else(|status| status.code(), |()| Code::Ok));
    Ok(())
}

async fn call(cid: u32, port: u32, method: PathAndQuery) -> Result<(), Status> {
    let mut client = tonic::client::Grpc::new(vsock_channel(cid, port));
    client.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    client.unary(Request::new(()), method, codec).await.map(tonic::Response::into_inner)
}
