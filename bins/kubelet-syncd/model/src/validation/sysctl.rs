//! How kernel parameters are named, and which namespace isolates them (upstream `pkg/kubelet/sysctl/namespace.go`).

use std::borrow::Cow;

/// A namespace that isolates parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Namespace {
    Ipc,
    Net,
}

impl Namespace {
    /// As messages name it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Namespace::Ipc => "IPC",
            Namespace::Net => "Net",
        }
    }

    /// The one of a parameter with dots between its parts, or of all that begin like this. None: nothing isolates it.
    pub fn of(name: &str) -> Option<Self> {
        const IPC: [&str; 10] = [
            "kernel.sem",
            "kernel.shmall",
            "kernel.shmmax",
            "kernel.shmmni",
            "kernel.shm_rmid_forced",
            "kernel.shm",
            "kernel.msgmax",
            "kernel.msgmnb",
            "kernel.msgmni",
            "kernel.msg",
        ];
        if IPC.contains(&name) || name.starts_with("fs.mqueue.") {
            Some(Namespace::Ipc)
        } else if name.starts_with("net.") {
            Some(Namespace::Net)
        } else {
            None
        }
    }
}

/// `net/ipv4/conf/eth0.1/x` and `net.ipv4.conf.eth0/1.x` are the same, and become the second: whichever separator comes
/// first decides.
pub fn normalize(name: &str) -> Cow<'_, str> {
    if name.chars().find(|c| matches!(c, '.' | '/')) != Some('/') {
        return Cow::Borrowed(name);
    }
    let swap = |c| match c {
        '.' => '/',
        '/' => '.',
        other => other,
    };
    Cow::Owned(name.chars().map(swap).collect())
}
