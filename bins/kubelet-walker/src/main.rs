//! kubelet-walker: arguments, configuration, fence, then workers until kubelet-evictiond is gone.

use std::process::ExitCode;

fn main() -> ExitCode {
    match kubelet_walker::run::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kubelet-walker: {}", bulkhead_types::chain(&*error));
            ExitCode::FAILURE
        }
    }
}
