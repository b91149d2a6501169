//! What probes cost: containers with a TCP and an HTTP probe each, once a second, all against servers in this program, so
//! that neither a pod's network nor its own work is measured. The floor is one thread that makes the same connections.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_testkit::{Lab, Pod};
use serde_json::json;

use crate::measure::{self, SETTLE, Usage, own_cpu, usage};

/// Containers of one pod: each costs the runtime a process, a pod costs it a network.
const CONTAINERS: usize = 25;
/// TCP and HTTP.
const PROBES_EACH: usize = 2;

/// How much of everything.
#[derive(Debug, Clone)]
pub struct Plan {
    pub judged: bool,
    /// Rounded up to whole pods.
    pub probes: usize,
    pub watched: Duration,
}

#[derive(Debug, Clone, Default)]
pub struct Measurements {
    pub probes: usize,
    pub seconds: f64,
    /// Connections that the server took meanwhile.
    pub made: u64,
    pub without: BTreeMap<String, Usage>,
    pub with: BTreeMap<String, Usage>,
    pub floor: Usage,
}

/// Runs everything.
///
/// # Errors
/// A pod did not start, or a process ended meanwhile.
pub fn run(plan: &Plan) -> Result<Measurements> {
    let lab = Lab::start_alone()?;
    // The node has a network of its own, in which its loopback is another one.
    let at = lab.netns().gateway();
    let node = lab.node("bench").start()?;
    let pods = plan.probes.div_ceil(CONTAINERS * PROBES_EACH);
    // A port for each pod: to one alone 500 connections a second would use up the ports of a client within a minute.
    let servers = (0..pods).map(|_| Server::start(at)).collect::<Result<Vec<_>>>()?;
    let taken = || servers.iter().map(Server::taken).sum::<u64>();
    let mut measured = Measurements { probes: pods * CONTAINERS * PROBES_EACH, ..Measurements::default() };

    // The same containers first without and then with probes: what is measured is the probes.
    for (with, name) in [(false, "plain"), (true, "probed")] {
        progress(&format!("{pods} pods of {CONTAINERS} containers, {name}"));
        let names: Vec<String> = (0..pods).map(|index| format!("{name}-{index}")).collect();
        for (one, server) in names.iter().zip(&servers) {
            node.write(&pod(one, with.then_some(server.address)))?;
        }
        for one in &names {
            node.wait_running(one, CONTAINERS)?;
        }
        std::thread::sleep(SETTLE * 2);
        let (before, made, begin) = (usage(&node)?, taken(), Instant::now());
        std::thread::sleep(plan.watched);
        let used = measure::since(&before, &usage(&node)?);
        measured.seconds = begin.elapsed().as_secs_f64();
        if with {
            measured.made = taken() - made;
            measured.with = used;
        } else {
            measured.without = used;
        }
        names.iter().try_for_each(|one| node.remove(one))?;
        for one in &names {
            node.wait_gone(one)?;
        }
    }
    let expected = measured.probes as f64 * measured.seconds;
    ensure!(
        (measured.made as f64 - expected).abs() < expected / 20.0,
        "{} probes arrived where {expected:.0} were due",
        measured.made
    );
    progress("the floor");
    measured.floor = floor(servers.iter().map(|server| server.address).collect(), measured.made)?;
    node.finish().context("the node's end")?;
    Ok(measured)
}

fn progress(text: &str) {
    eprintln!("bench: probes: {text}");
}

fn pod(name: &str, probed: Option<SocketAddr>) -> Pod {
    let containers: Vec<_> = (0..CONTAINERS)
        .map(|index| {
            let mut container = Pod::idle(name).value()["spec"]["containers"][0].clone();
            container["name"] = json!(format!("c{index}"));
            if let Some(server) = probed {
                let (host, port) = (server.ip().to_string(), server.port());
                container["livenessProbe"] = json!({"periodSeconds": 1, "tcpSocket": {"host": host, "port": port}});
                container["readinessProbe"] =
                    json!({"periodSeconds": 1, "httpGet": {"host": host, "port": port, "path": "/healthz"}});
            }
            container
        })
        .collect();
    Pod::idle(name).spec("containers", json!(containers))
}

/// Answers every request with a few bytes and closes.
struct Server {
    address: SocketAddr,
    taken: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Server {
    fn start(at: Ipv4Addr) -> Result<Self> {
        let listener = TcpListener::bind((at, 0)).context("listening for probes")?;
        let address = listener.local_addr()?;
        let (taken, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, end) = (taken.clone(), stop.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if end.load(Ordering::Relaxed) {
                    return;
                }
                count.fetch_add(1, Ordering::Relaxed);
                answer(stream);
            }
        });
        Ok(Server { address, taken, stop })
    }

    fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the listener.
        let _ = TcpStream::connect(self.address);
    }
}

/// One that sends nothing is a TCP probe: its end is seen as an empty read. An error is the prober's own business.
fn answer(mut stream: TcpStream) {
    let _ = stream.set_read_timeout(Some(Duration::from_secs(1)));
    let mut request = [0; 1024];
    if matches!(stream.read(&mut request), Ok(length) if length > 0) {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
    }
}

/// As many connections, every second one with a request, made by one thread that does nothing else.
fn floor(servers: Vec<SocketAddr>, connections: u64) -> Result<Usage> {
    std::thread::spawn(move || {
        let before = own_cpu()?;
        for (index, server) in (0..connections).zip(servers.iter().cycle()) {
            let mut stream = TcpStream::connect(server)?;
            if index % 2 == 0 {
                stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
                let mut body = [0; 1024];
                while stream.read(&mut body)? > 0 {}
            }
        }
        Ok(Usage { cpu_ns: own_cpu()?.saturating_sub(before), context_switches: 0 })
    })
    .join()
    .map_err(|_| anyhow::anyhow!("the floor panicked"))?
}
