//! The models of the simulation held against what they stand for: each scenario is written once, and asked of the model and of the
//! real thing. The models run on real time here, as no thread is simulated before `bulkhead_simulation_kernel::begin`.
//!
//! | module | model | the real thing |
//! |---|---|---|
//! | [`runtime`] | `runtime.rs` | containerd of the test kit's lab: the one that `BULKHEAD_RUNTIME` names, and 2.1, which has the events of the CRI |
//! | [`controllers`] | `attacher.rs`, `allocator.rs` | kube-controller-manager and kube-scheduler on a real control plane, where `KUBEBUILDER_ASSETS` has them |
//! | [`csi_driver`] | `csi_driver.rs` | the hostpath driver of kubernetes-csi, where `KUBEBUILDER_ASSETS` has it |
//! | [`dra_driver`] | `dra_driver.rs` | the driver of upstream's end-to-end specs, where `KUBEBUILDER_ASSETS` has them |
//! | [`volnetd`] | `volnetd.rs`, `volnetd_csi.rs` | kubelet-volnetd, in this process, on folders, mounts and cgroups of its own |

mod controllers;
mod csi_driver;
mod dra_driver;
mod runtime;
mod volnetd;

use std::future::Future;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

/// For what is answered soon: a call that takes this long has not been answered.
const DEADLINE: Duration = Duration::from_secs(60);

/// Far above what a machine with others on it needs to come to what is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// The code of an answer, whatever it says.
fn code<T>(answer: &Result<T, tonic::Status>) -> tonic::Code {
    answer.as_ref().err().map_or(tonic::Code::Ok, tonic::Status::code)
}

/// Looks until `look` finds what it wants.
async fn eventually<T>(what: &str, look: impl AsyncFn() -> Result<T>) -> Result<T> {
    let begin = tokio::time::Instant::now();
    loop {
        match look().await {
            Ok(found) => return Ok(found),
            Err(seen) if begin.elapsed() > PATIENCE => bail!("{what}: last seen: {seen:#}"),
            Err(_) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

/// Runs the scenarios one after the other, and says of all that fail which they are.
macro_rules! scenarios {
    ($subject:expr; $($scenario:path),+ $(,)?) => {{
        let mut failed = Vec::new();
        $(
            let outcome = tokio::time::timeout(crate::SCENARIO_MAX, $scenario($subject)).await;
            let outcome = outcome.unwrap_or_else(|_| Err(anyhow::anyhow!("it never ends")));
            eprintln!("{}: {}", stringify!($scenario), if outcome.is_ok() { "holds" } else { "does not hold" });
            if let Err(error) = outcome {
                failed.push(format!("{}: {error:#}", stringify!($scenario)));
            }
        )+
        crate::verdict(failed)
    }};
}
pub(crate) use scenarios;

/// A scenario that takes longer hangs.
const SCENARIO_MAX: Duration = Duration::from_secs(120);

fn verdict(failed: Vec<String>) -> Result<()> {
    if failed.is_empty() {
        return Ok(());
    }
    bail!("{} scenarios do not hold:\n{}", failed.len(), failed.join("\n"))
}

/// A runtime for whoever asks.
fn in_tokio<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("making a runtime")?;
    runtime.block_on(work)
}
