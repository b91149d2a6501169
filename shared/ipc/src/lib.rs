//! How the processes talk: the generated API, a server that knows its peers, clients that know whether the other side
//! lives, and the side socket that passes descriptors.
//!
//! * [`server`]: gRPC on a Unix socket with a peer check per method, size caps, a deadline on every call, health and
//!   reflection.
//! * [`accept`]: who gets in at all, decided before a byte is parsed.
//! * [`limits`], [`refusals`]: how much one peer may use, and what is counted and told of those who want more.
//! * [`peers`]: which uid is which process, and which peer may call which method.
//! * [`client`]: a channel to another process with `Hello`, its epoch, and calls that carry a deadline and a request id.
//! * [`broker`]: the descriptor broker's side socket, both ends.
//! * [`helper`]: questions to a process that runs programs for a daemon, both ends.
//! * [`context`]: the request id and pod uid that travel with every call.
//!
//! Nothing here knows Kubernetes types or rules.

pub mod accept;
pub mod broker;
mod calls;
pub mod client;
pub mod context;
pub mod helper;
pub mod holding;
pub mod limits;
pub mod peers;
mod redact;
mod reflection;
pub mod refusals;
pub mod server;

/// Generated code, in the shape of the proto packages.
#[allow(missing_debug_implementations)]
#[allow(clippy::pedantic, clippy::all)]
mod proto {
    pub mod kubelet {
        pub mod common {
            pub mod v1 {
                tonic::include_proto!("kubelet.common.v1");
            }
        }
        pub mod volnetd {
            pub mod v1 {
                tonic::include_proto!("kubelet.volnetd.v1");
            }
        }
        pub mod syncd {
            pub mod v1 {
                tonic::include_proto!("kubelet.syncd.v1");
            }
        }
        pub mod evictiond {
            pub mod v1 {
                tonic::include_proto!("kubelet.evictiond.v1");
            }
        }
        pub mod statusd {
            pub mod v1 {
                tonic::include_proto!("kubelet.statusd.v1");
            }
        }
    }
}

pub use proto::kubelet::common::v1 as common;
pub use proto::kubelet::evictiond::v1 as evictiond;
pub use proto::kubelet::statusd::v1 as statusd;
pub use proto::kubelet::syncd::v1 as syncd;
pub use proto::kubelet::volnetd::v1 as volnetd;

/// All files of the internal API, encoded, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Largest message on any internal socket, bytes. Lists are streamed in pages, volume content travels as a memfd.
pub const MAX_MESSAGE_BYTES: usize = 256 * 1024;

/// Largest state of a pod that kubelet-syncd tells, bytes: a status, the API server's copy of it, and of a static pod what its
/// mirror is made of, each as large as an object can be there (etcd takes requests of 1.5 MiB). Most have some KiB.
pub const MAX_POD_BYTES: usize = 5 * 1024 * 1024;

/// Largest content of one volume, bytes of its encoded files. A source object has at most 1 MiB, a projected volume has several.
pub const MAX_CONTENT_BYTES: usize = 16 * 1024 * 1024;

/// Most files of one volume. Far above what volumes have.
pub const MAX_CONTENT_FILES: usize = 20_000;
