//! Fact by fact: what the map says of a process, and what is there. Pure, but for looking where `resolvConf` leads.

use bulkhead_config::NodeConfig;
use bulkhead_ipc::common::PrivilegesReply;
use bulkhead_privileges::row::CORE_LIMIT;
use bulkhead_privileges::{Bounding, Fencing, Program, Row, User};
use bulkhead_sys::Capability;
use bulkhead_sys::process::{self, PrivilegeReport};
use bulkhead_types::Process as Daemon;

use super::compare::{Comparison, Fact, UNSEEN, list};
use super::seen::Process;

/// What holds for the whole node.
#[derive(Debug)]
pub(super) struct Context {
    /// The rendered configuration; None where it cannot be read.
    pub(super) config: Option<NodeConfig>,
    /// Capabilities that the machine gives at all, as far as the launcher or systemd has them.
    pub(super) granted: Option<Vec<String>>,
    /// The launcher starts the processes; else units do.
    pub(super) by_launcher: bool,
}

/// `oomScoreAdj` unless configured otherwise, and what the units have.
const OOM_SCORE: i32 = -999;

/// All facts of one process.
pub(super) fn of(context: &Context, process: &Process) -> Vec<Fact> {
    let row = process.program.row();
    let mut facts = running(process);
    if process.pids.is_empty() {
        return facts;
    }
    let kernel = process.kernel.as_ref();
    facts.extend(user(context, row, kernel));
    facts.extend(capabilities(context, row, kernel));
    facts.push(Fact::equal("no new privileges", &yes(row.no_new_privs), kernel.map(|kernel| yes(kernel.no_new_privs))));
    facts.push(filter(process, kernel));
    if let Program::Daemon(daemon) = process.program {
        let says = process.says.as_ref();
        facts.extend(calls(context, row, says));
        facts.extend(fence(context, row, says));
        facts.push(securebits(context, row, says));
        facts.push(listeners(context, row, kernel, says, daemon));
    } else {
        facts.extend(unasked(context, row));
    }
    facts.push(dumpable(row, kernel, process.says.as_ref()));
    facts.push(Fact::equal("largest core file", &CORE_LIMIT, kernel.and_then(|kernel| kernel.core_limit)));
    facts.push(oom_score(context, process.program, kernel));
    let kept = kernel.and_then(|kernel| kernel.kept_over_exec.as_ref()).map(|kept| texts(kept));
    facts.push(Fact::same_list("descriptors kept over exec", &[], kept.as_deref()));
    facts
}

fn running(process: &Process) -> Vec<Fact> {
    let reality = match process.pids.as_slice() {
        [] => "does not run".to_owned(),
        [pid] => format!("pid {pid}"),
        pids => format!("{} of them: {}", pids.len(), list(&texts(pids))),
    };
    let verdict = if process.pids.len() == 1 { Comparison::Same } else { Comparison::Differs };
    let mut facts = vec![Fact::new("process", "one", reality, verdict)];
    if let Some(silence) = &process.silence {
        facts.push(Fact::new("its own word", "answers", silence, Comparison::Unknown));
    }
    if let Some(says) = process.says.as_ref().filter(|says| !process.pids.contains(&says.pid)) {
        let reality = format!("pid {} answers, which is not found as {}", says.pid, process.program.name());
        facts.push(Fact::new("its own word", "answers", reality, Comparison::Differs));
    }
    facts
}

fn user(context: &Context, row: &Row, kernel: Option<&PrivilegeReport>) -> Vec<Fact> {
    let uid = kernel.map(|kernel| kernel.uid);
    let Some(config) = &context.config else {
        let reality = uid.map_or(UNSEEN.to_owned(), |uid| uid.to_string());
        return vec![Fact::new(
            "user",
            "as configured (the configuration cannot be read)",
            reality,
            Comparison::Unknown,
        )];
    };
    let users = config.users;
    let group = |daemon| Fact::equal("group", &users.primary_gid(daemon), kernel.map(|kernel| kernel.gid));
    let mut facts = match row.user {
        User::Root => vec![Fact::equal("user", &0, uid)],
        User::Own(daemon) => vec![Fact::equal("user", &users.uid(daemon), uid), group(daemon)],
        User::Helper => {
            let others = [0, users.syncd, users.evictiond, users.statusd];
            let verdict = match uid {
                None => Comparison::Unknown,
                Some(uid) if others.contains(&uid) => Comparison::Differs,
                Some(_) => Comparison::Same,
            };
            let reality = uid.map_or(UNSEEN.to_owned(), |uid| uid.to_string());
            let gid = kernel.map(|kernel| kernel.gid);
            let in_their_group = match gid {
                None => Comparison::Unknown,
                Some(gid) if gid == 0 || gid == users.gid => Comparison::Differs,
                Some(_) => Comparison::Same,
            };
            let group = gid.map_or(UNSEEN.to_owned(), |gid| gid.to_string());
            vec![
                Fact::new("user", "neither root nor a daemon's", reality, verdict),
                Fact::new("group", "neither root's nor the daemons'", group, in_their_group),
            ]
        }
    };
    // The primary group is often named again among the others.
    let groups = kernel.map(|kernel| {
        let others = kernel.groups.iter().filter(|group| row.user == User::Root || **group != kernel.gid);
        others.copied().collect::<Vec<u32>>()
    });
    facts.push(match (row.program, groups) {
        (_, None) => Fact::new("groups", "", UNSEEN, Comparison::Unknown),
        (Program::Launcher, Some(groups)) => Fact::new("groups", "any", list(&texts(&groups)), Comparison::Shown),
        (Program::Daemon(Daemon::Volnetd), Some(groups)) => {
            // A unit's root has root's group besides.
            let own: Vec<u32> = groups.into_iter().filter(|group| *group != 0).collect();
            Fact::same_list("groups", &[users.gid.to_string()], Some(&texts(&own)))
        }
        (Program::Daemon(_), Some(groups)) => {
            Fact::same_list("groups", &[users.gid.to_string()], Some(&texts(&groups)))
        }
        (Program::Walker | Program::Iptables, Some(groups)) => Fact::same_list("groups", &[], Some(&texts(&groups))),
        (Program::Disks | Program::Flexvolume, Some(groups)) => {
            // A unit's root has root's group besides.
            let others: Vec<u32> = groups.into_iter().filter(|group| *group != 0).collect();
            Fact::same_list("groups", &[], Some(&texts(&others)))
        }
        (Program::Journal, Some(groups)) => {
            let verdict = if groups.contains(&users.gid) { Comparison::Differs } else { Comparison::Same };
            Fact::new("groups", "the journal's, not the daemons'", list(&texts(&groups)), verdict)
        }
    });
    facts
}

fn capabilities(context: &Context, row: &Row, kernel: Option<&PrivilegeReport>) -> Vec<Fact> {
    let granted = context.granted.as_deref();
    let (own, ambient) = (names(row.capabilities), names(row.ambient()));
    let mut facts = vec![
        Fact::capabilities("effective", &own, kernel.map(|kernel| kernel.effective.as_slice()), granted),
        Fact::capabilities(
            "permitted",
            &names(&row.permitted()),
            kernel.map(|kernel| kernel.permitted.as_slice()),
            granted,
        ),
        Fact::same_list("inheritable", &ambient, kernel.map(|kernel| kernel.inheritable.as_slice())),
        Fact::same_list("ambient", &ambient, kernel.map(|kernel| kernel.ambient.as_slice())),
    ];
    let bounding = kernel.map(|kernel| kernel.bounding.as_slice());
    facts.insert(
        2,
        match row.bounding {
            Bounding::Row => Fact::capabilities("bounding", &own, bounding, granted),
            Bounding::Untouched => {
                let reality = bounding.map_or(UNSEEN.to_owned(), |all| format!("{} capabilities", all.len()));
                Fact::new("bounding", "what the machine gives", reality, Comparison::Shown)
            }
        },
    );
    facts
}

/// At least one filter of its own, upon those that it was started under.
fn filter(process: &Process, kernel: Option<&PrivilegeReport>) -> Fact {
    let Some(kernel) = kernel else { return Fact::new("filter", "filter", UNSEEN, Comparison::Unknown) };
    let mode = ["off", "strict", "filter"].get(kernel.seccomp_mode as usize).copied().unwrap_or("unknown");
    let (map, enough) = match (kernel.seccomp_filters, process.filters_above) {
        (Some(count), Some(above)) => (format!("filter, more than {above}"), count > above),
        _ => ("filter".to_owned(), true),
    };
    let count = kernel.seccomp_filters.map(|count| format!(", {count}")).unwrap_or_default();
    let verdict = if mode == "filter" && enough { Comparison::Same } else { Comparison::Differs };
    Fact::new("filter", map, format!("{mode}{count}"), verdict)
}

/// What the kernel does not show, of a process that cannot be asked: what is declared.
fn unasked(context: &Context, row: &Row) -> Vec<Fact> {
    let declared = |what: &str, map: String| Fact::new(what, map, UNSEEN, Comparison::Shown);
    let config = context.config.as_ref();
    let mut facts = vec![
        declared("calls denied", list(&texts(&row.denied(config)))),
        declared("sockets of", list(&texts(&row.families(config)))),
    ];
    match row.fencing(config) {
        Fencing::None(why) => facts.push(declared("landlock", format!("none: {why}"))),
        Fencing::Fence { fence, .. } => facts.extend(fence.words().into_iter().map(|rule| declared("landlock", rule))),
    }
    facts
}

fn calls(context: &Context, row: &Row, says: Option<&PrivilegesReply>) -> Vec<Fact> {
    let config = context.config.as_ref();
    let denied: Vec<String> = row.denied(config).iter().map(ToString::to_string).collect();
    let families: Vec<String> = row.families(config).iter().map(ToString::to_string).collect();
    vec![
        Fact::same_list("calls denied", &denied, says.map(|says| says.denied.as_slice())),
        Fact::same_list("sockets of", &families, says.map(|says| says.families.as_slice())),
    ]
}

/// Landlock cannot be seen from outside: it is the process's own word.
fn fence(context: &Context, row: &Row, says: Option<&PrivilegesReply>) -> Vec<Fact> {
    let Some(config) = &context.config else {
        return vec![Fact::new(
            "landlock",
            "as configured (the configuration cannot be read)",
            UNSEEN,
            Comparison::Unknown,
        )];
    };
    let Some(says) = says else { return vec![Fact::new("landlock", "rules", UNSEEN, Comparison::Unknown)] };
    // "read-write /state (by /var/lib)": the rule is about a folder above, because that is what the process can reach.
    let plain = |rule: &str| rule.split(" (by ").next().unwrap_or_default().to_owned();
    let fence = match row.fencing(Some(config)) {
        Fencing::None(why) if says.landlock.is_empty() => {
            return vec![Fact::new("landlock", format!("none: {why}"), "none", Comparison::Same)];
        }
        Fencing::None(why) => {
            return vec![Fact::new("landlock", format!("none: {why}"), list(&says.landlock), Comparison::Differs)];
        }
        Fencing::Fence { fence, .. } => fence,
    };
    let wanted = fence.words();
    let mut facts = Vec::new();
    for rule in &wanted {
        facts.push(match says.landlock.iter().find(|said| plain(said) == *rule) {
            Some(said) => Fact::new("landlock", rule, said, Comparison::Same),
            None => {
                let path = rule.split_once(' ').map_or("", |(_, path)| path);
                let left_out = says.landlock_left_out.iter().find(|left| left.ends_with(&format!(": {path}")));
                match left_out {
                    // What does not exist needs no rule: nothing below it can be opened either.
                    Some(left_out) => Fact::new("landlock", rule, left_out, Comparison::Same),
                    None if says.landlock_left_out.iter().any(|left| left.contains("kernel")) => {
                        Fact::new("landlock", rule, list(&says.landlock_left_out), Comparison::Withheld)
                    }
                    None => Fact::new("landlock", rule, "not in force", Comparison::Differs),
                }
            }
        });
    }
    for said in says.landlock.iter().filter(|said| !wanted.contains(&plain(said))) {
        facts.push(Fact::new("landlock", "none", said, Comparison::Differs));
    }
    facts
}

/// Locked by the launcher, which has what that takes; a unit's are what systemd set.
fn securebits(context: &Context, row: &Row, says: Option<&PrivilegesReply>) -> Fact {
    let bits = says.and_then(|says| says.securebits);
    let shown = |bits: u32| format!("{bits:#04x}");
    if !context.by_launcher {
        return Fact::new("securebits", "the unit's", bits.map_or(UNSEEN.to_owned(), shown), Comparison::Shown);
    }
    let locked =
        if row.user == User::Root { process::locked_securebits_of_root() } else { process::locked_securebits() };
    Fact::equal("securebits", &shown(locked.bits()), bits.map(shown))
}

/// The kernel's view where it can be had, else the process's own.
fn listeners(
    context: &Context,
    row: &Row,
    kernel: Option<&PrivilegeReport>,
    says: Option<&PrivilegesReply>,
    daemon: Daemon,
) -> Fact {
    let Some(config) = &context.config else {
        return Fact::new(
            "listens on",
            "as configured (the configuration cannot be read)",
            UNSEEN,
            Comparison::Unknown,
        );
    };
    let sockets = kernel.and_then(|kernel| kernel.sockets.as_ref()).or(says.map(|says| &says.sockets));
    let listening = sockets.map(|sockets| {
        let mut all: Vec<String> = sockets.iter().filter_map(|socket| listener(socket)).collect();
        all.sort();
        all.dedup();
        all
    });
    let map = row.listeners(config);
    let fact = Fact::same_list("listens on", &map, listening.as_deref());
    let all = listening.unwrap_or_default();
    let less = fact.verdict == Comparison::Differs && all.iter().all(|one| map.contains(one));
    let passed = row.passed_listeners(config);
    let only_passed = map.iter().all(|one| all.contains(one) || passed.contains(one));
    if less && (daemon == Daemon::Statusd || only_passed) {
        // A port that somebody else holds, or a socket that is bound when it is asked for, is no privilege too many.
        return Fact { verdict: Comparison::Shown, ..fact };
    }
    fact
}

/// "unix:/path" or "tcp:port" of a socket that accepts; None for others.
fn listener(socket: &str) -> Option<String> {
    let name = socket.strip_suffix(" (listening)")?;
    if name.starts_with("tcp") {
        return Some(format!("tcp:{}", name.rsplit(':').next()?));
    }
    Some(name.to_owned())
}

/// The kernel shows it of processes that are not root's; root's are asked.
fn dumpable(row: &Row, kernel: Option<&PrivilegeReport>, says: Option<&PrivilegesReply>) -> Fact {
    let seen = kernel.and_then(|kernel| kernel.dumpable).or(says.map(|says| says.dumpable));
    if seen.is_none() && row.program == Program::Launcher {
        return Fact::new("dumpable", "no", "the kernel does not show it of root's processes", Comparison::Shown);
    }
    Fact::equal("dumpable", &yes(false), seen.map(yes))
}

fn oom_score(context: &Context, program: Program, kernel: Option<&PrivilegeReport>) -> Fact {
    let configured = context.config.as_ref().and_then(|config| config.kubelet.oom_score_adj);
    let map = if context.by_launcher { configured.unwrap_or(OOM_SCORE) } else { OOM_SCORE };
    // Its own, where the configuration would protect it better.
    let map = program.row().oom_score_adj.map_or(map, |own| map.max(own));
    let seen = kernel.and_then(|kernel| kernel.oom_score_adj);
    if program == Program::Journal {
        // It may go first: only a query waits for it.
        return Fact::new(
            "oom score",
            "any",
            seen.map_or(UNSEEN.to_owned(), |score| score.to_string()),
            Comparison::Shown,
        );
    }
    let fact = Fact::equal("oom score", &map, seen);
    let withheld = context.granted.as_ref().is_some_and(|granted| !granted.iter().any(|cap| cap == "SYS_RESOURCE"));
    if fact.verdict == Comparison::Differs && withheld {
        let reality = format!("{}; lowering it takes SYS_RESOURCE, which the machine withholds", fact.reality);
        return Fact { reality, verdict: Comparison::Withheld, ..fact };
    }
    fact
}

fn yes(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

fn names(capabilities: &[Capability]) -> Vec<String> {
    capabilities.iter().map(|one| process::short_name(*one)).collect()
}

fn texts<T: ToString>(all: &[T]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}
