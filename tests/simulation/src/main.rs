//! `cargo xtask simulate`.
fn main() -> anyhow::Result<()> {
    let seed = std::env::args().nth(1).and_then(|s| s.parse().ok()).unwrap_or(1);
    if std::env::var_os("SIM_LOG").is_some() { bulkhead_daemon::logging::start(bulkhead_daemon::logging::LogFormat::Text, 4, None); }
    let outcome = bulkhead_simulation::outcome::of(&bulkhead_simulation::schedule::Schedule::of(seed))?;
    for line in &outcome.story { println!("{line}"); }
    for line in &outcome.picture { println!("{line}"); }
    println!("{}", outcome.coverage.table());
    println!("{:?} lives {} turns {}", outcome.broken, outcome.lives, outcome.turns);
    Ok(())
}
