//! kubelet-ctl: look into a node. Parses, asks, prints, and says by its exit code how that went.

use std::process::ExitCode;

fn main() -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("kubelet-ctl: could not start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let stdout = &mut std::io::stdout();
    let stderr = &mut std::io::stderr();
    runtime.block_on(kubelet_ctl::run(std::env::args_os(), stdout, stderr)).into()
}
