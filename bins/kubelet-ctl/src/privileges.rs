//! `privileges`: each process as the kernel shows it - by its own account, read from /proc when asked.

use std::fmt::Write as _;

use bulkhead_ipc::common::process_client::ProcessClient;
use bulkhead_ipc::common::{PrivilegesReply, PrivilegesRequest};
use bulkhead_types::Process;
use serde::Serialize;

use crate::connect::{connect, request, within};
use crate::instance::Instance;
use crate::output::Printer;
use crate::table::{Table, printable};
use crate::{Exit, Failure};

#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Privileges {
    process: &'static str,
    /// Why nothing is known; the rest is then empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    pid: u32,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    effective: Vec<String>,
    permitted: Vec<String>,
    bounding: Vec<String>,
    ambient: Vec<String>,
    no_new_privs: bool,
    dumpable: bool,
    seccomp: &'static str,
    landlock: Vec<String>,
    sockets: Vec<String>,
    warnings: Vec<String>,
}

/// `privileges`.
pub(crate) async fn show(instance: &Instance, printer: &mut Printer<'_>) -> Result<Exit, Failure> {
    let mut all = Vec::new();
    let mut exit = Exit::Success;
    for process in Process::ALL {
        let asked = async {
            let connected = connect(instance, process).await?;
            let mut client = ProcessClient::new(connected.channel);
            within(process, instance, client.privileges(request(PrivilegesRequest {}))).await
        };
        all.push(match asked.await {
            Ok(reply) => view(process, reply.into_inner()),
            Err(trouble) => {
                exit = if trouble.unreachable() { Exit::Unreachable } else { Exit::NotFound };
                Privileges { process: process.name(), error: Some(trouble.to_string()), ..Privileges::default() }
            }
        });
    }
    printer.print(&all, || text(&all))?;
    Ok(exit)
}

fn view(process: Process, reply: PrivilegesReply) -> Privileges {
    Privileges {
        process: process.name(),
        error: None,
        pid: reply.pid,
        uid: reply.uid,
        gid: reply.gid,
        groups: reply.groups,
        effective: reply.effective,
        permitted: reply.permitted,
        bounding: reply.bounding,
        ambient: reply.ambient,
        no_new_privs: reply.no_new_privs,
        dumpable: reply.dumpable,
        seccomp: match reply.seccomp_mode {
            0 => "off",
            1 => "strict",
            _ => "filter",
        },
        landlock: reply.landlock,
        sockets: reply.sockets,
        warnings: reply.warnings,
    }
}

fn text(all: &[Privileges]) -> String {
    let columns =
        ["PROCESS", "PID", "UID", "GID", "GROUPS", "CAPABILITIES", "NO NEW PRIVS", "DUMPABLE", "SECCOMP", "LANDLOCK"];
    let mut table = Table::new(&columns);
    let yes = |value: bool| if value { "yes" } else { "no" };
    for process in all {
        if process.error.is_some() {
            table.row([process.process, "", "", "", "", "", "", "", "", ""]);
            continue;
        }
        let numbers = |list: &[u32]| list.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        // Permitted is what the process could make effective at any time.
        let capabilities = if process.permitted.is_empty() { "none".into() } else { process.permitted.join(",") };
        let landlock = match process.landlock.len() {
            0 => "none".into(),
            1 => "1 rule".into(),
            rules => format!("{rules} rules"),
        };
        let cells: [&str; 10] = [
            process.process,
            &process.pid.to_string(),
            &process.uid.to_string(),
            &process.gid.to_string(),
            &numbers(&process.groups),
            &capabilities,
            yes(process.no_new_privs),
            yes(process.dumpable),
            process.seccomp,
            &landlock,
        ];
        table.row(cells);
    }
    let mut out = table.render(0);
    for process in all {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "\n{}:", process.process);
        if let Some(error) = &process.error {
            let _ = writeln!(out, "  {}", printable(error));
            continue;
        }
        for (name, list) in
            [("landlock", &process.landlock), ("socket", &process.sockets), ("warning", &process.warnings)]
        {
            for (count, entry) in counted(list) {
                let times = if count > 1 { format!(" (x{count})") } else { String::new() };
                let _ = writeln!(out, "  {name}: {}{times}", printable(entry));
            }
        }
    }
    out
}

/// Equal entries once, with their number.
fn counted(list: &[String]) -> Vec<(usize, &String)> {
    let mut counted: Vec<(usize, &String)> = Vec::new();
    for entry in list {
        match counted.iter_mut().find(|(_, known)| *known == entry) {
            Some((count, _)) => *count += 1,
            None => counted.push((1, entry)),
        }
    }
    counted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_the_kernel_shows_it() {
        let reply = PrivilegesReply {
            pid: 12,
            uid: 60708,
            gid: 60708,
            groups: vec![60706],
            effective: vec!["DAC_READ_SEARCH".into()],
            permitted: vec!["DAC_READ_SEARCH".into()],
            no_new_privs: true,
            seccomp_mode: 2,
            landlock: vec!["read-dir /var/lib/kubelet/pods".into()],
            sockets: vec![
                "unix:/run/kubelet/kubelet-evictiond.sock (listening)".into(),
                "unix:(unnamed)".into(),
                "unix:(unnamed)".into(),
            ],
            ..Default::default()
        };
        let away = Privileges {
            process: "kubelet-statusd",
            error: Some("kubelet-statusd does not answer".into()),
            ..Default::default()
        };
        assert_eq!(
            text(&[view(Process::Evictiond, reply), away]),
            "\
PROCESS             PID   UID     GID     GROUPS   CAPABILITIES      NO NEW PRIVS   DUMPABLE   SECCOMP   LANDLOCK
kubelet-evictiond   12    60708   60708   60706    DAC_READ_SEARCH   yes            no         filter    1 rule
kubelet-statusd     -     -       -       -        -                 -              -          -         -

kubelet-evictiond:
  landlock: read-dir /var/lib/kubelet/pods
  socket: unix:/run/kubelet/kubelet-evictiond.sock (listening)
  socket: unix:(unnamed) (x2)

kubelet-statusd:
  kubelet-statusd does not answer
"
        );
    }
}
