//! Which records of the kernel's log are one process's end for want of memory. Since Linux 5.0 one line says all of it:
//!
//! `oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a/b,task=x,pid=1,uid=0`
//!
//! Where the machine itself ran out, `global_oom` stands in the place of `oom_memcg=…`. Before it comes `x invoked oom-killer: …`,
//! after it `Memory cgroup out of memory: Killed process 1 (x) …`. An older kernel says `Task in /a/b killed as a result of limit of
//! /a` in the middle of these. Pure.
//!
//! A pod chooses the names of its processes and, if it may make any, of its control groups: commas and whole fields in them
//! must not lead to another container. Names of groups have no slash, so the fields around a path are found by the slash that
//! it begins with; a victim's group lies in the group that ran out; the process's name has at most 15 bytes and comes last.

use super::record::Record;

/// Bytes of a process's name (the kernel's TASK_COMM_LEN without its end).
const NAME_MAX: usize = 15;

/// A process that the kernel has killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kill {
    /// Of the record that told it: names it in this boot.
    pub sequence: u64,
    /// As the log has it: printable ASCII.
    pub process: String,
    /// 0: not told.
    pub pid: u32,
    pub scope: Scope,
}

/// What had run out of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// The machine.
    System,
    /// A control group with a limit. The victim's group, if that was told; escaped no more.
    Group(Option<String>),
}

/// Puts the records of one kill together. They must come in their order, all of them.
#[derive(Debug, Default)]
pub struct Detector {
    begun: Option<Begun>,
}

/// An out-of-memory report that has begun, and has not named its victim.
#[derive(Debug, Default)]
struct Begun {
    /// Of an older kernel: the victim's group.
    group: Option<String>,
}

impl Detector {
    /// Takes the next record.
    pub fn feed(&mut self, record: Record<'_>) -> Option<Kill> {
        if !record.by_kernel {
            return None;
        }
        let text = record.text;
        if let Some(summary) = summary(text) {
            self.begun = None;
            let Summary { scope, process, pid } = summary;
            return Some(Kill { sequence: record.sequence, process: process.to_owned(), pid, scope });
        }
        if let (Some(begun), Some(group)) = (&mut self.begun, task_in(text)) {
            begun.group = Some(group);
            return None;
        }
        // After these two, in which a group's name may look like it.
        if is_beginning(text) {
            self.begun = Some(Begun::default());
            return None;
        }
        // With the summary in pieces, or of an older kernel. Those that follow a victim in its group's end count for nothing.
        let killed = killed(text)?;
        let begun = self.begun.take()?;
        let scope = if killed.in_group || begun.group.is_some() { Scope::Group(begun.group) } else { Scope::System };
        Some(Kill { sequence: record.sequence, process: killed.process.to_owned(), pid: killed.pid, scope })
    }
}

struct Summary<'a> {
    scope: Scope,
    process: &'a str,
    pid: u32,
}

/// The line that says all of it.
fn summary(text: &str) -> Option<Summary<'_>> {
    let text = text.strip_prefix("oom-kill:constraint=")?;
    let (before, pid, _uid) = numbers(text)?;
    let (limit, rest) = groups(before)?;
    let scope = |group: &str| match limit {
        Some(_) => Scope::Group(Some(unescape(group))),
        None => Scope::System,
    };
    // The group's name may look like the process's, which is short.
    let mut names = rest.match_indices(",task=").map(|(at, mark)| (&rest[..at], &rest[at + mark.len()..]));
    let (group, process) = names.find(|(_, name)| unescape_bytes(name).len() <= NAME_MAX)?;
    Some(Summary { scope: scope(group), process, pid })
}

/// Cuts `,pid=…,uid=…` off the end.
fn numbers(text: &str) -> Option<(&str, u32, u32)> {
    let (before, uid) = text.rsplit_once(",uid=")?;
    let (before, pid) = before.rsplit_once(",pid=")?;
    Some((before, digits(pid)?, digits(uid)?))
}

/// The group that ran out, if one did, and the text from the victim's group on.
fn groups(text: &str) -> Option<(Option<&str>, &str)> {
    const SYSTEM: &str = ",global_oom,task_memcg=/";
    const LIMIT: &str = ",oom_memcg=/";
    const VICTIM: &str = ",task_memcg=/";
    // What comes before is a cpuset's name, which has no slash, and so is neither of these.
    let (system, limit) = (text.find(SYSTEM), text.find(LIMIT));
    if let Some(at) = system
        && limit.is_none_or(|limit| at < limit)
    {
        return Some((None, &text[at + SYSTEM.len() - 1..]));
    }
    let paths = &text[limit? + LIMIT.len() - 1..];
    paths.match_indices(VICTIM).find_map(|(at, _)| {
        let (limit, victim) = (&paths[..at], &paths[at + VICTIM.len() - 1..]);
        let inside = victim.strip_prefix(limit.trim_end_matches('/'))?;
        let whole = inside.starts_with('/') || inside.starts_with(",task=");
        whole.then_some((Some(limit), victim))
    })
}

/// `x invoked oom-killer: …`.
fn is_beginning(text: &str) -> bool {
    let process = text.split_once(" invoked oom-killer: ").map(|(process, _)| process);
    process.is_some_and(|process| unescape_bytes(process).len() <= NAME_MAX)
}

/// `Task in /a/b killed as a result of limit of /a` (before Linux 5.0): the victim's group.
fn task_in(text: &str) -> Option<String> {
    let (group, limit) = text.strip_prefix("Task in /")?.split_once(" killed as a result of limit of /")?;
    // Whether one is in the other cannot be told from names with such words in them; then nobody's is counted.
    (!limit.contains(" killed as a result ")).then(|| unescape(&format!("/{group}")))
}

struct Killed<'a> {
    process: &'a str,
    pid: u32,
    in_group: bool,
}

/// `Out of memory: Killed process 1 (x) total-vm:…`, `Memory cgroup out of memory: Killed process 1 (x), UID 0, …`.
fn killed(text: &str) -> Option<Killed<'_>> {
    const IN_GROUP: &str = "Memory cgroup out of memory: ";
    const PLACES: [&str; 4] =
        [IN_GROUP, "Out of memory: ", "Out of memory (oom_kill_allocating_task): ", "No more memory: "];
    let place = PLACES.into_iter().find(|place| text.starts_with(place)).unwrap_or_default();
    let (pid, rest) = text[place.len()..].strip_prefix("Killed process ")?.split_once(" (")?;
    let end = rest.rfind(") total-vm:").or_else(|| rest.rfind("), UID ")).or_else(|| rest.rfind(')'))?;
    let process = &rest[..end];
    let short = unescape_bytes(process).len() <= NAME_MAX;
    short.then_some(Killed { process, pid: digits(pid)?, in_group: place == IN_GROUP })
}

fn digits(text: &str) -> Option<u32> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

/// The name as the file system has it. What is no UTF-8 then names no group that anybody asks for.
fn unescape(text: &str) -> String {
    String::from_utf8_lossy(&unescape_bytes(text)).into_owned()
}

/// `\xNN` as the byte that it stands for.
fn unescape_bytes(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        bytes.extend_from_slice(before.as_bytes());
        let code = after.strip_prefix('x').and_then(|code| code.get(..2));
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(b'\\');
                rest = after;
            }
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes
}

#[cfg(test)]
#[path = "kill_tests.rs"]
mod tests;
