//! The real process, started as the launcher starts it and with nobody else there: it holds nothing, answers, and does
//! not call that healthy.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::time::Duration;

use bulkhead_config::{NodeConfig, Users};
use bulkhead_ipc::common::PrivilegesRequest;
use bulkhead_ipc::common::process_client::ProcessClient;
use bulkhead_ipc::statusd::GetStatusRequest;
use bulkhead_ipc::statusd::status_client::StatusClient;
use bulkhead_sys::spawn::{Spec, User};
use bulkhead_testkit::skip::{Lack, skip_this_test};
use bulkhead_types::Process;

/// Beside the range that real instances claim.
const BASE: u32 = 61194;
const PATIENCE: Duration = Duration::from_secs(30);

struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(config: &NodeConfig) -> Killed {
    let listener = std::os::unix::net::UnixListener::bind(config.paths.socket(Process::Statusd)).unwrap();
    let mut spec = Spec::new(env!("CARGO_BIN_EXE_kubelet-statusd"));
    spec.args = vec!["--run-dir".into(), config.paths.run_dir.clone().into()];
    spec.fds = vec![("grpc".into(), listener.into())];
    let (uid, gid) = (config.users.statusd, config.users.statusd_gid);
    spec.user = Some(User { uid, gid, groups: vec![config.users.gid] });
    spec.bounding = Some(Vec::new());
    spec.no_new_privs = true;
    spec.die_with_parent = true;
    Killed(spec.spawn().unwrap())
}

fn get(address: &str, path: &str) -> (u16, String) {
    let mut stream = std::net::TcpStream::connect(address.trim_start_matches("http://")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[tokio::test]
async fn the_process_holds_nothing_and_answers_alone() {
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        return skip_this_test(Lack::Root).unwrap();
    }
    let temp = tempfile::tempdir().unwrap();
    std::fs::set_permissions(temp.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut config = NodeConfig::for_tests(temp.path());
    config.users = Users::block(BASE);
    // Ports that are free now; another test may take one, then the process tries again and this test waits in vain.
    let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (health, read_only) = (free(), free());
    config.kubelet.healthz_port = Some(health.into());
    config.kubelet.address = "127.0.0.1".into();
    config.kubelet.read_only_port = read_only.into();
    config.kubelet.enable_server = Some(false);
    std::fs::create_dir_all(&config.paths.run_dir).unwrap();
    config.save(&config.paths.rendered_config()).unwrap();
    let _process = start(&config);

    let channel = bulkhead_ipc::client::channel(&config.paths.socket(Process::Statusd));
    let asked = ProcessClient::new(channel.clone());
    let held = tokio::time::timeout(PATIENCE, asked.clone().privileges(PrivilegesRequest {})).await.unwrap().unwrap();
    let held = held.into_inner();
    assert_eq!((held.uid, held.gid, held.groups.as_slice()), (BASE + 3, BASE + 3, [BASE].as_slice()));
    for set in [&held.effective, &held.permitted, &held.bounding, &held.ambient] {
        assert!(set.is_empty(), "{held:?}");
    }
    assert!(held.no_new_privs && !held.dumpable && held.seccomp_mode == 2, "{held:?}");

    let [health, read_only] = [health, read_only].map(|port| format!("http://127.0.0.1:{port}"));
    tokio::time::timeout(PATIENCE, async {
        loop {
            let status = StatusClient::new(channel.clone()).get(GetStatusRequest {}).await.unwrap().into_inner();
            if [&health, &read_only].into_iter().all(|address| status.listening.contains(address)) {
                assert!(status.checks.iter().any(|check| check.name == "volnetd" && !check.ok), "{:?}", status.checks);
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    let (status, body) = get(&health, "/healthz");
    assert_eq!(status, 500);
    assert!(body.contains("[-]syncloop failed: reason withheld\n"), "{body}");
    assert_eq!(get(&health, "/healthz/ping"), (200, "ok".to_owned()));
    let (status, metrics) = get(&read_only, "/metrics");
    let families = kubelet_statusd::scrape::exposition::parse(&metrics).unwrap();
    assert_eq!(status, 200);
    for name in ["kubelet_node_name", "process_cpu_seconds_total", "process_open_fds", "bulkhead_process_up"] {
        assert!(families.iter().any(|family| family.name == name), "{name} in\n{metrics}");
    }
}
