//! The real process with the machine's real iptables, both variants, in network namespaces of their own.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::time::Duration;

use bulkhead_ipc::common::family_chains::{Family, Outcome};
use bulkhead_ipc::common::keep_chains_request::Mode;
use bulkhead_ipc::common::{KeepChainsReply, KeepChainsRequest};
use bulkhead_ipc::helper::Asker;
use bulkhead_sys::process::PrivilegeReport;
use bulkhead_sys::scm;
use bulkhead_sys::spawn::Spec;
use bulkhead_testkit::skip::{Lack, skip_this_test};

/// Beside the range that real instances claim.
const USER: u32 = 61194;
const PATIENCE: Duration = Duration::from_secs(60);

/// A process that keeps a network and a mount namespace for as long as it lives.
struct Namespaces(Child);

impl Drop for Namespaces {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Namespaces {
    fn new() -> Self {
        let (ready, says) = std::io::pipe().unwrap();
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--propagation", "private", "sh", "-c", "echo; exec sleep 600"]);
        let child = command.stdout(says).spawn().unwrap();
        drop(command);
        std::io::Read::read_exact(&mut &ready, &mut [0]).unwrap();
        Namespaces(child)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// Runs it there; what it said.
    fn run(&self, script: &str) -> std::process::Output {
        Command::new("nsenter").args(["-t", &self.pid(), "-n", "-m", "sh", "-ec", script]).output().unwrap()
    }

    fn must(&self, script: &str) -> String {
        let output = self.run(script);
        assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Puts this variant of iptables where it is found first.
    fn choose(&self, variant: &str) {
        self.must(&format!(
            "mount -t tmpfs none /usr/local/sbin; for f in iptables ip6tables; do ln -s /usr/sbin/$f-{variant} \
             /usr/local/sbin/$f; done"
        ));
    }

    /// Does something in a thread of the network namespace.
    fn within<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let namespace = std::fs::File::open(format!("/proc/{}/ns/net", self.pid())).unwrap();
        let thread = std::thread::spawn(move || {
            nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            work()
        });
        thread.join().unwrap()
    }

    /// kubelet-iptables, with what root has there reduced to its row, as its launcher does.
    fn helper(&self) -> Helper {
        let (theirs, ours) = scm::pair().unwrap();
        let process = self.start(&theirs);
        Helper { asker: Asker::new(Some(ours)).unwrap(), socket: theirs, process }
    }

    fn start(&self, socket: &OwnedFd) -> Child {
        let mut spec = Spec::new("/usr/bin/nsenter");
        let words = ["-t", &self.pid(), "-n", "-m", "setpriv"];
        spec.args = words.into_iter().map(Into::into).collect();
        let caps = ["--inh-caps=", "--bounding-set=", "--ambient-caps="];
        spec.args.extend(caps.map(|set| format!("{set}-all,+net_admin,+net_raw").into()));
        spec.args
            .extend([format!("--reuid={USER}"), format!("--regid={USER}"), "--clear-groups".into()].map(Into::into));
        spec.args.push(program().into());
        spec.env = vec![("PATH".into(), "/usr/sbin:/usr/bin:/sbin:/bin".into())];
        spec.fds = vec![("questions".into(), socket.try_clone().unwrap())];
        let (mut command, slots) = spec.prepare().unwrap().into_parts();
        let child = command.spawn().unwrap();
        drop(slots);
        child
    }
}

/// Where that user can reach it.
fn program() -> std::path::PathBuf {
    env!("CARGO_BIN_EXE_kubelet-iptables").into()
}

struct Helper {
    asker: Asker,
    socket: OwnedFd,
    process: Child,
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Helper {
    async fn keep(&self, mode: Mode) -> Vec<(Family, Outcome, String)> {
        let reply: KeepChainsReply =
            self.asker.ask_for(&KeepChainsRequest { mode: mode.into() }, PATIENCE).await.unwrap();
        reply.families.into_iter().map(|one| (one.family(), one.outcome(), one.message)).collect()
    }
}

fn can_run() -> bool {
    let folders = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];
    let is_there = |name: &&str| folders.iter().any(|folder| std::path::Path::new(folder).join(name).exists());
    let missing = ["iptables-nft", "iptables-legacy", "ip"].into_iter().find(|name| !is_there(name)).map(Lack::Program);
    let lack = if rustix::process::geteuid().is_root() { missing } else { Some(Lack::Root) };
    let Some(lack) = lack else { return true };
    skip_this_test(lack).unwrap();
    false
}

/// Every rule of the node agent's that `iptables -S` shows, and the chains.
fn rules(node: &Namespaces, program: &str) -> Vec<String> {
    let tables = ["mangle", "nat", "filter"];
    let shown = tables.map(|table| node.must(&format!("{program} -t {table} -S")));
    let mut rules = Vec::new();
    for (table, text) in tables.into_iter().zip(shown) {
        rules.extend(text.lines().filter(|line| line.contains("KUBE-")).map(|line| format!("{table}: {line}")));
    }
    rules
}

/// As upstream's kubelet leaves them, in the words of iptables itself.
const V4: [&str; 8] = [
    "mangle: -N KUBE-IPTABLES-HINT",
    "mangle: -N KUBE-KUBELET-CANARY",
    "nat: -N KUBE-KUBELET-CANARY",
    "filter: -N KUBE-FIREWALL",
    "filter: -N KUBE-KUBELET-CANARY",
    "filter: -A INPUT -j KUBE-FIREWALL",
    "filter: -A OUTPUT -j KUBE-FIREWALL",
    "filter: -A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming localnet connections\" \
     -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP",
];
const V6: [&str; 4] = [
    "mangle: -N KUBE-IPTABLES-HINT",
    "mangle: -N KUBE-KUBELET-CANARY",
    "nat: -N KUBE-KUBELET-CANARY",
    "filter: -N KUBE-KUBELET-CANARY",
];

async fn chains_are_kept_with(variant: &str) {
    if !can_run() {
        return;
    }
    let node = Namespaces::new();
    node.choose(variant);
    // As `kubelet` leaves it for the legacy variant.
    node.must(&format!("mount -t tmpfs none /run; install -m 640 -g {USER} /dev/null /run/xtables.lock"));
    // Somebody's own rule, which stays below the jump.
    node.must("iptables -A INPUT -p tcp --dport 1 -j ACCEPT");
    let helper = node.helper();
    let v6 = node.run("ip6tables -t nat -S POSTROUTING").status.success();
    let expected = |outcome, other| vec![(Family::Ipv4, outcome), (Family::Ipv6, if v6 { outcome } else { other })];
    let asked = async |mode| helper.keep(mode).await.into_iter().map(|(f, o, _)| (f, o)).collect::<Vec<_>>();
    for _ in 0..2 {
        assert_eq!(helper.keep(Mode::Anew).await.iter().find(|(.., message)| v6 && !message.is_empty()), None);
        assert_eq!(asked(Mode::Anew).await, expected(Outcome::Initialized, Outcome::NotSupported));
        assert_eq!(rules(&node, "iptables"), V4, "twice as once");
    }
    let input = node.must("iptables -S INPUT");
    assert!(input.find("KUBE-FIREWALL") < input.find("--dport 1 "), "it comes first: {input}");
    if v6 {
        assert_eq!(rules(&node, "ip6tables"), V6);
    }
    let process = PrivilegeReport::of(helper.process.id()).unwrap();
    for set in [&process.effective, &process.permitted, &process.bounding, &process.inheritable, &process.ambient] {
        assert_eq!(*set, ["NET_ADMIN", "NET_RAW"]);
    }
    assert!(process.no_new_privs && process.seccomp_mode == 2 && process.uid == USER);

    assert_eq!(asked(Mode::IfFlushed).await, expected(Outcome::Kept, Outcome::NotSupported));
    // A firewall is loaded anew.
    node.must("for t in mangle nat filter; do iptables -t $t -F; iptables -t $t -X; done");
    assert!(rules(&node, "iptables").is_empty());
    let answer = asked(Mode::IfFlushed).await;
    assert_eq!(answer[0], (Family::Ipv4, Outcome::Reloaded));
    assert_eq!(rules(&node, "iptables"), V4);

    // The canary alone decides, and the other tables are waited for: a flush is under way.
    node.must("iptables -t mangle -X KUBE-KUBELET-CANARY; iptables -F KUBE-FIREWALL");
    assert_eq!(asked(Mode::IfFlushed).await[0], (Family::Ipv4, Outcome::Reloaded));
    assert_eq!(rules(&node, "iptables"), V4);
}

#[tokio::test]
async fn chains_are_kept_with_nf_tables() {
    chains_are_kept_with("nft").await;
}

#[tokio::test]
async fn chains_are_kept_with_the_legacy_variant() {
    chains_are_kept_with("legacy").await;
}

#[tokio::test]
async fn it_ends_when_nobody_asks_and_the_next_one_finds_the_question() {
    if !can_run() {
        return;
    }
    let node = Namespaces::new();
    let mut helper = node.helper();
    assert_eq!(helper.keep(Mode::Anew).await[0].1, Outcome::Initialized);
    let status = helper.process.wait().unwrap();
    assert!(status.success(), "{status}");
    let asked = helper.keep(Mode::IfFlushed);
    let again = node.start(&helper.socket);
    assert_eq!(asked.await[0].1, Outcome::Kept);
    helper.process = again;
}

#[tokio::test]
async fn a_machine_without_iptables_says_so() {
    if !can_run() {
        return;
    }
    let node = Namespaces::new();
    node.must("for f in /usr/sbin; do mount -t tmpfs none $f; done; [ -L /sbin ] || mount -t tmpfs none /sbin");
    let helper = node.helper();
    let outcomes: Vec<Outcome> = helper.keep(Mode::Anew).await.into_iter().map(|(_, outcome, _)| outcome).collect();
    assert_eq!(outcomes, [Outcome::NoProgram, Outcome::NoProgram]);
}

/// CVE-2020-8558: with `route_localnet` a neighbour reaches what listens on the node's loopback address.
#[tokio::test]
async fn cve_2020_8558_neighbours_do_not_reach_the_loopback_address() {
    if !can_run() {
        return;
    }
    let (node, neighbour) = (Namespaces::new(), Namespaces::new());
    node.must(&format!(
        "ip link set lo up; ip link add toward type veth peer name toward netns {}; ip addr add 10.99.0.1/24 dev toward; \
         ip link set toward up; for f in all toward; do echo 0 > /proc/sys/net/ipv4/conf/$f/rp_filter; done; \
         echo 1 > /proc/sys/net/ipv4/conf/toward/route_localnet",
        neighbour.pid()
    ));
    neighbour.must(
        "ip addr add 10.99.0.2/24 dev toward; ip link set toward up; ip route add 127.0.0.0/8 via 10.99.0.1 src 10.99.0.2; \
         for f in all toward; do echo 0 > /proc/sys/net/ipv4/conf/$f/rp_filter; done; \
         echo 1 > /proc/sys/net/ipv4/conf/toward/route_localnet",
    );
    let listener = node.within(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let target = SocketAddr::from((Ipv4Addr::LOCALHOST, listener.local_addr().unwrap().port()));
    let reach = move || TcpStream::connect_timeout(&target, Duration::from_secs(2)).map(drop);
    neighbour.within(reach).unwrap();

    let helper = node.helper();
    assert_eq!(helper.keep(Mode::Anew).await[0].1, Outcome::Initialized);
    assert_eq!(neighbour.within(reach).unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    node.within(reach).unwrap();
}
