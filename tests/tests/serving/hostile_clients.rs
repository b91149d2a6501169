//! From outside: clients that mean harm on every socket of a node that works. The daemons live, hold little, give back
//! what they were given, and their own peers go on: pods that come meanwhile become ready, and a normal request on every
//! socket is answered while the hostile connections are held.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_ipc::common::logging_client::LoggingClient;
use bulkhead_ipc::common::{DestructiveGuard, SetVerbosityRequest};
use bulkhead_ipc::volnetd::volumes_client::VolumesClient;
use bulkhead_ipc::volnetd::{PruneRequest, TearDownPodRequest};
use bulkhead_testkit::apiserver::authority::Authority;
use bulkhead_testkit::cluster::client::Credential;
use bulkhead_testkit::https::{Connection, Https};
use bulkhead_testkit::node::DAEMONS;
use bulkhead_testkit::processes::status_line;
use bulkhead_testkit::{LONG, Lab, Node, cgroups, eventually, mounts, netns};
use bulkhead_tests::hostile::{self, broker, dressed, floods, frames, messages};
use bulkhead_tests::joined::Member;
use bulkhead_tests::{Dice, lab};
use prost_reflect::DescriptorPool;
use serde_json::json;
use tonic::Code;

/// What a daemon may hold more after an attack than before it, bytes: all shares of one role at their limits, and what
/// the allocator keeps of a burst.
const GROWTH_MAX: u64 = 64 * 1024 * 1024;
/// Descriptors that may be open more than before: peers that are connected again, a pod that came.
const DESCRIPTORS_MAX: usize = 24;
const NOBODY: u32 = 65_534;
const HOUR: Duration = Duration::from_secs(3600);
const HEALTHZ: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10248);
/// Methods whose numbers are for the peer to choose, for the whole node or a pod of its own.
const NODE_WIDE: [&str; 4] = ["/EnsureNode", "/SetQos", "/EnsurePod", "/SetVerbosity"];

/// Who attacks whom: the daemon whose user the attackers have, and the socket. Each socket's own peer, taken over.
const ATTACKS: [(&str, &str); 4] = [
    ("kubelet-statusd", "kubelet-volnetd"),
    ("kubelet-statusd", "kubelet-syncd"),
    ("kubelet-statusd", "kubelet-evictiond"),
    ("kubelet-syncd", "kubelet-statusd"),
];

fn seconds(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn user(node: &Node, daemon: &str) -> Result<u32> {
    let pid = *node.pids().get(daemon).with_context(|| format!("{daemon} does not run"))?;
    Ok(status_line(pid, "Uid")?.split_ascii_whitespace().next().context("no uid")?.parse()?)
}

/// What a daemon holds: pid, resident bytes, descriptors.
#[derive(Debug, Clone, Copy)]
struct Holds {
    pid: i32,
    bytes: u64,
    descriptors: usize,
}

fn holds(node: &Node) -> Result<BTreeMap<String, Holds>> {
    let mut all = BTreeMap::new();
    for (name, pid) in node.pids() {
        let kib: u64 = status_line(pid, "VmRSS")?.split_ascii_whitespace().next().context("no VmRSS")?.parse()?;
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd"))?.count();
        all.insert(name, Holds { pid, bytes: kib * 1024, descriptors });
    }
    Ok(all)
}

/// Nobody died, nobody keeps more than it should.
fn unharmed(node: &Node, before: &BTreeMap<String, Holds>) -> Result<()> {
    eventually("the daemons are as they were", LONG, || {
        let now = holds(node)?;
        for (name, before) in before {
            let now = now.get(name).with_context(|| format!("{name} is gone"))?;
            ensure!(now.pid == before.pid, "{name} was started again");
            ensure!(now.bytes <= before.bytes + GROWTH_MAX, "{name}: {before:?}, now {now:?}");
            ensure!(now.descriptors <= before.descriptors + DESCRIPTORS_MAX, "{name}: {before:?}, now {now:?}");
        }
        Ok(())
    })
}

/// A sum of `bulkhead_peer_refusals_total` of a daemon, over these reasons.
fn refusals(node: &Node, daemon: &str, reasons: &[&str]) -> Result<u64> {
    let text = node.agent()?.metrics(daemon)?;
    let lines = text.lines().filter(|line| line.starts_with("bulkhead_peer_refusals_total{"));
    let wanted = lines.filter(|line| reasons.iter().any(|reason| line.contains(&format!("reason=\"{reason}\""))));
    Ok(wanted.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum())
}

/// What must not change, whatever is asked: what there is outside of the node's own work, mounts, cgroups. The node's own
/// files are replaced as it works; others must be the same ones.
fn surroundings(node: &Node) -> Result<Vec<String>> {
    let pods = node.root_dir().join("pods");
    let others = ["/", "/etc", "/var/lib"].map(Path::new);
    let mut all = Vec::new();
    for folder in others.into_iter().chain([node.root_dir(), &pods]) {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let inode = entry.metadata().map(|one| one.ino()).ok().filter(|_| others.contains(&folder));
            all.push(format!("{} {inode:?}", entry.path().display()));
        }
    }
    all.extend(mounts::below(node.root_dir()).into_iter().map(|mount| format!("mount {mount:?}")));
    all.extend(cgroups::below(node.cgroup_root()).into_iter().map(|group| format!("cgroup {group}")));
    all.sort();
    Ok(all)
}

#[test]
fn attacks_on_every_socket_harm_no_pod_and_no_process() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let member = Member::start(&lab, &[], |node| node)?;
    member.create("first", &json!({}))?;
    let first = member.wait_ready("first")?;
    let node = &member.node;
    let gid = std::fs::metadata(node.run_dir())?.gid();
    let socket = |daemon: &str| node.run_dir().join(format!("{daemon}.sock"));
    let side: PathBuf = node.run_dir().join("kubelet-volnetd.fd.sock");
    let users: BTreeMap<&str, u32> =
        DAEMONS.into_iter().map(|daemon| Ok((daemon, user(node, daemon)?))).collect::<Result<_>>()?;
    let before = holds(node)?;
    let end = Instant::now() + Duration::from_secs(seconds("BULKHEAD_ATTACK", 6));
    let connections = usize::try_from(seconds("BULKHEAD_CONNECTIONS", 10_000))?;
    let (rounds, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    // Ten thousand held here need as many descriptors here.
    let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)?.1;
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, limit, limit)?;

    std::thread::scope(|scope| -> Result<()> {
        let going = || Instant::now() < end && !stop.load(Ordering::Relaxed);
        let mut attackers = Vec::new();
        for (attacker, victim) in ATTACKS {
            let (path, uid) = (socket(victim), users[attacker]);
            // One who has the peer's user, one who is let into the folder and is nobody.
            for uid in [uid, NOBODY] {
                let (path, rounds) = (path.clone(), &rounds);
                attackers.push(scope.spawn(move || {
                    dressed(uid, gid, || {
                        for (_, flood) in floods::FLOODS.iter().cycle() {
                            if !going() {
                                break;
                            }
                            // That the server ends it is what it is for.
                            let _ = flood(&path, rounds.fetch_add(1, Ordering::Relaxed));
                        }
                        Ok(())
                    })
                }));
            }
        }
        for uid in [users["kubelet-statusd"], users["kubelet-evictiond"], NOBODY] {
            let (path, rounds) = (side.clone(), &rounds);
            attackers.push(scope.spawn(move || {
                dressed(uid, gid, || {
                    while going() {
                        broker::pester(&path, rounds.fetch_add(1, Ordering::Relaxed))?;
                    }
                    Ok(())
                })
            }));
        }
        for daemon in DAEMONS {
            let (path, uid) = (node.run_dir().join(format!("{daemon}.notify")), users[daemon]);
            attackers.push(scope.spawn(move || {
                dressed(uid, gid, || {
                    while going() {
                        broker::notifications(&path, 1000)?;
                        std::thread::sleep(Duration::from_millis(50));
                    }
                    Ok(())
                })
            }));
        }
        // Meanwhile the node does its work: pods come, are shown on the API server, and go.
        let mut served = 0;
        let works = (|| {
            while going() {
                let name = format!("meanwhile-{served}");
                member.create(&name, &json!({"terminationGracePeriodSeconds": 1}))?;
                member.wait_ready(&name)?;
                member.cluster.delete("pods", "default", &name, Some(1))?;
                member.cluster.wait_gone("pods", "default", &name)?;
                served += 1;
            }
            ensure!(served > 0, "not a pod was served in all that time");
            Ok(())
        })();
        stop.store(true, Ordering::Relaxed);
        for attacker in attackers {
            attacker.join().map_err(|_| anyhow::anyhow!("an attacker panicked"))??;
        }
        works
    })?;
    eprintln!("{} floods", rounds.load(Ordering::Relaxed));
    unharmed(node, &before)?;
    for (_, victim) in ATTACKS {
        ensure!(refusals(node, victim, &["stranger"])? > 0, "{victim} counted no stranger");
    }

    // Ten thousand connections, held; everybody else is served meanwhile, and they are given back.
    let admin = member.cluster.client_certificate("kubernetes-admin", "system:masters", HOUR)?;
    let admin = Credential::Certificate(admin);
    for (attacker, victim) in ATTACKS {
        let (path, uid) = (socket(victim), users[attacker]);
        let number = if victim == "kubelet-volnetd" { connections } else { connections / 5 };
        let (hold, held) = mpsc::channel();
        let (let_go, wait) = mpsc::channel::<()>();
        let (number, asked) = std::thread::scope(|scope| {
            let path = &path;
            let attacker = scope.spawn(move || {
                dressed(uid, gid, move || {
                    floods::hold_connections(path, number, move || {
                        let _ = hold.send(());
                        // Until the other end is dropped.
                        let _ = wait.recv();
                    })
                })
            });
            // As root: a thread that the attacker started would be the attacker, too. An error is that nothing is held.
            let asked = held.recv().map(|()| every_socket_answers(&lab, node, &admin));
            drop(let_go);
            (attacker.join(), asked)
        });
        let number = number.map_err(|_| anyhow::anyhow!("the attacker panicked"))??;
        ensure!(number > 64, "{number} connections to {victim}");
        asked.context("nothing was held")?.with_context(|| format!("while the connections of {victim} are used up"))?;
        ensure!(refusals(node, victim, &["connections"])? > 0, "{victim} refused no connection");
    }
    unharmed(node, &before)?;
    let again = member.cluster.get("pods", "default", "first")?;
    for field in ["podIP", "startTime", "containerStatuses"] {
        ensure!(again["status"][field] == first["status"][field], "{field}: {again}");
    }
    member.node.finish()
}

/// A normal request on each: the operator's Hello to every daemon, and the two ports.
fn every_socket_answers(lab: &Lab, node: &Node, admin: &Credential) -> Result<()> {
    for daemon in DAEMONS {
        eventually(&format!("{daemon} answers the operator"), LONG, || node.agent()?.hello(daemon).map(|_| ()))?;
    }
    ports_answer(lab, admin)
}

/// At the first try.
fn ports_answer(lab: &Lab, admin: &Credential) -> Result<()> {
    for client in [https(lab, admin), healthz(lab)] {
        let answer = client.get("/healthz/ping")?;
        ensure!(answer.status == 200, "{}: {answer:?}", client.address());
    }
    Ok(())
}

fn https(lab: &Lab, who: &Credential) -> Https {
    Https::new(SocketAddr::new(IpAddr::V4(lab.netns().address()), 10250), who)
}

fn healthz(lab: &Lab) -> Https {
    Https::plain(HEALTHZ).within(&lab.netns().path())
}

/// HTTP/2 that lets nothing be sent to it, and asks for something: the refusal can never be written.
fn without_window(lab: &Lab) -> Result<Connection> {
    let mut stranger = https(lab, &Credential::Nothing).over_http2().connect()?;
    stranger.write_all(&frames::without_window("/pods"))?;
    Ok(stranger)
}

/// HTTP/1.1 that asks again and again and reads nothing. Small segments and a small buffer: little of it is in the kernel.
fn never_reading(lab: &Lab) -> Result<TcpStream> {
    use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrIn, setsockopt, sockopt};
    netns::run_in(&lab.netns().path(), || {
        let socket = socket::socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&socket, sockopt::TcpMaxSeg, &536)?;
        setsockopt(&socket, sockopt::RcvBuf, &4096)?;
        let SocketAddr::V4(address) = HEALTHZ else { anyhow::bail!("{HEALTHZ} is not IPv4") };
        socket::connect(std::os::fd::AsRawFd::as_raw_fd(&socket), &SockaddrIn::from(address))?;
        let mut stream = TcpStream::from(socket);
        stream.set_write_timeout(Some(Duration::from_millis(300)))?;
        let requests = b"GET /healthz/ping HTTP/1.1\r\nHost: n\r\n\r\n".repeat(100);
        // Until nothing more is taken; the bound is far above.
        for _ in 0..1000 {
            if stream.write_all(&requests).is_err() {
                break;
            }
        }
        Ok(stream)
    })
}

/// Opens `number` of something, by several threads at a time, and keeps them.
fn many<T: Send>(number: usize, open: impl Fn() -> Result<T> + Sync) -> Result<Vec<T>> {
    const THREADS: usize = 8;
    std::thread::scope(|scope| {
        let each = || (0..number.div_ceil(THREADS)).map(|_| open()).collect::<Result<Vec<T>>>();
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(each)).collect();
        let mut all = Vec::new();
        for thread in threads {
            all.extend(thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))??);
        }
        Ok(all)
    })
}

#[test]
fn strangers_that_do_not_read_keep_no_client_out_of_the_ports() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let clients = Authority::new()?;
    let ca = lab.folder().join("clients.crt");
    std::fs::write(&ca, clients.pem())?;
    let who = json!({"x509": {"clientCAFile": ca}, "webhook": {"enabled": false}, "anonymous": {"enabled": false}});
    // So many files are 2048 connections: the limit is reached sooner than at 8192.
    let node = lab
        .node("alpha")
        .config("authentication", who)
        .config("authorization", json!({"mode": "AlwaysAllow"}))
        .config("maxOpenFiles", json!(4352))
        .start()?;
    let admin = Credential::Certificate(clients.client("admin", "system:masters", HOUR)?);
    eventually("the ports are served", LONG, || ports_answer(&lab, &admin))?;
    let before = holds(&node)?;
    let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)?.1;
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, limit, limit)?;
    let number = usize::try_from(seconds("BULKHEAD_STRANGERS", 2400))?;
    let mut held = Vec::new();
    // They come from the same address as who is let in.
    while held.len() < number {
        held.extend(many(240, || without_window(&lab))?);
        ports_answer(&lab, &admin).with_context(|| format!("with {} connections held", held.len()))?;
    }
    // More than the port takes (64).
    let unread = many(96, || never_reading(&lab))?;
    let begun = Instant::now();
    for _ in 0..10 {
        ports_answer(&lab, &admin).with_context(|| format!("with {} unread connections held", unread.len()))?;
    }
    eprintln!("{} and {} held, an answer of each port takes {:?}", held.len(), unread.len(), begun.elapsed() / 10);
    drop((held, unread));
    unharmed(&node, &before)?;
    node.finish()
}

#[test]
fn no_message_has_an_effect_outside_or_ends_a_process() -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    let member = Member::start(&lab, &[], |node| node)?;
    member.create("first", &json!({}))?;
    let pod = member.wait_ready("first")?;
    let node = &member.node;
    let gid = std::fs::metadata(node.run_dir())?.gid();
    let pod_uid = pod["metadata"]["uid"].as_str().context("no uid")?;
    let pool = DescriptorPool::decode(bulkhead_ipc::DESCRIPTORS)?;
    let each = seconds("BULKHEAD_MESSAGES", 25);
    let mut dice = Dice::from_environment();
    eprintln!("BULKHEAD_SEED={}", dice.seed());
    // Something has been removed in earnest, so there is a generation that others are older than, and every file that the
    // node keeps of its pods is there.
    member.create("second", &json!({"terminationGracePeriodSeconds": 1}))?;
    let second = member.wait_ready("second")?;
    let second = second["metadata"]["uid"].as_str().context("no uid")?;
    member.cluster.delete("pods", "default", "second", Some(1))?;
    member.cluster.wait_gone("pods", "default", "second")?;
    eventually("nothing of the second pod is left", LONG, || {
        let left: Vec<String> = surroundings(node)?.into_iter().filter(|one| one.contains(second)).collect();
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })?;
    // The node's own records of its first pods come some seconds later.
    eventually("the node has written what it granted", LONG, || {
        for name in ["allocated_pods_state", "actuated_pods_state"] {
            ensure!(node.root_dir().join(name).exists(), "no {name}");
        }
        Ok(())
    })?;
    let (before, around) = (holds(node)?, surroundings(node)?);
    let pairs = [
        ("kubelet-syncd", "kubelet-volnetd"),
        ("kubelet-statusd", "kubelet-syncd"),
        ("kubelet-statusd", "kubelet-evictiond"),
        ("kubelet-syncd", "kubelet-statusd"),
    ];
    let mut asked = 0;
    for (peer, server) in pairs {
        let (uid, socket) = (user(node, peer)?, node.run_dir().join(format!("{server}.sock")));
        let own = format!("kubelet.{}.v1", server.trim_start_matches("kubelet-"));
        let methods = messages::methods(&pool, &[&own, "kubelet.common.v1"]);
        dressed(uid, gid, || {
            hostile::runtime()?.block_on(async {
                let channel = bulkhead_ipc::client::channel(&socket);
                for method in &methods {
                    let path = messages::path(method);
                    let node_wide = NODE_WIDE.iter().any(|name| path.ends_with(name));
                    for round in 0..each {
                        let bytes = if round % 3 == 0 || node_wide {
                            messages::malformed(&mut dice)
                        } else {
                            let mut hostile = messages::Hostile { dice: &mut dice, pod_uid };
                            messages::bytes(&hostile.message(&method.input()))
                        };
                        let code =
                            messages::ask(channel.clone(), &path, bytes.clone(), Duration::from_millis(500)).await;
                        ensure!(
                            ![Code::Unavailable, Code::Unknown, Code::DataLoss].contains(&code),
                            "{path} answers {code:?} to {bytes:02x?}"
                        );
                        asked += 1;
                    }
                }
                Ok(())
            })
        })?;
    }
    eprintln!("{asked} messages");
    stale_verbs_are_refused(node, gid, pod_uid)?;
    verbosity_has_an_end(node, gid)?;
    unharmed(node, &before)?;
    eventually("nothing around the node has changed", LONG, || {
        let now = surroundings(node)?;
        let new: Vec<&String> = now.iter().filter(|one| !around.contains(one)).collect();
        let gone: Vec<&String> = around.iter().filter(|one| !now.contains(one)).collect();
        ensure!(new.is_empty() && gone.is_empty(), "new: {new:#?}\ngone: {gone:#?}");
        Ok(())
    })?;
    let again = member.cluster.get("pods", "default", "first")?;
    ensure!(again["status"]["containerStatuses"] == pod["status"]["containerStatuses"], "{again}");
    member.node.finish()
}

/// Replays of what removes: another epoch, an old generation, sources that have not been heard. All as syncd itself.
fn stale_verbs_are_refused(node: &Node, gid: u32, pod_uid: &str) -> Result<()> {
    let volnetd = node.agent()?.hello("kubelet-volnetd")?.epoch;
    let syncd = node.agent()?.hello("kubelet-syncd")?.epoch;
    let guard = |volnetd_epoch, syncd_epoch, generation, sources_ready| {
        Some(DestructiveGuard { volnetd_epoch, syncd_epoch, generation, sources_ready })
    };
    let stale = [
        None,
        guard(volnetd ^ 1, syncd, u64::MAX, true),
        guard(0, syncd, u64::MAX, true),
        guard(volnetd, syncd, 0, true),
        guard(volnetd, syncd, u64::MAX, false),
        guard(volnetd, 0, u64::MAX, true),
    ];
    let socket = node.run_dir().join("kubelet-volnetd.sock");
    dressed(user(node, "kubelet-syncd")?, gid, || {
        hostile::runtime()?.block_on(async {
            let mut client = VolumesClient::new(bulkhead_ipc::client::channel(&socket));
            for guard in stale {
                let request = TearDownPodRequest { pod_uid: pod_uid.to_owned(), guard, ..Default::default() };
                let code = client.tear_down_pod(request).await.err().map(|status| status.code());
                let refused = [Some(Code::FailedPrecondition), Some(Code::InvalidArgument)].contains(&code);
                ensure!(refused, "TearDownPod with {guard:?}: {code:?}");
                let answer = client.prune(PruneRequest { guard, ..Default::default() }).await;
                let code = match answer {
                    Err(status) => Some(status.code()),
                    Ok(steps) => steps.into_inner().message().await.err().map(|status| status.code()),
                };
                let refused = [Some(Code::FailedPrecondition), Some(Code::InvalidArgument)].contains(&code);
                ensure!(refused, "Prune with {guard:?}: {code:?}");
            }
            Ok(())
        })
    })
}

/// How much a process logs is its peer's to say within klog's scale, nobody else's, and saying so again and again fills no
/// log.
fn verbosity_has_an_end(node: &Node, gid: u32) -> Result<()> {
    const CHANGES: u32 = 300;
    let set = async |server: &str, verbosity| {
        let channel = bulkhead_ipc::client::channel(&node.run_dir().join(format!("{server}.sock")));
        LoggingClient::new(channel).set_verbosity(SetVerbosityRequest { verbosity }).await.map(|_| ())
    };
    for (peer, server) in [
        ("kubelet-syncd", "kubelet-volnetd"),
        ("kubelet-evictiond", "kubelet-syncd"),
        ("kubelet-syncd", "kubelet-statusd"),
    ] {
        dressed(user(node, peer)?, gid, || {
            hostile::runtime()?.block_on(async {
                let code = set(server, 1).await.err().map(|status| status.code());
                let refused = [Some(Code::PermissionDenied), Some(Code::Unimplemented)].contains(&code);
                ensure!(refused, "{peer} sets how much {server} logs: {code:?}");
                Ok(())
            })
        })?;
    }
    for server in ["kubelet-volnetd", "kubelet-syncd", "kubelet-evictiond"] {
        let (begin, before) = (Instant::now(), std::fs::metadata(node.log())?.len());
        dressed(user(node, "kubelet-statusd")?, gid, || {
            hostile::runtime()?.block_on(async {
                for wrong in [11, 1 << 31, u32::MAX] {
                    let refused = set(server, wrong).await.err().context("it is set")?;
                    ensure!(refused.code() == Code::InvalidArgument, "{refused:?}");
                    let says = format!("verbosity {wrong} is above 10, the most there is to say");
                    ensure!(refused.message() == says, "{refused:?}");
                }
                // The last one is what the node was started with.
                for change in 1..=CHANGES {
                    set(server, (CHANGES - change) % 3).await?;
                }
                Ok(())
            })
        })?;
        let pid = *node.pids().get(server).with_context(|| format!("{server} does not run"))?;
        let log = std::fs::read(node.log())?;
        let told_in = |log: &[u8]| {
            let log = String::from_utf8_lossy(log).into_owned();
            let of_it =
                |line: &&str| line.contains(&format!(" {pid:>7} ")) && line.contains("log verbosity is changed");
            log.lines().filter(of_it).count() as u64
        };
        // One that was told just before, of a message that happened to be one, stands for the first.
        ensure!(told_in(&log) > 0, "{server} told of no change");
        let new = log.get(usize::try_from(before)?..).context("the log has become shorter")?;
        let (told, most) = (told_in(new), begin.elapsed().as_secs() + 2);
        ensure!(told <= most, "{server} told {told} times of {CHANGES} changes");
    }
    Ok(())
}
