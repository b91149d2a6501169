//! Stands in for the image `agnhost` of Kubernetes' own tests: those of its commands that recorded pods, probes and hooks
//! ask for, with the same flags, ports and paths.
//!
//! * `netexec [--http-port 8080] [--tls-cert-file F --tls-private-key-file F] [--delay-shutdown S]`: `/`, `/clientip`,
//!   `/echo?msg=&code=`, `/exit?code=&wait=`, `/header?key=`, `/healthz`, `/hostname`, `/readyz`,
//!   `/redirect?location=&code=`, `/shell?cmd=`, `/shutdown`; a SIGTERM ends it with 0 after the delay.
//! * `liveness`: port 8080; `/healthz` is well for ten seconds and 500 from then on, `/redirect?loc=`, `/started`.
//! * `test-webserver [--port 80]`: 200 for every path.
//! * `grpc-health-checking [--port 5000] [--http-port 8080] [--service ""] [--delay-unhealthy-sec -1]`: the health
//!   protocol; `/make-serving` and `/make-not-serving` on the HTTP port. A SIGTERM ends it with 143.
//! * `stress [--mem-total 0] [--mem-alloc-size 4Ki] [--mem-alloc-sleep 1ms]`: takes memory; a SIGTERM ends it with 0, after
//!   `END_AFTER_MS` milliseconds in which it goes on, and it says when that came.
//! * `pause`: waits for a signal.
//!
//! Each request is a line on standard output: method, path with query, headers as JSON.
//! A server takes connections `LISTEN_AFTER_MS` milliseconds after its start: a recorded pod's first probe came too early.

mod health;
mod stress;
mod web;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Arg, ArgMatches, Command};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

const LISTEN_AFTER: &str = "LISTEN_AFTER_MS";

fn main() -> ExitCode {
    let done = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting tokio")
        .and_then(|tasks| tasks.block_on(run(&command().get_matches())));
    match done {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("agnhost: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn command() -> Command {
    let flag = |name: &'static str, default: &'static str| Arg::new(name).long(name).default_value(default);
    let port = |name: &'static str, default: &'static str| flag(name, default).value_parser(clap::value_parser!(u16));
    let seconds = |name: &'static str, default: &'static str| {
        flag(name, default).value_parser(clap::value_parser!(i64)).allow_negative_numbers(true)
    };
    Command::new("agnhost")
        .subcommand_required(true)
        .subcommand(
            Command::new("netexec")
                .arg(port("http-port", "8080"))
                .arg(seconds("udp-port", "8081"))
                .arg(flag("tls-cert-file", ""))
                .arg(flag("tls-private-key-file", ""))
                .arg(seconds("delay-shutdown", "0")),
        )
        .subcommand(Command::new("liveness"))
        .subcommand(Command::new("test-webserver").arg(port("port", "80")))
        .subcommand(
            Command::new("grpc-health-checking")
                .arg(port("port", "5000"))
                .arg(port("http-port", "8080"))
                .arg(flag("service", ""))
                .arg(seconds("delay-unhealthy-sec", "-1")),
        )
        .subcommand(
            Command::new("stress")
                .arg(flag("mem-total", "0"))
                .arg(flag("mem-alloc-size", "4Ki"))
                .arg(flag("mem-alloc-sleep", "1ms")),
        )
        .subcommand(Command::new("pause"))
}

/// Serves until it is told to end, and with which code.
async fn run(matches: &ArgMatches) -> Result<u8> {
    let (name, matches) = matches.subcommand().context("which command?")?;
    let port = |name: &str| matches.get_one::<u16>(name).copied().unwrap_or_default();
    let text = |name: &str| matches.get_one::<String>(name).map(String::as_str).unwrap_or_default();
    let seconds = |name: &str| matches.get_one::<i64>(name).copied().unwrap_or_default();
    let mut term = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let (ending, ended) = tokio::sync::mpsc::channel(1);
    let mut site = web::Site::new(ending);
    let (code, delay) = match name {
        "netexec" => {
            site.tls = web::tls(text("tls-cert-file"), text("tls-private-key-file"))?;
            serve(web::serve(port("http-port"), site, web::netexec));
            (0, seconds("delay-shutdown"))
        }
        "liveness" => {
            serve(web::serve(8080, site, web::liveness));
            (143, 0)
        }
        "test-webserver" => {
            serve(web::serve(port("port"), site, web::anything));
            (143, 0)
        }
        "grpc-health-checking" => {
            let health = health::Health::new(text("service"), seconds("delay-unhealthy-sec"), site.forced.clone());
            serve(web::serve(port("http-port"), site, web::switch));
            serve(health::serve(port("port"), health));
            (143, 0)
        }
        "stress" => {
            let taking = stress::take(stress::Plan::of(matches)?);
            tokio::pin!(taking);
            tokio::select! {
                () = &mut taking => {}
                _ = term.recv() => {}
            }
            stress::say_end();
            // Until its end it goes on.
            let _ = tokio::time::timeout(stress::end_after(), taking).await;
            return Ok(0);
        }
        _ => {
            println!("Paused");
            (0, 0)
        }
    };
    let mut ended = ended;
    tokio::select! {
        _ = term.recv() => {
            tokio::time::sleep(Duration::from_secs(delay.unsigned_abs())).await;
            Ok(code)
        }
        // Never none: the site that can send it is served as long as this runs, and `pause` has none.
        Some(code) = ended.recv() => Ok(code),
    }
}

/// A server that cannot serve ends the program: its container is to fail, not to wait.
fn serve(server: impl Future<Output = Result<()>> + 'static + Send) {
    tokio::spawn(async move {
        if let Err(error) = server.await {
            eprintln!("agnhost: {error:#}");
            std::process::abort();
        }
    });
}

async fn listen(port: u16) -> Result<TcpListener> {
    let pause = std::env::var(LISTEN_AFTER).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    tokio::time::sleep(Duration::from_millis(pause)).await;
    // Where the pod has no IPv6, the address of all of IPv4.
    let all = [SocketAddr::from(([0_u16; 8], port)), SocketAddr::from(([0_u8; 4], port))];
    TcpListener::bind(&all[..]).await.with_context(|| format!("listening on port {port}"))
}
