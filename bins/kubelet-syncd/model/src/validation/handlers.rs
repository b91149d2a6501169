//! Probes and lifecycle hooks.

use crate::v1::{Container, PodSpec};
use k8s_openapi::api::core::v1::{
    ExecAction, GRPCAction, HTTPGetAction, Lifecycle, LifecycleHandler, Probe, SleepAction, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::field::{Errors, Path, items, text};
use super::names;

/// The kinds of action that probes and hooks have between them.
#[derive(Default)]
struct Handler<'a> {
    exec: Option<&'a ExecAction>,
    http_get: Option<&'a HTTPGetAction>,
    tcp_socket: Option<&'a TCPSocketAction>,
    grpc: Option<&'a GRPCAction>,
    sleep: Option<&'a SleepAction>,
}

pub fn container_probes(container: &Container, path: &Path, errors: &mut Errors) {
    if let Some(liveness) = &container.liveness_probe {
        let path = path.child("livenessProbe");
        probe(liveness, &path, errors);
        single_success(liveness, &path, errors);
    }
    if let Some(readiness) = &container.readiness_probe {
        let path = path.child("readinessProbe");
        probe(readiness, &path, errors);
        if let Some(grace) = readiness.termination_grace_period_seconds {
            errors.invalid(&path.child("terminationGracePeriodSeconds"), grace, "must not be set for readinessProbes");
        }
    }
    if let Some(startup) = &container.startup_probe {
        let path = path.child("startupProbe");
        probe(startup, &path, errors);
        single_success(startup, &path, errors);
    }
}

fn single_success(probe: &Probe, path: &Path, errors: &mut Errors) {
    let threshold = probe.success_threshold.unwrap_or(0);
    if threshold != 1 {
        errors.invalid(&path.child("successThreshold"), threshold, "must be 1");
    }
}

fn probe(probe: &Probe, path: &Path, errors: &mut Errors) {
    let handler = Handler {
        exec: probe.exec.as_ref(),
        http_get: probe.http_get.as_ref(),
        tcp_socket: probe.tcp_socket.as_ref(),
        grpc: probe.grpc.as_ref(),
        sleep: None,
    };
    validate_handler(&handler, None, path, errors);
    for (field, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        if let Some(value) = value.filter(|v| *v < 0) {
            errors.invalid(&path.child(field), value, "must be greater than or equal to 0");
        }
    }
    if let Some(grace) = probe.termination_grace_period_seconds.filter(|g| *g <= 0) {
        errors.invalid(&path.child("terminationGracePeriodSeconds"), grace, "must be greater than 0");
    }
}

pub fn lifecycle(lifecycle: &Lifecycle, spec: &PodSpec, path: &Path, errors: &mut Errors) {
    let grace = spec.termination_grace_period_seconds;
    for (field, hook) in [("postStart", &lifecycle.post_start), ("preStop", &lifecycle.pre_stop)] {
        let Some(LifecycleHandler { exec, http_get, sleep, tcp_socket }) = hook else { continue };
        let handler = Handler {
            exec: exec.as_ref(),
            http_get: http_get.as_ref(),
            tcp_socket: tcp_socket.as_ref(),
            grpc: None,
            sleep: sleep.as_ref(),
        };
        validate_handler(&handler, grace, &path.child(field), errors);
    }
    if let Some(signal) = &lifecycle.stop_signal {
        stop_signal(signal, spec, &path.child("stopSignal"), errors);
    }
}

fn validate_handler(handler: &Handler<'_>, grace: Option<i64>, path: &Path, errors: &mut Errors) {
    let mut count = 0;
    // The first kind is checked, each further one refused.
    let mut first = |field: &str, set: bool, errors: &mut Errors| -> Option<Path> {
        if !set {
            return None;
        }
        count += 1;
        if count == 1 {
            return Some(path.child(field));
        }
        errors.forbidden(&path.child(field), "may not specify more than 1 handler type");
        None
    };
    if let Some(path) = first("exec", handler.exec.is_some(), errors)
        && handler.exec.is_some_and(|e| items(&e.command).is_empty())
    {
        errors.required(&path.child("command"), "");
    }
    if let Some(path) = first("httpGet", handler.http_get.is_some(), errors)
        && let Some(http) = handler.http_get
    {
        http_get(http, &path, errors);
    }
    if let Some(path) = first("tcpSocket", handler.tcp_socket.is_some(), errors)
        && let Some(tcp) = handler.tcp_socket
    {
        port(&tcp.port, &path.child("port"), errors);
    }
    if let Some(path) = first("grpc", handler.grpc.is_some(), errors)
        && let Some(grpc) = handler.grpc
    {
        port(&IntOrString::Int(grpc.port), &path.child("port"), errors);
    }
    if let Some(path) = first("sleep", handler.sleep.is_some(), errors)
        && let (Some(sleep), Some(grace)) = (handler.sleep, grace)
        && (sleep.seconds < 0 || sleep.seconds > grace)
    {
        let why = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
        errors.invalid(&path, sleep.seconds, &why);
    }
    if count == 0 {
        errors.required(path, "must specify a handler type");
    }
}

fn http_get(http: &HTTPGetAction, path: &Path, errors: &mut Errors) {
    errors.require(&path.child("path"), text(&http.path));
    port(&http.port, &path.child("port"), errors);
    errors.one_of(&path.child("scheme"), text(&http.scheme), &["HTTP", "HTTPS"]);
    for header in items(&http.http_headers) {
        errors.invalid_each(&path.child("httpHeaders"), &header.name[..], names::http_header(&header.name));
    }
}

fn port(port: &IntOrString, path: &Path, errors: &mut Errors) {
    match port {
        IntOrString::Int(number) => errors.invalid_each(path, *number, names::port_number((*number).into())),
        IntOrString::String(name) => errors.invalid_each(path, name, names::port_name(name)),
    }
}

fn stop_signal(signal: &str, spec: &PodSpec, path: &Path, errors: &mut Errors) {
    match spec.os.as_ref().map(|os| os.name.as_str()) {
        None => errors.forbidden(path, "may not be set for containers with empty `spec.os.name`"),
        Some("windows") => errors.one_of(path, signal, &["SIGKILL", "SIGTERM"]),
        Some("linux") if !is_linux_signal(signal) => {
            let all: Vec<String> = linux_signals();
            let all: Vec<&str> = all.iter().map(String::as_str).collect();
            errors.not_supported(path, signal, &all);
        }
        Some(_) => {}
    }
}

const SIGNALS: [&str; 36] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGRTMIN",
    "SIGRTMAX",
];

fn linux_signals() -> Vec<String> {
    let mut all: Vec<String> = SIGNALS.iter().map(|s| (*s).to_owned()).collect();
    all.extend((1..=15).map(|n| format!("SIGRTMIN+{n}")));
    all.extend((1..=14).map(|n| format!("SIGRTMAX-{n}")));
    all.sort();
    all
}

fn is_linux_signal(signal: &str) -> bool {
    linux_signals().iter().any(|s| s == signal)
}
