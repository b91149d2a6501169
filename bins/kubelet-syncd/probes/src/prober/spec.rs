//! What a probe of a pod's spec asks for, worked out once: rules, times, and the action with everything in it that does
//! not depend on the running pod. Pure.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kubelet_model::v1::Container;

use super::worker::{ProbeKind, Rules};
use kubelet_model::pod::expansion::expand;
use kubelet_model::pod::spec;

/// One probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeSpec {
    pub rules: Rules,
    pub period: Duration,
    pub timeout: Duration,
    pub action: Action,
}

/// What is done. Hosts are those of the spec; without one it is the pod's address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Exec {
        command: ExecCommand,
    },
    Http {
        https: bool,
        host: Option<String>,
        port: Result<u16, String>,
        path: String,
        headers: Vec<(String, String)>,
    },
    Tcp {
        host: Option<String>,
        port: Result<u16, String>,
    },
    Grpc {
        port: Result<u16, String>,
        service: String,
    },
    /// The spec names none that is known.
    None,
}

/// Bytes that a command with its variables put in may have: as many commands as run at a time are in memory.
const COMMAND_MAX: usize = 256 << 10;

/// A command as the spec has it, and the variables that it names. They are put in at each try, as upstream does it: a spec of some KiB
/// could make a command of many MiB, and what is kept for each probe of each pod is no larger than its spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecCommand {
    parts: Vec<String>,
    variables: BTreeMap<String, String>,
}

impl ExecCommand {
    /// Variables with a value of their own are put in; those from elsewhere count as empty (upstream
    /// `ExpandContainerCommandOnlyStatic`).
    fn of(container: &Container, command: &[String]) -> Self {
        let own = container.env.iter().flatten();
        let own: HashMap<&str, &str> =
            own.map(|variable| (variable.name.as_str(), variable.value.as_deref().unwrap_or_default())).collect();
        let mut variables = BTreeMap::new();
        for part in command {
            // Nothing is put in yet, so that the text grows no longer.
            _ = expand(part, part.len(), |name| {
                if let Some(value) = own.get(name) {
                    variables.insert(name.to_owned(), (*value).to_owned());
                }
                None
            });
        }
        ExecCommand { parts: command.to_vec(), variables }
    }

    /// The command as it runs.
    ///
    /// # Errors
    /// A text for the probe's outcome, where it would be too long.
    pub fn expanded(&self) -> Result<Vec<String>, String> {
        let mut left = COMMAND_MAX;
        let value_of = |name: &str| self.variables.get(name).map(String::as_bytes);
        let expanded = self.parts.iter().map(|part| {
            let bytes = expand(part, left, value_of).map_err(|_| {
                format!("argument list too long: the command of the probe has more than {COMMAND_MAX} bytes")
            })?;
            left -= bytes.len();
            // Text with text put in is text.
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        });
        expanded.collect()
    }
}

/// The container's probe of that kind.
pub fn probe_of(container: &Container, kind: ProbeKind) -> Option<&Probe> {
    match kind {
        ProbeKind::Startup => container.startup_probe.as_deref(),
        ProbeKind::Readiness => container.readiness_probe.as_deref(),
        ProbeKind::Liveness => container.liveness_probe.as_deref(),
    }
}

impl ProbeSpec {
    pub fn of(container: &Container, probe: &Probe) -> Self {
        let number = |value: Option<i32>, least: u32, default: u32| {
            value.filter(|v| *v != 0).map_or(default, |v| u32::try_from(v).unwrap_or(least)).max(least)
        };
        let seconds = |value: u32| Duration::from_secs(u64::from(value));
        ProbeSpec {
            rules: Rules {
                initial_delay: seconds(number(probe.initial_delay_seconds, 0, 0)),
                success_threshold: number(probe.success_threshold, 1, 1),
                failure_threshold: number(probe.failure_threshold, 1, 3),
            },
            period: seconds(number(probe.period_seconds, 1, 10)),
            timeout: seconds(number(probe.timeout_seconds, 1, 1)),
            action: action(container, probe),
        }
    }
}

impl Action {
    /// Nothing can be asked before the pod's address is known.
    pub fn needs_ip(&self) -> bool {
        match self {
            Action::Http { host, .. } | Action::Tcp { host, .. } => host.is_none(),
            Action::Grpc { .. } => true,
            Action::Exec { .. } | Action::None => false,
        }
    }
}

fn action(container: &Container, probe: &Probe) -> Action {
    let host = |host: &Option<String>| host.clone().filter(|host| !host.is_empty());
    // An error is told at each try.
    let port = |port: &IntOrString| spec::port_number(port, container.ports.as_deref().unwrap_or_default());
    if let Some(exec) = &probe.exec {
        return Action::Exec { command: ExecCommand::of(container, exec.command.as_deref().unwrap_or_default()) };
    }
    if let Some(http) = &probe.http_get {
        return Action::Http {
            https: http.scheme.as_deref().is_some_and(|scheme| scheme.eq_ignore_ascii_case("https")),
            host: host(&http.host),
            port: port(&http.port),
            path: http.path.clone().unwrap_or_default(),
            headers: http.http_headers.iter().flatten().map(|h| (h.name.clone(), h.value.clone())).collect(),
        };
    }
    if let Some(tcp) = &probe.tcp_socket {
        return Action::Tcp { host: host(&tcp.host), port: port(&tcp.port) };
    }
    match &probe.grpc {
        Some(grpc) => {
            Action::Grpc { port: port(&IntOrString::Int(grpc.port)), service: grpc.service.clone().unwrap_or_default() }
        }
        None => Action::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(probe: serde_json::Value) -> ProbeSpec {
        let container = serde_json::json!({"name": "c", "readinessProbe": probe,
            "ports": [{"containerPort": 80}, {"name": "web", "containerPort": 8080}],
            "env": [{"name": "A", "value": "old"}, {"name": "A", "value": "new"},
                    {"name": "F", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]});
        let container: Container = serde_json::from_value(container).unwrap();
        ProbeSpec::of(&container, probe_of(&container, ProbeKind::Readiness).unwrap())
    }

    #[test]
    fn numbers_and_their_defaults() {
        let plain = spec(serde_json::json!({"tcpSocket": {"port": 1}}));
        assert_eq!((plain.period, plain.timeout), (Duration::from_secs(10), Duration::from_secs(1)));
        let rules = Rules { initial_delay: Duration::ZERO, success_threshold: 1, failure_threshold: 3 };
        assert_eq!(plain.rules, rules);
        let odd = spec(serde_json::json!({"tcpSocket": {"port": 1}, "periodSeconds": -4, "timeoutSeconds": 7,
            "initialDelaySeconds": 2, "failureThreshold": 1, "successThreshold": 2}));
        assert_eq!((odd.period, odd.timeout), (Duration::from_secs(1), Duration::from_secs(7)));
        let rules = Rules { initial_delay: Duration::from_secs(2), success_threshold: 2, failure_threshold: 1 };
        assert_eq!(odd.rules, rules);
    }

    #[test]
    fn who_needs_the_pods_address() {
        let cases = [
            (serde_json::json!({"exec": {"command": ["a"]}}), false),
            (serde_json::json!({"httpGet": {"port": 80}}), true),
            (serde_json::json!({"httpGet": {"port": 80, "host": ""}}), true),
            (serde_json::json!({"httpGet": {"port": 80, "host": "127.0.0.1"}}), false),
            (serde_json::json!({"tcpSocket": {"port": 80}}), true),
            (serde_json::json!({"tcpSocket": {"port": 80, "host": "10.0.0.1"}}), false),
            (serde_json::json!({"grpc": {"port": 80}}), true),
            (serde_json::json!({}), false),
        ];
        for (probe, expected) in cases {
            assert_eq!(spec(probe.clone()).action.needs_ip(), expected, "{probe}");
        }
    }

    #[test]
    fn actions() {
        let exec = |command: serde_json::Value| match spec(serde_json::json!({"exec": {"command": command}})).action {
            Action::Exec { command } => command,
            other => panic!("{other:?}"),
        };
        let command = exec(serde_json::json!(["a", "$(A)", "$(F)x", "$(NO)", "$$(A)"]));
        assert_eq!(command.expanded(), Ok(["a", "new", "x", "$(NO)", "$(A)"].map(str::to_owned).to_vec()));
        assert_eq!(command.variables.keys().collect::<Vec<_>>(), ["A", "F"]);
        let long = |references: usize| exec(serde_json::json!(["$(A)".repeat(references), "$(A)"])).expanded();
        // "new" is three bytes.
        assert_eq!(long(COMMAND_MAX / 3 - 1).map(|parts| parts.concat().len()), Ok(COMMAND_MAX / 3 * 3));
        let too_long = "argument list too long: the command of the probe has more than 262144 bytes";
        assert_eq!(long(COMMAND_MAX / 3), Err(too_long.to_owned()));
        for (port, number) in [
            (serde_json::json!("web"), Ok(8080)),
            (serde_json::json!("81"), Ok(81)),
            (serde_json::json!(82), Ok(82)),
            (serde_json::json!("no"), Err("strconv.Atoi: parsing \"no\": invalid syntax".to_owned())),
            (serde_json::json!(0), Err("invalid port number: 0".to_owned())),
            (serde_json::json!(65_536), Err("invalid port number: 65536".to_owned())),
        ] {
            let action = spec(serde_json::json!({"tcpSocket": {"port": port, "host": ""}})).action;
            assert_eq!(action, Action::Tcp { host: None, port: number }, "{port}");
        }
        let http = serde_json::json!({"httpGet": {"port": "web", "host": "h", "scheme": "HTTPS", "path": "/x?y",
            "httpHeaders": [{"name": "A", "value": "b"}]}});
        let expected = Action::Http {
            https: true,
            host: Some("h".to_owned()),
            port: Ok(8080),
            path: "/x?y".to_owned(),
            headers: vec![("A".to_owned(), "b".to_owned())],
        };
        assert_eq!(spec(http).action, expected);
        let grpc = spec(serde_json::json!({"grpc": {"port": 5000}})).action;
        assert_eq!(grpc, Action::Grpc { port: Ok(5000), service: String::new() });
        assert_eq!(spec(serde_json::json!({})).action, Action::None);
    }
}
