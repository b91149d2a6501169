//! `kubelet`: the drop-in command. Takes upstream's command line and configuration file, checks all of it, renders the
//! effective configuration and hands over to the launcher, which starts and supervises the four daemons, or to systemd
//! where its units are in use.

mod hidden_processes;
mod kubeconfig;
mod launch;
mod lock_file;
mod machine;
mod managers;
mod start;
mod units;
mod xtables_lock;

fn main() -> std::process::ExitCode {
    start::main(std::env::args_os().skip(1))
}
