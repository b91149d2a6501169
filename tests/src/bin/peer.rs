//! A caller for the tests to dress up: connects to a socket as whatever user, group, namespace and cgroup it was started
//! in, makes one call, and prints the gRPC code of the answer.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bulkhead_ipc::common::HelloRequest;
use bulkhead_ipc::common::process_client::ProcessClient;
use bulkhead_ipc::volnetd::PreparePodRequest;
use bulkhead_ipc::volnetd::volumes_client::VolumesClient;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(socket), Some(call), Some(pod)) =
        (arguments.next().map(PathBuf::from), arguments.next(), arguments.next())
    else {
        bail!("usage: peer SOCKET hello|prepare-pod POD-UID");
    };
    if let Err(error) = std::os::unix::net::UnixStream::connect(&socket) {
        println!("no connection: {:?}", error.kind());
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting tokio")?;
    let code = runtime.block_on(async {
        let channel = bulkhead_ipc::client::channel(&socket);
        match call.as_str() {
            "hello" => {
                let message = HelloRequest { process: "peer".to_owned(), version: String::new() };
                ProcessClient::new(channel).hello(soon(message)).await.map(|_| ())
            }
            _ => {
                let message = PreparePodRequest { pod_uid: pod };
                VolumesClient::new(channel).prepare_pod(soon(message)).await.map(|_| ())
            }
        }
    });
    match code {
        Ok(()) => println!("Ok"),
        Err(status) => println!("{:?}: {}", status.code(), status.message()),
    }
    Ok(())
}

fn soon<T>(message: T) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.set_timeout(Duration::from_secs(5));
    request
}
