//! The wire format, against bytes put together by hand from the published field numbers.

use bulkhead_cri::v1;
use prost::Message;

fn field(number: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = varint(u64::from(number << 3 | 2));
    bytes.extend(varint(content.len() as u64));
    bytes.extend_from_slice(content);
    bytes
}

fn number(number: u32, value: u64) -> Vec<u8> {
    let mut bytes = varint(u64::from(number << 3));
    bytes.extend(varint(value));
    bytes
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

#[track_caller]
fn check<M: Message + Default + PartialEq + std::fmt::Debug>(message: M, bytes: Vec<u8>) {
    assert_eq!(message.encode_to_vec(), bytes);
    assert_eq!(M::decode(bytes.as_slice()).unwrap(), message);
}

#[test]
fn image_spec_has_numbers_in_the_upper_teens() {
    check(
        v1::ImageSpec {
            image: "i".into(),
            user_specified_image: "u".into(),
            runtime_handler: "r".into(),
            image_ref: "f".into(),
            ..Default::default()
        },
        [field(1, b"i"), field(18, b"u"), field(19, b"r"), field(20, b"f")].concat(),
    );
}

#[test]
fn sandbox_security_context() {
    let user = |value| Some(v1::Int64Value { value });
    check(
        v1::LinuxSandboxSecurityContext {
            namespace_options: Some(v1::NamespaceOption {
                network: v1::NamespaceMode::Node as i32,
                userns_options: Some(v1::UserNamespace {
                    mode: v1::NamespaceMode::Pod as i32,
                    uids: vec![v1::IdMapping { host_id: 65536, container_id: 0, length: 65536 }],
                    gids: vec![],
                }),
                ..Default::default()
            }),
            run_as_user: user(7),
            run_as_group: user(8),
            seccomp: Some(v1::SecurityProfile {
                profile_type: v1::security_profile::ProfileType::Localhost as i32,
                localhost_ref: "p".into(),
            }),
            supplemental_groups_policy: v1::SupplementalGroupsPolicy::Strict as i32,
            ..Default::default()
        },
        [
            field(1, &[number(1, 2), field(5, &field(2, &[number(1, 65536), number(3, 65536)].concat()))].concat()),
            field(3, &number(1, 7)),
            field(8, &number(1, 8)),
            field(9, &[number(1, 2), field(2, b"p")].concat()),
            number(11, 1),
        ]
        .concat(),
    );
}

#[test]
fn container_config() {
    check(
        v1::ContainerConfig {
            envs: vec![v1::KeyValue { key: "K".into(), value: b"V".to_vec() }],
            mounts: vec![v1::Mount {
                container_path: "/c".into(),
                host_path: "/h".into(),
                readonly: true,
                propagation: v1::MountPropagation::PropagationBidirectional as i32,
                recursive_read_only: true,
                image_sub_path: "s".into(),
                ..Default::default()
            }],
            log_path: "main/0.log".into(),
            tty: true,
            linux: Some(v1::LinuxContainerConfig {
                resources: Some(v1::LinuxContainerResources {
                    cpu_shares: 2,
                    oom_score_adj: -997,
                    memory_swap_limit_in_bytes: 5,
                    ..Default::default()
                }),
                security_context: Some(v1::LinuxContainerSecurityContext {
                    no_new_privs: true,
                    masked_paths: vec!["/m".into()],
                    apparmor: Some(v1::SecurityProfile::default()),
                    ..Default::default()
                }),
            }),
            cdi_devices: vec![v1::CdiDevice { name: "v/c=d".into() }],
            stop_signal: v1::Signal::Sigusr1 as i32,
            ..Default::default()
        },
        [
            field(6, &[field(1, b"K"), field(2, b"V")].concat()),
            field(
                7,
                &[field(1, b"/c"), field(2, b"/h"), number(3, 1), number(5, 2), number(8, 1), field(10, b"s")].concat(),
            ),
            field(11, b"main/0.log"),
            number(14, 1),
            field(
                15,
                &[
                    field(1, &[number(3, 2), number(5, (-997i64) as u64), number(10, 5)].concat()),
                    field(2, &[number(11, 1), field(13, b"/m"), field(16, b"")].concat()),
                ]
                .concat(),
            ),
            field(17, &field(1, b"v/c=d")),
            number(18, 29),
        ]
        .concat(),
    );
}

#[test]
fn statuses_and_what_is_new_in_them() {
    check(
        v1::ContainerStatus {
            id: "c".into(),
            state: v1::ContainerState::ContainerExited as i32,
            finished_at: 9,
            exit_code: -1,
            image_id: "sha".into(),
            user: Some(v1::ContainerUser {
                linux: Some(v1::LinuxContainerUser { uid: 1, gid: 2, supplemental_groups: vec![3] }),
            }),
            stop_signal: v1::Signal::Sigrtmax as i32,
            ..Default::default()
        },
        [
            field(1, b"c"),
            number(3, 2),
            number(6, 9),
            number(7, u64::MAX),
            field(17, b"sha"),
            field(18, &field(1, &[number(1, 1), number(2, 2), field(3, &[3])].concat())),
            number(19, 65),
        ]
        .concat(),
    );
    check(
        v1::StatusResponse {
            runtime_handlers: vec![v1::RuntimeHandler {
                name: "runc".into(),
                features: Some(v1::RuntimeHandlerFeatures { recursive_read_only_mounts: true, user_namespaces: true }),
            }],
            features: Some(v1::RuntimeFeatures {
                supplemental_groups_policy: true,
                user_namespaces_host_network: true,
            }),
            ..Default::default()
        },
        [
            field(3, &[field(1, b"runc"), field(2, &[number(1, 1), number(2, 1)].concat())].concat()),
            field(4, &[number(1, 1), number(2, 1)].concat()),
        ]
        .concat(),
    );
}

/// One request and one part of each list that is streamed: the filter and the items are field 1.
#[test]
fn streamed_lists() {
    check(
        v1::StreamContainersRequest {
            filter: Some(v1::ContainerFilter { id: "c".into(), pod_sandbox_id: "s".into(), ..Default::default() }),
        },
        field(1, &[field(1, b"c"), field(3, b"s")].concat()),
    );
    let part = field(1, &field(1, b"x"));
    let sandbox = v1::PodSandbox { id: "x".into(), ..Default::default() };
    check(v1::StreamPodSandboxesResponse { pod_sandboxes: vec![sandbox] }, part.clone());
    let container = v1::Container { id: "x".into(), ..Default::default() };
    check(v1::StreamContainersResponse { containers: vec![container] }, part.clone());
    let image = v1::Image { id: "x".into(), ..Default::default() };
    check(v1::StreamImagesResponse { images: vec![image] }, part);
    let part = field(1, &field(1, &field(1, b"x")));
    let attributes = v1::ContainerAttributes { id: "x".into(), ..Default::default() };
    let stats = v1::ContainerStats { attributes: Some(attributes), ..Default::default() };
    check(v1::StreamContainerStatsResponse { container_stats: vec![stats] }, part.clone());
    let attributes = v1::PodSandboxAttributes { id: "x".into(), ..Default::default() };
    let stats = v1::PodSandboxStats { attributes: Some(attributes), ..Default::default() };
    check(v1::StreamPodSandboxStatsResponse { pod_sandbox_stats: vec![stats] }, part);
}

#[test]
fn fields_of_a_newer_runtime_are_passed_over() {
    let bytes = [field(1, b"sandbox"), number(77, 1), field(78, b"new")].concat();
    let response = v1::RunPodSandboxResponse::decode(bytes.as_slice()).unwrap();
    assert_eq!(response.pod_sandbox_id, "sandbox");
}
