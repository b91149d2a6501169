//! Disposable workers: processes that enter file systems which may never answer, on behalf of a daemon that may not hang.
//!
//! A call into a file system that is served by a program (FUSE) or over a network waits in the kernel until it is answered,
//! and no signal ends the thread that waits. In a daemon such a thread keeps what the process has: its flock, its sockets,
//! a place in the pool; and a successor waits for all of it in vain. So the call is made in a process that has nothing. It
//! was forked by a process with one thread (the fork server), holds one socket, and is left behind where it hangs.
//!
//! | module | for |
//! |---|---|
//! | [`wire`] | what goes over a worker's one socket |
//! | [`fork_server`] | the process that forks workers, and a worker's loop |
//! | [`hanging`] | what does not answer, in words |
//! | [`shares`] | who may have a worker now |
//! | [`pool`] | the daemon's side: which worker does what, and which does not answer |
//!
//! **Invariant:** knows no verb; what a request means is between a daemon and the function that its workers run.

pub mod fork_server;
pub mod hanging;
pub mod pool;
pub mod shares;
pub mod wire;

pub use fork_server::{Connections, serve};
pub use pool::{Limits, WorkerError, WorkerPool};
pub use shares::{Party, Share, Shares};
pub use wire::Message;
