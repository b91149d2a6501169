//! The other daemons: every method of every service and every kind of the broker, asked with an empty message; and the
//! journal's reader, asked in earnest.
//!
//! What counts is who is let in: PERMISSION_DENIED and UNIMPLEMENTED come before a message is read, anything else after.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bulkhead_daemon::privileges::Program;
use bulkhead_ipc::broker::{BrokerClient, BrokerError};
use bulkhead_ipc::common::JournalQuery;
use bulkhead_ipc::helper::Asker;
use bulkhead_ipc::volnetd::credential::Kind as CredentialKind;
use bulkhead_ipc::volnetd::{self as wire, StateKind, open_request::Kind};
use bulkhead_types::Process;
use prost_reflect::DescriptorPool;
use tokio::io::AsyncReadExt as _;
use tokio::runtime::Runtime;
use tonic::Code;
use tonic::transport::Channel;

use crate::plan::Plan;
use crate::report::Report;

/// A stream that says nothing at first has let its caller in.
const PATIENCE: Duration = Duration::from_secs(2);

/// Asks everything; the state folder that the broker gave, if it did.
pub fn all(report: &mut Report, program: Program, plan: &Plan, runtime: Runtime) -> Result<Option<OwnedFd>> {
    let pool = DescriptorPool::decode(bulkhead_ipc::DESCRIPTORS).context("the contract")?;
    let given = runtime.block_on(async {
        for other in Process::ALL.into_iter().filter(|other| Program::Daemon(*other) != program) {
            for (method, outcome) in ask_all(&pool, other, &plan.run_dir.join(format!("{}.sock", other.name()))).await {
                report.tell(&format!("call-{}{method}", other.short()), &outcome);
            }
        }
        if program != Program::Journal {
            report.tell("ask-the-journal", &ask_journal(&plan.run_dir.join("kubelet-journal.sock")).await);
        }
        // volnetd is the broker: in its place nobody answers.
        if program == Program::Daemon(Process::Volnetd) {
            return Ok(None);
        }
        Ok(ask_broker(report, &plan.run_dir.join("kubelet-volnetd.fd.sock")).await)
    });
    drop(runtime);
    given
}

/// Methods of the packages that this daemon serves, and of one that it does not.
async fn ask_all(pool: &DescriptorPool, other: Process, socket: &Path) -> Vec<(String, String)> {
    let own = format!("kubelet.{}.v1", other.short());
    let channel = bulkhead_ipc::client::channel(socket);
    let methods = pool
        .services()
        .filter(|service| [own.as_str(), "kubelet.common.v1"].contains(&service.parent_file().package_name()))
        .flat_map(|service| {
            service.methods().map(|m| format!("/{}/{}", service.full_name(), m.name())).collect::<Vec<_>>()
        });
    let out_of_reach = out_of_reach(socket);
    let asked = methods.map(|method| {
        let (channel, out_of_reach) = (channel.clone(), out_of_reach.clone());
        async move {
            let outcome = match out_of_reach {
                Some(why) => why,
                None => format!("{:?}", ask(channel, &method).await),
            };
            (method, outcome)
        }
    });
    futures_util::future::join_all(asked).await
}

/// The kernel's word where nobody can even be connected to.
fn out_of_reach(socket: &Path) -> Option<String> {
    let refused = UnixStream::connect(socket).err()?.raw_os_error()?;
    let name = nix::errno::Errno::from_raw(refused);
    // Another kind of socket: it is there, and reached.
    (name != nix::errno::Errno::EPROTOTYPE).then(|| format!("{name:?}"))
}

/// A question that has an answer: what counts is whether one comes.
async fn ask_journal(socket: &Path) -> String {
    if let Some(why) = out_of_reach(socket) {
        return why;
    }
    let query = JournalQuery { units: vec!["containerd".to_owned()], lines: Some(1), ..JournalQuery::default() };
    let mut answer = Vec::new();
    let asked = async {
        let Ok(mut pipe) = Asker::at(socket).ask(&query).await else { return };
        // An end without a word is a refusal as well.
        let _ = pipe.read_to_end(&mut answer).await;
    };
    let _ = tokio::time::timeout(PATIENCE * 5, asked).await;
    if answer.is_empty() { "PermissionDenied".to_owned() } else { "allowed".to_owned() }
}

async fn ask(channel: Channel, method: &str) -> Code {
    let mut client = tonic::client::Grpc::new(channel);
    let Ok(path) = method.parse() else { return Code::Internal };
    let call = async {
        client.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
        let codec = tonic_prost::ProstCodec::<(), ()>::default();
        client.server_streaming(tonic::Request::new(()), path, codec).await?.into_inner().message().await
    };
    match tokio::time::timeout(PATIENCE, call).await {
        Ok(Ok(_)) => Code::Ok,
        Ok(Err(status)) => status.code(),
        Err(_) => Code::DeadlineExceeded,
    }
}

fn kinds() -> Vec<(&'static str, Kind)> {
    let credential = |kind: CredentialKind| Kind::Credential(wire::Credential { kind: kind.into() });
    let state = StateKind::CpuManager.into();
    vec![
        ("runtime-socket", Kind::RuntimeSocket(wire::RuntimeSocket::default())),
        ("manifest", Kind::Manifest(wire::Manifest::default())),
        ("container-log", Kind::ContainerLog(wire::ContainerLog::default())),
        ("termination-message", Kind::TerminationMessage(wire::TerminationMessage::default())),
        ("state", Kind::State(wire::State { kind: state })),
        ("kmsg", Kind::Kmsg(wire::Kmsg::default())),
        ("psi", Kind::Psi(wire::Psi { resource: wire::psi::Resource::Memory.into(), pods: false })),
        ("memcg-event", Kind::MemcgEvent(wire::MemcgEvent::default())),
        ("product-uuid", Kind::ProductUuid(wire::ProductUuid::default())),
        ("node-log", Kind::NodeLog(wire::NodeLog::default())),
        ("kubeconfig", credential(CredentialKind::Kubeconfig)),
        ("client-key", credential(CredentialKind::ClientKey)),
        ("serving-key", credential(CredentialKind::ServingKey)),
        ("client-ca", credential(CredentialKind::ClientCa)),
        ("registry-config", Kind::RegistryConfig(wire::RegistryConfig::default())),
        ("listener", Kind::Listener(wire::Listener { kind: wire::listener::Kind::PodResources.into() })),
        ("plugin-socket", Kind::PluginSocket(wire::PluginSocket::default())),
        ("env-file", Kind::EnvFile(wire::EnvFile::default())),
        ("rotated-log", Kind::RotatedLog(wire::RotatedLog::default())),
        ("compressed-log", Kind::CompressedLog(wire::CompressedLog::default())),
        ("shutdown-inhibitor", Kind::ShutdownInhibitor(wire::ShutdownInhibitor::default())),
    ]
}

async fn ask_broker(report: &mut Report, socket: &Path) -> Option<OwnedFd> {
    let client = BrokerClient::new(socket);
    let out_of_reach = out_of_reach(socket);
    let word = |result: Result<(), BrokerError>| match (&out_of_reach, result) {
        (Some(why), Err(_)) => why.clone(),
        (_, Ok(())) => "Ok".to_owned(),
        (None, Err(error)) => format!("{:?}", error.code()),
    };
    for (name, kind) in kinds() {
        report.tell(&format!("broker-{name}"), &word(client.open(kind).await.map(|_| ())));
    }
    // A memfd that is not sealed: whoever may put something is told so.
    let content = || std::fs::File::open("/dev/null").map(OwnedFd::from).or_else(|_| pipe());
    if let Ok(fd) = content() {
        report.tell("broker-put-state", &word(client.put_state(StateKind::CpuManager, fd).await));
    }
    if let Ok(fd) = content() {
        report.tell("broker-put-content", &word(client.put_content(wire::PutContent::default(), fd).await));
    }
    if let Ok(fd) = content() {
        let put = client.put_credential(CredentialKind::ServingKey, fd).await;
        report.tell("broker-put-credential", &word(put));
    }
    if let Ok(fd) = content() {
        let link = client.link_compressed_log(wire::CompressedLog::default(), fd).await;
        report.tell("broker-link-compressed-log", &word(link));
    }
    let own = client.open(Kind::PrivateState(wire::PrivateState {})).await;
    report.tell(
        "broker-private-state",
        &word(own.as_ref().map(|_| ()).map_err(|error| BrokerError::Refused {
            what: "PrivateState",
            code: error.code(),
            message: String::new(),
        })),
    );
    own.ok()
}

/// Where the fence leaves no file at all.
fn pipe() -> std::io::Result<OwnedFd> {
    Ok(std::io::pipe()?.0.into())
}
