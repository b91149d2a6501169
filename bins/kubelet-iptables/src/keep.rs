//! Makes sure of the chains of one family with the machine's iptables, whichever variant that is.

use std::io;
use std::time::Duration;

use bulkhead_helper::{Ended, Program};
use bulkhead_ipc::common::FamilyChains;
use bulkhead_ipc::common::family_chains::{Family, Outcome};

use crate::chains::{CANARY, CANARY_TABLES, Table, Wanted, canaries, list, wanted};

/// The folders of an ordinary PATH, in its order: upstream finds the program by it.
const FOLDERS: &[&str] =
    &["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/run/current-system/sw/bin"];

/// For one run; it waits for the lock for 5 s itself.
const DEADLINE: Duration = Duration::from_secs(30);
/// A flush goes through the tables one after the other: it is waited for so that nothing is made in the middle of it.
const FLUSH_PATIENCE: Duration = Duration::from_secs(5);
const FLUSH_CHECK: Duration = Duration::from_millis(100);

/// Exit codes of iptables (iptables(8)): "no such thing" or "exists already", and "somebody else holds the lock".
const NO: i32 = 1;
const RESOURCE_PROBLEM: i32 = 4;

/// Why the chains of a family are not there.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    #[error("failed to start {program}")]
    Start { program: &'static str, source: io::Error },
    #[error("failed to ensure {wanted}: {program} ended with {}: {}", code(.ended), .ended.output)]
    Refused { program: &'static str, wanted: Wanted, ended: Ended },
}

fn code(ended: &Ended) -> String {
    ended.code.map_or("a signal".to_owned(), |code| format!("code {code}"))
}

/// The program of a family.
pub fn program(family: Family) -> Program {
    let name = if family == Family::Ipv6 { "ip6tables" } else { "iptables" };
    Program { name, folders: FOLDERS }
}

/// `anew`: whatever the canary says.
pub async fn keep(family: Family, program: Program, anew: bool) -> FamilyChains {
    let (outcome, message) = match kept(family, program, anew).await {
        Ok((outcome, message)) => (outcome, message),
        Err(KeepError::Start { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            (Outcome::NoProgram, String::new())
        }
        Err(error) => (Outcome::Failed, bulkhead_types::chain(&error)),
    };
    FamilyChains { family: family.into(), outcome: outcome.into(), message }
}

async fn kept(family: Family, program: Program, anew: bool) -> Result<(Outcome, String), KeepError> {
    let is_there = async |table: Table| -> Result<bool, KeepError> {
        let ended = run(program, &list(table, CANARY)).await?;
        Ok(ended.code == Some(0) || ended.code == Some(RESOURCE_PROBLEM))
    };
    let mut outcome = Outcome::Initialized;
    if !anew {
        if is_there(CANARY_TABLES[0]).await? {
            return Ok((Outcome::Kept, String::new()));
        }
        outcome = Outcome::Reloaded;
        let flushed = async {
            for table in &CANARY_TABLES[1..] {
                while is_there(*table).await? {
                    tokio::time::sleep(FLUSH_CHECK).await;
                }
            }
            Ok(())
        };
        match tokio::time::timeout(FLUSH_PATIENCE, flushed).await {
            Ok(done) => done?,
            Err(_) => tracing::info!(program = program.name, "Inconsistent iptables state detected"),
        }
    }
    let present = run(program, &list(Table::Nat, "POSTROUTING")).await?;
    if present.code != Some(0) {
        return Ok((Outcome::NotSupported, present.output));
    }
    for wanted in wanted(family).into_iter().chain(canaries()) {
        ensure(program, wanted).await?;
    }
    Ok((outcome, String::new()))
}

async fn ensure(program: Program, wanted: Wanted) -> Result<(), KeepError> {
    let refused = |ended| KeepError::Refused { program: program.name, wanted, ended };
    if let Some(check) = wanted.check() {
        let ended = run(program, &check).await?;
        match ended.code {
            Some(0) => return Ok(()),
            Some(NO) => {}
            _ => return Err(refused(ended)),
        }
    }
    let ended = run(program, &wanted.make()).await?;
    match (ended.code, wanted) {
        (Some(0), _) => {
            tracing::debug!(program = program.name, %wanted, "made");
            Ok(())
        }
        // It exists.
        (Some(NO), Wanted::Chain(..)) => Ok(()),
        _ => Err(refused(ended)),
    }
}

async fn run(program: Program, arguments: &[&str]) -> Result<Ended, KeepError> {
    program.run(arguments, DEADLINE).await.map_err(|source| KeepError::Start { program: program.name, source })
}
