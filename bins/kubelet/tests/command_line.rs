//! The real program on input that it must refuse, and on what it answers without starting anything.
//!

//! Every refusal: exit code 1, the reason on standard error, no trace of a node.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use bulkhead_config::{run_dir_for, short_hash};

struct Case {
    folder: tempfile::TempDir,
}

impl Case {
    fn new() -> Self {
        Case { folder: tempfile::tempdir().unwrap() }
    }

    fn root_dir(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    fn config(&self, body: &str) -> String {
        self.write(
            "config.yaml",
            &format!("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{body}"),
        )
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.run_with(arguments, &[])
    }

    fn run_with(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_kubelet"))
            .arg(format!("--root-dir={}", self.root_dir().display()))
            .arg("--hostname-override=cli-test")
            .args(arguments)
            .env_remove("NOTIFY_SOCKET")
            .env_remove("WATCHDOG_USEC")
            .env_remove("BULKHEAD_SUPERVISOR")
            .envs(environment.iter().copied())
            .output()
            .unwrap()
    }

    /// What it wrote to standard error while refusing.
    fn refused(&self, arguments: &[&str]) -> String {
        self.refused_with(arguments, &[])
    }

    fn refused_with(&self, arguments: &[&str], environment: &[(&str, &str)]) -> String {
        let output = self.run_with(arguments, environment);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {text}");
        assert!(output.stdout.is_empty(), "{arguments:?} wrote to standard output");
        self.assert_no_trace();
        text
    }

    fn assert_no_trace(&self) {
        let root = self.root_dir();
        assert!(!root.exists(), "the root directory was created");
        assert!(!run_dir_for(&root).exists(), "the socket folder was created");
        let claim =
            Path::new("/run/kubelet.claims").join(format!("root-{}", short_hash(root.as_os_str().as_encoded_bytes())));
        assert!(!claim.exists(), "{} was created", claim.display());
    }
}

#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

#[test]
fn the_command_line_is_refused_in_upstreams_words() {
    let case = Case::new();
    has(&case.refused(&["--no-such-flag"]), &["failed to parse kubelet flag: unknown flag: --no-such-flag"]);
    has(&case.refused(&["run"]), &["unknown command run"]);
    has(&case.refused(&["--fail-swap-on", "false"]), &["unknown command false"]);
    has(&case.refused(&["--port=x"]), &["invalid argument \"x\" for \"--port\" flag", "strconv.ParseInt"]);
    has(&case.refused(&["--sync-frequency=5"]), &["--sync-frequency", "time: missing unit in duration"]);
    has(&case.refused(&["--config"]), &["flag needs an argument: --config"]);
    has(&case.refused(&["--feature-gates=Nope=true"]), &["unrecognized feature gate: Nope"]);
    has(
        &case.refused(&["--node-labels=kubernetes.io/role=x"]),
        &["unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels"],
    );
    has(&case.refused(&["--root-dir=relative"]), &["--root-dir", "canonical"]);
    has(&case.refused(&["--exit-on-lock-contention"]), &["no lock file specified"]);
    has(&case.refused(&["--cloud-provider=aws"]), &["--cloud-provider", "aws", "external"]);
    has(&case.refused(&["--node-ip=1.1.1.1,2.2.2.2"]), &["--node-ip"]);
}

#[test]
fn a_refusal_by_the_machine_names_misspelt_fields_too() {
    let case = Case::new();
    let config = case.config("cgroupRoot: /no-such-cgroup-of-cli-test\nfailCGroupV1: false\nmaxPods: 1\nmaxPods: 2\n");
    has(
        &case.refused(&["--config", &config]),
        &["cgroupRoot: invalid value", "unknown field \"failCGroupV1\"", "field \"maxPods\" is set more than once"],
    );
}

#[test]
fn deprecated_flags_are_named() {
    let text = Case::new().refused(&["--max-pods=-1"]);
    has(&text, &["Flag --max-pods has been deprecated", "maxPods: invalid value -1: must be 0 or more"]);
}

#[test]
fn a_wrong_file_is_named_with_field_value_and_limit() {
    let case = Case::new();
    let config = case.config("maxPods: many\nsyncFrequency: soon\n");
    has(
        &case.refused(&["--config", &config]),
        &[
            &config,
            "maxPods: invalid value \"many\": must be a whole number",
            "syncFrequency: invalid value \"soon\": must be a duration",
        ],
    );
    let config = case.config("port: 0x\nmaxPods: -5\n");
    has(&case.refused(&["--config", &config]), &["port: invalid value \"0x\""]);
    let config = case.config("port: 70000\nmaxPods: -5\nenforceNodeAllocatable: [all]\n");
    has(
        &case.refused(&["--config", &config]),
        &[
            "port: invalid value 70000: must be from 1 to 65535",
            "maxPods: invalid value -5",
            "enforceNodeAllocatable[0]: invalid value \"all\": must be one of",
        ],
    );
    has(
        &case.refused(&["--config=/no/such/file"]),
        &["failed to load kubelet config file", "/no/such/file", "No such file"],
    );
    let empty = case.write("empty.yaml", "");
    has(&case.refused(&["--config", &empty]), &["is empty"]);
    let kind = case.write("kind.yaml", "apiVersion: v1\nkind: Pod\n");
    has(
        &case.refused(&["--config", &kind]),
        &["apiVersion: invalid value \"v1\"", "kind: invalid value \"Pod\": must be \"KubeletConfiguration\""],
    );
    let broken = case.write("broken.yaml", "a: [\n");
    has(&case.refused(&["--config", &broken]), &["neither YAML nor JSON"]);
}

#[test]
fn drop_ins_count_and_are_named() {
    let case = Case::new();
    let config = case.config("maxPods: 5\n");
    case.write(
        "conf.d/10.conf",
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nmaxPods: -7\n",
    );
    let folder = case.folder.path().join("conf.d").display().to_string();
    has(&case.refused(&["--config", &config, "--config-dir", &folder]), &["maxPods: invalid value -7"]);
    case.write("conf.d/20.conf", "maxPods: 7\n");
    has(&case.refused(&["--config", &config, "--config-dir", &folder]), &["20.conf", "apiVersion"]);
    has(&case.refused(&["--config", &config, "--config-dir=/no/such/dir"]), &["/no/such/dir"]);
}

#[test]
fn flags_win_over_the_file() {
    let case = Case::new();
    let config = case.config("maxPods: -5\nport: 70000\n");
    let text = case.refused(&["--config", &config, "--max-pods=5"]);
    has(&text, &["port: invalid value 70000"]);
    assert!(!text.contains("invalid value -5"), "{text}");
}

#[test]
fn the_machine_is_checked() {
    let case = Case::new();
    let settings = "failCgroupV1: false\nfailSwapOn: false\n";
    let config = case.config(&format!("{settings}cgroupRoot: /no-such-cgroup\n"));
    has(&case.refused(&["--config", &config]), &["cgroupRoot: invalid value \"/no-such-cgroup\": must exist"]);
    let config = case.config(&format!("{settings}reservedSystemCPUs: \"65000\"\n"));
    has(&case.refused(&["--config", &config]), &["reservedSystemCPUs", "online CPUs"]);
    let reserved = "enforceNodeAllocatable: [pods, system-reserved]\nsystemReservedCgroup: /no-such/cgroup\n";
    let config = case.config(&format!("{settings}{reserved}systemReserved: {{cpu: 100m}}\n"));
    let text = case.refused(&["--config", &config]);
    has(&text, &["systemReservedCgroup", "Failed to enforce System Reserved Cgroup Limits on \"/no-such/cgroup\": "]);
    let config = case.config(&format!("{settings}{reserved}"));
    has(&case.refused(&["--config", &config]), &["[\"no-such\" \"cgroup\"] cgroup is not configured properly"]);
    let config = case.config(&format!("{settings}kubeReserved: {{memory: 100Ti}}\n"));
    let text = case.refused(&["--config", &config]);
    has(
        &text,
        &["invalid Node Allocatable configuration. Resource \"memory\" has a reservation of ", "but capacity of"],
    );
    if Path::new("/sys/fs/cgroup/memory").exists() {
        let config = case.config("failSwapOn: false\n");
        has(&case.refused(&["--config", &config]), &["failCgroupV1: invalid value true", "cgroup v1"]);
        let config = case.config(&format!("{settings}memorySwap: {{swapBehavior: LimitedSwap}}\n"));
        has(&case.refused(&["--config", &config]), &["memorySwap.swapBehavior"]);
    }
}

#[test]
fn a_server_that_could_ask_nobody_is_refused() {
    let case = Case::new();
    let refused = |authentication: &str, mode: &str| {
        let config = case.config(&format!(
            "failCgroupV1: false\nfailSwapOn: false\nauthentication: {authentication}\nauthorization: {{mode: {mode}}}\n"
        ));
        case.refused(&["--config", &config])
    };
    has(&refused("{}", "Webhook"), &["no client provided, cannot use webhook authentication"]);
    let anonymous = "{webhook: {enabled: false}, anonymous: {enabled: true}}";
    has(&refused(anonymous, "Webhook"), &["no client provided, cannot use webhook authorization"]);
}

#[test]
fn a_short_watchdog_is_refused() {
    let case = Case::new();
    let output = Command::new(env!("CARGO_BIN_EXE_kubelet"))
        .args([
            format!("--root-dir={}", case.root_dir().display()).as_str(),
            "--fail-cgroupv1=false",
            "--fail-swap-on=false",
        ])
        .env("WATCHDOG_USEC", "1000000")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    has(&String::from_utf8_lossy(&output.stderr), &["WATCHDOG_USEC=1000000"]);
    case.assert_no_trace();
}

#[test]
fn help_and_version_start_nothing() {
    let case = Case::new();
    for (arguments, start) in [
        (&["--help"][..], "The node agent"),
        (&["-h"], "The node agent"),
        (&["--version"], "Kubernetes v1.36.0-bulkhead."),
        (&["--version=true"], "Kubernetes v1.36."),
        (&["--version=raw"], "version.Info{"),
    ] {
        let output = case.run(arguments);
        assert!(output.status.success(), "{arguments:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with(start) && text.ends_with('\n'), "{text}");
        case.assert_no_trace();
    }
}

/// A cgroup of this test's own, in every hierarchy; gone with it.
struct OwnCgroup {
    hierarchies: bulkhead_sys::cgroup::Hierarchies,
    path: bulkhead_sys::cgroup::CgroupPath,
}

impl OwnCgroup {
    fn new(name: &str) -> Option<Self> {
        let hierarchies = bulkhead_sys::cgroup::Hierarchies::detect().ok()?;
        let path = bulkhead_sys::cgroup::CgroupPath::parse(name).unwrap();
        hierarchies.ensure(&path).ok()?;
        Some(OwnCgroup { hierarchies, path })
    }
}

impl Drop for OwnCgroup {
    fn drop(&mut self) {
        let _ = self.hierarchies.kill_and_remove(&self.path);
    }
}

#[test]
fn a_second_node_on_one_cgroup_root_is_refused_with_the_name_of_the_first() {
    let name = format!("/kubelet-cli-test-{}", std::process::id());
    // Needs root, as the program itself does.
    let Some(_cgroup) = OwnCgroup::new(&name) else { return };
    fs::create_dir_all("/run/kubelet.claims").unwrap();
    let claim = Path::new("/run/kubelet.claims").join(short_hash(name.as_bytes()));
    let mut first = File::options().create(true).truncate(true).write(true).open(&claim).unwrap();
    first.lock().unwrap();
    first.write_all(br#"{"node":"first-node","rootDir":"/var/lib/first","pid":4242}"#).unwrap();
    let case = Case::new();
    let config =
        case.config(&format!("failCgroupV1: false\nfailSwapOn: false\nenableServer: false\ncgroupRoot: {name}\n"));
    let output = case.run(&["--config", &config]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    has(&text, &["cgroupRoot", &name, "first-node", "/var/lib/first", "4242"]);
    assert!(!run_dir_for(&case.root_dir()).exists() && !case.root_dir().exists());
    fs::remove_file(claim).unwrap();
    let root_claim = format!("root-{}", short_hash(case.root_dir().as_os_str().as_encoded_bytes()));
    let _ = fs::remove_file(Path::new("/run/kubelet.claims").join(root_claim));
}

/// Nothing in it is refused, on whichever machine.
const RUNNABLE: &str = "failCgroupV1: false\nfailSwapOn: false\nauthentication: {anonymous: {enabled: true}, webhook: {enabled: false}}\n\
                        authorization: {mode: AlwaysAllow}\n";

#[test]
fn what_units_cannot_do_is_refused_before_anything_is_claimed() {
    let case = Case::new();
    let config = format!("--config={}", case.config(RUNNABLE));
    let by_hand = [("BULKHEAD_SUPERVISOR", "systemd")];
    has(&case.refused_with(&[&config], &by_hand), &["kubelet.service", "NOTIFY_SOCKET", "systemctl start kubelet"]);
    let socket = case.folder.path().join("notify").display().to_string();
    let as_unit = [by_hand[0], ("NOTIFY_SOCKET", socket.as_str())];
    let lock = format!("--lock-file={}", case.folder.path().join("lock").display());
    let watched = case.refused_with(&[&config, &lock, "--exit-on-lock-contention"], &as_unit);
    has(&watched, &["--exit-on-lock-contention", "with units none stays behind"]);
    assert!(!case.folder.path().join("lock").exists());
    has(
        &case.refused_with(&[&config], &[("BULKHEAD_SUPERVISOR", "openrc")]),
        &["\"openrc\"", "\"systemd\" is the only value"],
    );
    // Without that variable, or for what starts nothing, all is as ever.
    let version = case.run_with(&["--version"], &by_hand);
    assert!(version.status.success() && version.stdout.starts_with(b"Kubernetes v1.36."));
}
