//! The privileged helper. What it may do stands in `verbs.rs`; how it starts is the skeleton's story: undumpable,
//! arguments, configuration, logging, passed sockets, capabilities, filter, runtime, setup, ready, serve.

use std::ffi::{CStr, OsStr};
use std::path::Path;
use std::process::ExitCode;

use bulkhead_daemon::Spec;
use bulkhead_types::Process;

const SPEC: Spec = Spec {
    process: Process::Volnetd,
    about: "performs mounts, pod directories and cgroups for kubelet-syncd, and passes descriptors",
    fork_server: Some(kubelet_volnetd::worker::fork_server),
    before: |_config| {
        // What is created gets exactly the modes that the file table names, less what upstream's umask takes.
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    },
};

fn main() -> ExitCode {
    bulkhead_daemon::run(SPEC, |daemon| {
        // By now the fork server is another process, which is not to be found under this name.
        if let Some(name) = shown_as(std::env::args_os().next().as_deref())
            && let Err(error) = rustix::thread::set_name(name)
        {
            tracing::warn!(%error, "this process is not shown by the name that it was started under");
        }
        kubelet_volnetd::run(daemon)
    })
}

/// The name by which the kernel shows this process, where its unit starts it under another one: tools look for `kubelet` by it
/// (`ps -C kubelet`).
fn shown_as(first_argument: Option<&OsStr>) -> Option<&'static CStr> {
    let name = Path::new(first_argument?).file_name()?;
    (name == "kubelet").then_some(c"kubelet")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_may_have_it_shown_as_the_kubelet() {
        let shown = |first: &str| shown_as(Some(OsStr::new(first)));
        assert_eq!((shown("kubelet"), shown("/usr/bin/kubelet")), (Some(c"kubelet"), Some(c"kubelet")));
        assert_eq!((shown("/usr/libexec/bulkhead/kubelet-volnetd"), shown(""), shown_as(None)), (None, None, None));
    }
}
