//! The drop-in command from its words to a running node, in the order in which things may go wrong.
//!
//! Everything that can be refused is refused first: command line, configuration, machine, names. Only then comes the
//! first act that leaves a trace (lock file, claims), and last the daemons.

use std::process::ExitCode;
use std::time::Duration;

use bulkhead_config::command_line::{self, CommandLineError, Effective, Request};
use bulkhead_config::credential_providers::{self, ProviderConfigError};
use bulkhead_config::internal::{self, Internal, NotInternal};
use bulkhead_config::{FieldError, Identity, NodeConfig, ResolveError, ServingError, Users, validate};
use bulkhead_daemon::logging::{self, LogFormat};
use bulkhead_types::chain;

use crate::hidden_processes::{self, HiddenProcesses};
use crate::kubeconfig::NoCredentials;
use crate::launch::{self, ClaimError, Instance, LaunchError};
use crate::lock_file::{self, LockError};
use crate::machine::{self, MachineError};
use crate::managers::{self, ManagersError};
use crate::units::{self, Supervisor, UnitsError};

/// Why the node does not run. All end with exit code 1, as upstream.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("argument {0} is not UTF-8")]
    NotText(usize),
    #[error(transparent)]
    CommandLine(#[from] CommandLineError),
    #[error("this machine cannot run the configuration:{}", list(.0))]
    Machine(Vec<FieldError>),
    #[error(transparent)]
    Facts(#[from] MachineError),
    #[error(
        "must be run as root: it starts kubelet-volnetd with root's capabilities and the others as users of their own"
    )]
    NotRoot,
    #[error("WATCHDOG_USEC={0}: must be more than 1 s, or the supervisor would end a healthy node")]
    Watchdog(String),
    #[error("failed to work out the node's configuration")]
    Resolve(#[from] ResolveError),
    #[error(transparent)]
    Serving(#[from] ServingError),
    #[error(transparent)]
    CredentialProviders(#[from] ProviderConfigError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("refusing to start")]
    Claim(#[from] ClaimError),
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error(transparent)]
    Units(#[from] UnitsError),
    #[error(transparent)]
    NoCredentials(#[from] NoCredentials),
    #[error(transparent)]
    Managers(#[from] ManagersError),
    #[error("this machine cannot run the node agent")]
    HiddenProcesses(#[from] HiddenProcesses),
    #[error(transparent)]
    Internal(#[from] NotInternal),
}

fn list(errors: &[FieldError]) -> String {
    errors.iter().map(|error| format!("\n  {error}")).collect()
}

/// The body of `main`.
pub fn main(words: impl Iterator<Item = std::ffi::OsString>) -> ExitCode {
    match run(words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn run(words: impl Iterator<Item = std::ffi::OsString>) -> Result<(), StartError> {
    let words = words
        .enumerate()
        .map(|(index, word)| word.into_string().map_err(|_| StartError::NotText(index + 1)))
        .collect::<Result<Vec<_>, _>>()?;
    let mut notes = Vec::new();
    let request = command_line::evaluate(&words, &mut notes);
    for note in notes {
        eprintln!("{note}");
    }
    match request? {
        Request::Print(text) => {
            use std::io::Write as _;
            // A reader that went away (`kubelet --help | head`) is no failure.
            let _ = std::io::stdout().write_all(text.as_bytes());
            Ok(())
        }
        Request::Run(effective) => run_node(*effective),
    }
}

fn run_node(effective: Effective) -> Result<(), StartError> {
    let Effective { flags, kubelet, version, origin, warnings } = effective;
    let facts = machine::facts(&kubelet, &flags.root_dir)?;
    // What eviction keeps free counts nowhere with this flag.
    let mut checked = kubelet.clone();
    if flags.experimental_allocatable_ignore_eviction {
        checked.eviction_hard.clear();
    }
    let errors = validate::validate_on(&checked, &facts);
    if !errors.is_empty() {
        // A misspelt field is often the reason for the refusal.
        warnings.iter().for_each(|warning| eprintln!("{warning}"));
        return Err(StartError::Machine(errors));
    }
    check_watchdog(std::env::var("WATCHDOG_USEC").ok())?;
    // The users are only known once they are claimed, and claiming leaves a trace: first everything else.
    let identity = Identity { hostname: machine::hostname()?, version, users: Users::block(0) };
    let providers =
        credential_providers::load(&flags.image_credential_provider_config, &flags.image_credential_provider_bin_dir)?;
    let (mut config, remarks) = NodeConfig::new(flags, kubelet, identity)?;
    config.check_serving()?;
    config.credential_providers = providers;
    config.boot_id = machine::boot_id();
    config.start_id = machine::start_id();
    let supervisor = units::supervisor()?;
    if supervisor == Supervisor::Units {
        units::prepare(&mut config)?;
    } else if let Some(text) = std::env::var_os(internal::VARIABLE) {
        config.internal = Internal::parse(&text.to_string_lossy())?;
    }
    if !rustix::process::geteuid().is_root() {
        return Err(StartError::NotRoot);
    }
    managers::check(&config, facts.memory_bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or_default())?;

    let log = &config.kubelet.logging;
    logging::start(if log.format == "json" { LogFormat::Json } else { LogFormat::Text }, log.verbosity, None);
    tracing::info!(
        version = config.version,
        node = config.node_name.as_str(),
        root_dir = %config.paths.root_dir.display(),
        configuration = origin,
        "starting"
    );
    for warning in warnings.iter().chain(&remarks) {
        tracing::warn!("{warning}");
    }
    if !config.internal.is_default() {
        tracing::warn!("{} is set: this node is a test's, and does not behave as a node", internal::VARIABLE);
    }
    if !config.not_yet.is_empty() {
        tracing::warn!(
            settings = config.not_yet.join(", "),
            "these settings are set, but what they govern is not in this version yet: they do nothing"
        );
    }

    if !config.is_standalone() {
        config.kubeconfig_runs_program = crate::kubeconfig::runs_program(config.flags.kubeconfig.as_ref());
    }
    if let Some(bootstrap) = config.bootstrap_kubeconfig() {
        crate::kubeconfig::check_bootstrap(config.flags.kubeconfig.as_ref(), bootstrap)?;
        config.bootstrap_runs_program = crate::kubeconfig::bootstrap_runs_program(bootstrap);
    }

    if supervisor == Supervisor::Units {
        return Ok(units::render(&mut config)?);
    }
    let _lock = match config.flags.lock_file.as_str() {
        "" => None,
        path => Some(lock_file::acquire(path.as_ref(), config.flags.exit_on_lock_contention)?),
    };
    let instance = Instance::claim(&config.paths.root_dir, &config.cgroup_root, config.node_name.as_str())?;
    config.users = instance.users();
    hidden_processes::check(config.users.gid)?;
    Ok(launch::run(&config, instance)?)
}

/// Upstream refuses an interval that it could not keep (`pkg/kubelet/watchdog`).
fn check_watchdog(interval_us: Option<String>) -> Result<(), StartError> {
    let Some(text) = interval_us.filter(|text| !text.is_empty()) else { return Ok(()) };
    match text.parse().map(Duration::from_micros) {
        Ok(interval) if interval > Duration::from_secs(1) => Ok(()),
        _ => Err(StartError::Watchdog(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchdog_intervals() {
        let check = |text: &str| check_watchdog(Some(text.to_owned()));
        assert!(check_watchdog(None).is_ok() && check("").is_ok() && check("1000001").is_ok());
        for bad in ["1000000", "0", "soon", "-5"] {
            assert!(check(bad).unwrap_err().to_string().contains(bad));
        }
    }
}
