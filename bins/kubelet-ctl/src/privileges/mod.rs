//! `privileges`: what each process may do, a line each, and with `--detail` the privilege map and what the kernel shows side by
//! side; every difference is marked.
//!
//! | module | decides |
//! |---|---|
//! | [`seen`] | which processes are this node's, and what can be seen of each |
//! | [`facts`] | what the map says and what is there, fact by fact |
//! | [`brief`] | the line of each process. Pure |
//! | [`twice`] | whether what is wrong was wrong a moment before too. Pure |
//! | [`compare`] | same, different, withheld by the machine, or unknown. Pure |

mod brief;
mod compare;
mod facts;
mod seen;
mod twice;

use std::fmt::Write as _;

use bulkhead_privileges::Program;
use serde::Serialize;

use crate::instance::Instance;
use crate::output::Printer;
use crate::table::{Table, printable};
use crate::{Exit, Failure};

use compare::{Comparison, Fact};

/// One process: map beside reality.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Shown {
    process: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    verdict: Comparison,
    facts: Vec<Fact>,
    /// Who may call it.
    serves: Vec<Service>,
    /// What the process itself has to say of its privileges.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
struct Service {
    socket: &'static str,
    peers: &'static [&'static str],
}

/// `privileges`. [`Exit::Differs`] if anything differs, else [`Exit::Unreachable`] if anything cannot be seen, in two looks one after
/// the other.
pub(crate) async fn show(instance: &Instance, in_detail: bool, printer: &mut Printer<'_>) -> Result<Exit, Failure> {
    let mut all = look(instance).await;
    let mut before = None;
    for _ in 1..twice::LOOKS {
        if twice::is_certain(before.as_deref(), &all) {
            break;
        }
        tokio::time::sleep(twice::BETWEEN).await;
        let again = look(instance).await;
        before = Some(std::mem::replace(&mut all, again));
    }
    printer.print(&all, || if in_detail { detail(&all) } else { brief::table(&all) })?;
    Ok(match Comparison::of_all(all.iter().map(|process| process.verdict)) {
        Comparison::Differs => Exit::Differs,
        Comparison::Unknown => Exit::Unreachable,
        Comparison::Same | Comparison::Withheld | Comparison::Shown => Exit::Success,
    })
}

async fn look(instance: &Instance) -> Vec<Shown> {
    let node = seen::look(instance).await;
    node.processes.iter().map(|process| shown(&node.context, process)).collect()
}

fn shown(context: &facts::Context, process: &seen::Process) -> Shown {
    let facts = facts::of(context, process);
    Shown {
        process: process.program.name(),
        pid: process.pid(),
        verdict: Comparison::of_all(facts.iter().map(|fact| fact.verdict)),
        facts,
        serves: services(process.program),
        warnings: process.says.as_ref().map(|says| says.warnings.clone()).unwrap_or_default(),
    }
}

fn services(program: Program) -> Vec<Service> {
    program.row().serves.iter().map(|one| Service { socket: one.socket, peers: one.peers }).collect()
}

/// How many facts of all processes are like this.
fn count(all: &[Shown], verdict: Comparison) -> usize {
    all.iter().flat_map(|process| &process.facts).filter(|fact| fact.verdict == verdict).count()
}

fn detail(all: &[Shown]) -> String {
    let mut out = String::new();
    for process in all {
        let pid = process.pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{}{pid}: {}", process.process, process.verdict.sentence());
        let mut table = Table::new(&["", "WHAT", "MAP", "REALITY"]);
        for fact in &process.facts {
            table.row([fact.verdict.mark(), fact.what.as_str(), fact.map.as_str(), fact.reality.as_str()]);
        }
        out.push_str(&table.render(2));
        for service in &process.serves {
            let _ = writeln!(out, "  serves {} to {}", service.socket, service.peers.join(", "));
        }
        for warning in &process.warnings {
            let _ = writeln!(out, "  warning: {}", printable(warning));
        }
        out.push('\n');
    }
    let _ = writeln!(
        out,
        "{} different from the map (marked !!), {} not to be seen (??), {} withheld by this machine (--)",
        count(all, Comparison::Differs),
        count(all, Comparison::Unknown),
        count(all, Comparison::Withheld)
    );
    out
}

#[cfg(test)]
mod tests;
