//! Image pulls against a real registry that asks for a password.

use anyhow::Result;
use bulkhead_testkit::Lab;
use bulkhead_tests::lab;
use bulkhead_tests::registry::Registry;

fn registry() -> Result<Option<(Lab, Registry)>> {
    let Some(lab) = lab()? else { return Ok(None) };
    let registry = Registry::start(&lab)?;
    Ok(Some((lab, registry)))
}

#[test]
fn smoke() -> Result<()> {
    let Some((lab, registry)) = registry()? else { return Ok(()) };
    let list = lab.containerd().ctr(&["images", "ls"])?;
    anyhow::ensure!(!list.contains(&registry.image()), "{list}");
    Ok(())
}
