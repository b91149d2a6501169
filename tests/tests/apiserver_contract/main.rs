//! What every API server that our tests use must do: the same suite runs against the stand-in of the test kit and, where
//! `$KUBEBUILDER_ASSETS` names its programs, against a real control plane, in the same run. What is known to differ
//! stands in the stand-in's README (`shared/apiserver/README.md`). Where a server's inside has to be seen,
//! the test is about the stand-in alone and says so.

mod access;
mod deletion;
mod forms;
mod objects;
mod watches;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bulkhead_testkit::Cluster;
use bulkhead_testkit::apiserver::authority::node_request;
use bulkhead_testkit::apiserver::{Approval, Config};
use bulkhead_testkit::cluster::Storage;
use bulkhead_testkit::cluster::client::{Answer, Client, Credential};
use bulkhead_testkit::skip::{Lack, skip_this_test};
use bulkhead_testkit::wait::{LONG, SHORT};
use serde_json::{Value, json};

/// Which server is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Server {
    StandIn,
    Real,
}

/// Each test twice.
macro_rules! contract {
    ($($module:ident: $($test:ident),+;)+) => {
        mod stand_in {
            use super::Result;
            $($(#[test]
            fn $test() -> Result<()> {
                super::on_stand_in(concat!(stringify!($module), "::", stringify!($test)), super::$module::$test)
            })+)+
        }

        mod real {
            use super::{Lack, Result, Server, Storage, skip_this_test};
            $($(#[test]
            fn $test() -> Result<()> {
                if !Storage::Etcd.is_there() {
                    return skip_this_test(Lack::ControlPlane);
                }
                super::$module::$test(Server::Real)
            })+)+
        }
    };
}

contract! {
    access:
        a_node_reads_what_its_pods_name_and_nothing_else,
        a_node_writes_its_own_objects_and_nothing_else,
        tokens_are_issued_for_pods_of_the_node_and_recognised,
        access_reviews_and_strangers,
        signing_requests_are_approved_and_signed,
        an_expired_certificate_is_unauthorized,
        the_authorizer_knows_soon_after_the_watch_tells;
    deletion:
        a_pod_ends_in_two_steps,
        objects_without_finalizers_go_at_once;
    forms:
        only_what_both_sides_understand_is_spoken,
        a_pod_is_the_same_bytes_from_the_server_and_from_us;
    objects:
        a_pod_is_stored_as_the_real_server_completes_it,
        refusals_are_worded_and_typed,
        writes_are_guarded_by_version_and_uid,
        every_patch_type,
        a_status_and_a_specification_are_written_apart,
        a_resize_changes_cpu_and_memory_and_nothing_else,
        containers_for_debugging_are_added_and_stay,
        recorded_pods_are_completed_as_the_recorded_server_did,
        bodies_are_decoded_by_their_types,
        empty_fields_are_left_out_and_times_have_their_form,
        managers_of_fields_are_noted;
    watches:
        lists_select_and_page,
        a_watch_tells_every_change_from_where_it_was_asked_to,
        a_watch_follows_its_selector,
        initial_events_end_with_a_bookmark,
        a_version_of_zero_is_whatever_is_at_hand;
}

/// The stand-in's README names the tests that it is known to fail, which then must fail: what no longer differs is struck out.
fn on_stand_in(name: &str, test: fn(Server) -> Result<()>) -> Result<()> {
    const KNOWN: &str = include_str!("../../../shared/apiserver/README.md");
    if !KNOWN.contains(&format!("| `{name}` |")) {
        return test(Server::StandIn);
    }
    let passed = std::panic::catch_unwind(|| test(Server::StandIn)).is_ok_and(|done| done.is_ok());
    ensure!(!passed, "{name} is no longer different: strike it out of the stand-in's README");
    Ok(())
}

/// A server with a folder of its own; both go at the end.
struct Place {
    folder: std::path::PathBuf,
    cluster: Option<Cluster>,
}

impl Place {
    fn new(name: &str, server: Server) -> Result<Self> {
        Self::with(name, Config { scheduler: false, ..Config::default() }, server)
    }

    fn with(name: &str, config: Config, server: Server) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("bulkhead-contract-{name}-{server:?}-{}", std::process::id()));
        let cluster = match server {
            Server::StandIn => Cluster::stand_in(&folder, config),
            Server::Real => Cluster::start(&folder, config),
        };
        // The folder belongs to the place before anything can go wrong in it.
        let mut place = Self { folder, cluster: None };
        place.cluster = Some(cluster?);
        assert_eq!(place.is_stand_in(), server == Server::StandIn);
        Ok(place)
    }
}

impl std::ops::Deref for Place {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        self.cluster.as_ref().expect("the cluster lives as long as its place")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.cluster = None;
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

const PODS: &str = "/api/v1/namespaces/default/pods";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn pod(name: &str, node: &str) -> Value {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
        "spec": {"containers": [{"name": "main", "image": "registry.test/busybox:1"}], "terminationGracePeriodSeconds": 30},
    });
    if !node.is_empty() {
        pod["spec"]["nodeName"] = json!(node);
    }
    pod
}

fn map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}, "data": {"k": value}})
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[track_caller]
fn refused(answer: &Answer, code: u16, reason: &str) -> String {
    let body = answer.json();
    assert_eq!((answer.status, body["reason"].as_str()), (code, Some(reason)), "{body}");
    assert_eq!(
        (body["kind"].as_str(), body["status"].as_str(), body["code"].as_u64()),
        (Some("Status"), Some("Failure"), Some(u64::from(code)))
    );
    body["message"].as_str().unwrap_or_default().to_owned()
}
