use std::collections::BTreeMap;

use super::{CheckpointError, cpu, devices, dra, memory};
use crate::cpu::CpuState;
use crate::memory::MemoryState;
use crate::topology::machines::set;

// What upstream's kubelet of 1.36 wrote on a node with a pod that had a CPU, memory of its own and a device.
const CPU: &str = r#"{"policyName":"static","defaultCpuSet":"0","entries":{"ec9ebba4-1280-41da-9983-f0552d16730a":{"c":"1"}},"checksum":3393055047}"#;
const MEMORY: &str = r#"{"policyName":"Static","machineState":{"0":{"numberOfAssignments":1,"memoryMap":{"hugepages-1Gi":{"total":0,"systemReserved":0,"allocatable":0,"reserved":0,"free":0},"hugepages-2Mi":{"total":0,"systemReserved":0,"allocatable":0,"reserved":0,"free":0},"memory":{"total":16469151744,"systemReserved":268435456,"allocatable":16200716288,"reserved":67108864,"free":16133607424}},"cells":[0]}},"entries":{"ec9ebba4-1280-41da-9983-f0552d16730a":{"c":[{"numaAffinity":[0],"type":"memory","size":67108864}]}},"checksum":2340507729}"#;
const DEVICES: &str = r#"{"Data":{"PodDeviceEntries":[{"PodUID":"ec9ebba4-1280-41da-9983-f0552d16730a","ContainerName":"c","ResourceName":"example.com/resource","DeviceIDs":{"-1":["Dev-1"]},"AllocResp":"EhgKCi90bXAvRGV2LTESCi90bXAvRGV2LTE="},{"PodUID":"f6e8e287-3417-4a16-b1ac-b90b9128bbd4","ContainerName":"i","ResourceName":"example.com/resource","DeviceIDs":{"-1":["Dev-2"]},"AllocResp":"EhgKCi90bXAvRGV2LTISCi90bXAvRGV2LTI="},{"PodUID":"f6e8e287-3417-4a16-b1ac-b90b9128bbd4","ContainerName":"c","ResourceName":"example.com/resource","DeviceIDs":{"-1":["Dev-2"]},"AllocResp":"EhgKCi90bXAvRGV2LTISCi90bXAvRGV2LTI="}],"RegisteredDevices":{"example.com/resource":["Dev-2","Dev-1"]}},"Checksum":1676796217}"#;
const DRA: &str = r#"{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",\"ClaimInfoStateList\":[]}","Checksum":2361995144}"#;

fn text(bytes: Result<Vec<u8>, CheckpointError>) -> String {
    String::from_utf8(bytes.unwrap()).unwrap()
}

fn read_cpu(file: &str, policy: &str) -> Result<CpuState, CheckpointError> {
    cpu::read(file.as_bytes(), policy, false, &BTreeMap::new())
}

#[test]
fn upstreams_files_are_read_and_written_byte_for_byte() {
    let state = read_cpu(CPU, "static").unwrap();
    assert_eq!(state.get("ec9ebba4-1280-41da-9983-f0552d16730a", "c"), Some(&set("1")));
    assert_eq!(text(cpu::write("static", &state, false)), CPU);
    let state = memory::read(MEMORY.as_bytes(), "Static", false).unwrap();
    assert_eq!(state.machine[&0].memory_map["memory"].reserved, 67_108_864);
    assert_eq!(text(memory::write("Static", &state, false)), MEMORY);
    let found = devices::read(DEVICES.as_bytes()).unwrap();
    assert_eq!(found.pod_device_entries.as_ref().unwrap().len(), 3);
    assert_eq!(text(devices::write(&found)), DEVICES);
    assert_eq!(text(dra::write(&dra::read(DRA.as_bytes()).unwrap())), DRA);
}

/// As Go writes upstream's structures: sets are objects, what a driver leaves out is `null`, and three letters are escaped twice.
#[test]
fn prepared_claims() {
    let device = |name: &str, share: Option<&str>, requests: Option<&[&str]>, ids: Option<&[&str]>| dra::Device {
        pool_name: "node".into(),
        device_name: name.into(),
        share_id: share.map(str::to_owned),
        request_names: requests.map(|all| all.iter().map(ToString::to_string).collect()),
        cdi_device_ids: ids.map(|all| all.iter().map(ToString::to_string).collect()),
    };
    let devices =
        vec![device("d0", None, Some(&["r"]), Some(&["test.dev/gpu=a<b"])), device("d1", Some("s-1"), None, None)];
    let claim = dra::ClaimState {
        claim_uid: "u".into(),
        claim_name: "c".into(),
        namespace: "ns".into(),
        pod_uids: Some([("p".to_owned(), dra::Member {})].into()),
        driver_state: Some(
            [
                ("a.test".to_owned(), dra::DriverState { devices: Some(devices) }),
                ("b.test".to_owned(), dra::DriverState { devices: None }),
            ]
            .into(),
        ),
    };
    let file = text(dra::write(std::slice::from_ref(&claim)));
    let data = concat!(
        r#"{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","ClaimInfoStateList":[{"ClaimUID":"u","ClaimName":"c","#,
        r#""Namespace":"ns","PodUIDs":{"p":{}},"DriverState":{"a.test":{"Devices":[{"PoolName":"node","DeviceName":"d0","ShareID":null,"#,
        r#""RequestNames":["r"],"CDIDeviceIDs":["test.dev/gpu=a\u003cb"]},{"PoolName":"node","DeviceName":"d1","ShareID":"s-1","#,
        r#""RequestNames":null,"CDIDeviceIDs":null}]},"b.test":{"Devices":null}}}]}"#
    );
    let outer: serde_json::Value = serde_json::from_str(&file).unwrap();
    assert_eq!(outer["Data"], data);
    assert_eq!(dra::read(file.as_bytes()), Ok(vec![claim]));
    // Upstream looks at the checksum alone.
    assert_eq!(dra::read(br#"{"Data":"{}","Checksum":2745614147}"#), Ok(vec![]));
    assert_eq!(dra::read(br#"{"Data":"{}","Checksum":1}"#), Err(CheckpointError::Corrupted));
    assert_eq!(dra::read(b"{}"), Err(CheckpointError::CutOff), "no claims were never written so");
}

/// What a node without any of it has.
#[test]
fn empty_states() {
    let file = text(cpu::write("none", &CpuState::default(), false));
    assert_eq!(file, r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#);
    let file = text(memory::write("None", &MemoryState::default(), false));
    assert_eq!(file, r#"{"policyName":"None","machineState":{},"checksum":4236770233}"#);
    let empty = devices::Devices { registered_devices: Some(BTreeMap::new()), pod_device_entries: None };
    let file = text(devices::write(&empty));
    assert!(file.starts_with(r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":"#), "{file}");
    assert_eq!(devices::read(file.as_bytes()), Ok(empty));
}

/// Cut off anywhere, each file is refused as upstream refuses it.
#[test]
fn cut_at_every_byte() {
    for end in 0..CPU.len() {
        assert_eq!(read_cpu(&CPU[..end], "static"), Err(CheckpointError::CutOff), "{end}");
    }
    for end in 0..MEMORY.len() {
        assert_eq!(memory::read(&MEMORY.as_bytes()[..end], "Static", false), Err(CheckpointError::CutOff), "{end}");
    }
    for end in 0..DEVICES.len() {
        assert_eq!(devices::read(&DEVICES.as_bytes()[..end]), Err(CheckpointError::CutOff), "{end}");
    }
    for end in 0..DRA.len() {
        assert_eq!(dra::read(&DRA.as_bytes()[..end]), Err(CheckpointError::CutOff), "{end}");
    }
    assert_eq!(CheckpointError::CutOff.to_string(), "unexpected end of JSON input");
}

/// A digit that is another is found, wherever it stands.
#[test]
fn damage_is_found() {
    for (at, digit) in CPU.char_indices().filter(|(_, c)| c.is_ascii_digit()) {
        let mut file = CPU.to_owned();
        file.replace_range(at..=at, if digit == '7' { "8" } else { "7" });
        assert!(read_cpu(&file, "static").is_err(), "{file}");
    }
    for (at, digit) in MEMORY.char_indices().filter(|(_, c)| c.is_ascii_digit()) {
        let mut file = MEMORY.to_owned();
        file.replace_range(at..=at, if digit == '7' { "8" } else { "7" });
        assert!(memory::read(file.as_bytes(), "Static", false).is_err(), "{file}");
    }
    let file = DEVICES.replace("Dev-1\"]", "Dev-3\"]");
    assert_eq!(devices::read(file.as_bytes()), Err(CheckpointError::Corrupted));
    assert_eq!(dra::read(DRA.replace("[]", "[1]").as_bytes()), Err(CheckpointError::Corrupted));
}

/// Upstream's own table (`cpumanager/state/state_checkpoint_test.go`): version, what is refused, and why.
#[test]
fn cpu_versions() {
    let containers = |entries: &str| format!(r#"{{"policyName":"none","defaultCPUSet":"1-3",{entries}}}"#);
    let second = containers(r#""entries":{"pod":{"container1":"4-6","container2":"1-3"}},"checksum":3610638499"#);
    let first = containers(r#""entries":{"containerID1":"4-6","containerID2":"1-3"},"checksum":3680390589"#);
    let third = containers(
        r#""entries":{"pod":{"container1":"4-6","container2":"1-3"}},"podEntries":{"pod":{"cpuSet":"4-6"}},"checksum":2649431787"#,
    );
    let initial: BTreeMap<_, _> = [("containerID1", "container1"), ("containerID2", "container2")]
        .map(|(id, name)| (id.to_owned(), ("pod".to_owned(), name.to_owned())))
        .into();
    for gate in [false, true] {
        for file in [&first, &second] {
            let state = cpu::read(file.as_bytes(), "none", gate, &initial).unwrap();
            assert_eq!((state.get("pod", "container1"), &state.default), (Some(&set("4-6")), &set("1-3")));
            assert!(state.pods.is_empty());
        }
    }
    let state = cpu::read(third.as_bytes(), "none", true, &initial).unwrap();
    assert_eq!(state.pods["pod"], set("4-6"));
    // As it was read: the other letters of the name aside.
    assert_eq!(text(cpu::write("none", &state, true)), third.replace("defaultCPUSet", "defaultCpuSet"));
    // The gate is off again: upstream refuses too.
    assert_eq!(cpu::read(third.as_bytes(), "none", false, &initial), Err(CheckpointError::Corrupted));

    let unknown = cpu::read(first.as_bytes(), "none", false, &BTreeMap::new()).unwrap_err().to_string();
    assert_eq!(
        unknown,
        "failed to migrate checkpoint from v1 to v2: containerID 'containerID1' not found in initial containers list"
    );
    let table = [
        (r#"{"policyName":"none","defaultCPUSet":"4-6","entries":{},"checksum":354655845}"#, Ok("4-6")),
        (r#"{"policyName":"none","defaultCPUSet":"1-3","checksum":1694838852}"#, Ok("1-3")),
        (r#"{"policyName":"none","defaultCPUSet":"4-6"}"#, Ok("4-6")),
        (r#"{"policyName":"none","defaultCPUSet":"4-6","entries":{},"checksum":1337}"#, Err("checkpoint is corrupted")),
        ("{", Err("unexpected end of JSON input")),
        (
            r#"{"policyName":"other","defaultCPUSet":"1-3","entries":{},"checksum":1394507217}"#,
            Err(r#"configured policy "none" differs from state checkpoint policy "other""#),
        ),
        (
            r#"{"policyName":"none","defaultCPUSet":"1.3","entries":{},"checksum":3021697696}"#,
            Err(r#"could not parse default cpu set "1.3": strconv.Atoi: parsing "1.3": invalid syntax"#),
        ),
        (
            r#"{"policyName":"none","defaultCPUSet":"1-3","entries":{"pod":{"container1":"4-6","container2":"asd"}},"checksum":962272150}"#,
            Err(
                r#"could not parse cpuset "asd" for container "container2" in pod "pod": strconv.Atoi: parsing "asd": invalid syntax"#,
            ),
        ),
    ];
    for (file, wanted) in table {
        let found = read_cpu(file, "none").map(|state| state.default.to_string()).map_err(|error| error.to_string());
        assert_eq!(found.as_deref().map_err(String::as_str), wanted, "{file}");
    }
}

/// Upstream's own table (`memorymanager/state/state_checkpoint_test.go`).
#[test]
fn memory_versions() {
    let file = |rest: &str| {
        let machine = r#"{"0":{"numberOfAssignments":0,"memoryMap":{"memory":{"total":2048,"systemReserved":512,"allocatable":1536,"reserved":512,"free":1024}},"cells":[]}}"#;
        let entries = r#"{"pod":{"container1":[{"numaAffinity":[0],"type":"memory","size":512}]}}"#;
        format!(r#"{{"policyName":"static","machineState":{machine},"entries":{entries},{rest}}}"#)
    };
    let first = file(r#""checksum":4215593881"#);
    let second = file(
        r#""podEntries":{"pod":{"memoryBlocks":[{"numaAffinity":[0],"type":"memory","size":512}]}},"checksum":1278640530"#,
    );
    for gate in [false, true] {
        let state = memory::read(first.as_bytes(), "static", gate).unwrap();
        assert_eq!(state.get("pod", "container1").unwrap()[0].size, 512);
    }
    assert_eq!(text(memory::write("static", &memory::read(first.as_bytes(), "static", false).unwrap(), false)), first);
    let state = memory::read(second.as_bytes(), "static", true).unwrap();
    assert_eq!(state.pods["pod"][0].size, 512);
    assert_eq!(text(memory::write("static", &state, true)), second);
    assert_eq!(memory::read(second.as_bytes(), "static", false), Err(CheckpointError::Corrupted));
    let error = memory::read(first.as_bytes(), "None", false).unwrap_err().to_string();
    assert_eq!(error, r#"[memorymanager] configured policy "None" differs from state checkpoint policy "static""#);
    let damaged = file(r#""checksum":101010"#);
    assert_eq!(memory::read(damaged.as_bytes(), "static", false), Err(CheckpointError::Corrupted));
}

/// Go orders numbers as texts when it writes JSON, and as numbers for the checksum.
#[test]
fn more_than_ten_nodes() {
    let mut state = MemoryState::default();
    for node in [2, 10, 11] {
        state.machine.insert(node, Default::default());
    }
    let file = text(memory::write("Static", &state, false));
    let at = |node: &str| file.find(&format!("\"{node}\":{{\"numberOf")).unwrap();
    assert!(at("10") < at("11") && at("11") < at("2"), "{file}");
    assert_eq!(memory::read(file.as_bytes(), "Static", false), Ok(state));
}

proptest::proptest! {
    /// Nothing that a file may hold ends the process.
    #[test]
    fn anything_is_read(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200), cut in 0..600_usize, at in 0..600_usize) {
        let mut files = vec![bytes.clone()];
        for file in [CPU, MEMORY, DEVICES, DRA] {
            let mut file = file.as_bytes().to_vec();
            file.truncate(cut.max(20));
            let at = at % file.len();
            file.splice(at..at, bytes.iter().copied().take(3));
            files.push(file);
        }
        for file in files {
            let _ = (cpu::read(&file, "static", true, &BTreeMap::new()), memory::read(&file, "Static", true));
            let _ = (devices::read(&file), dra::read(&file));
        }
    }
}
