//! CPU and memory of containers.

use anyhow::{Context as _, Result, ensure};
use bulkhead_cri::v1;
use tonic::Code;

use super::subject::{Does, Subject};
use crate::code;

/// Of memory: more than a shell needs.
const MEMORY: i64 = 64 << 20;

fn cpu(shares: i64, quota: i64) -> v1::LinuxContainerResources {
    v1::LinuxContainerResources { cpu_shares: shares, cpu_quota: quota, cpu_period: 100_000, ..Default::default() }
}

fn memory(limit: i64) -> v1::LinuxContainerResources {
    v1::LinuxContainerResources { memory_limit_in_bytes: limit, ..Default::default() }
}

/// What a container is given it has: before its start, while it runs, and when it has ended; of what is not named it has what it had.
pub async fn what_a_container_is_given(subject: &Subject) -> Result<()> {
    let pod = subject.pod("sizes")?;
    let sandbox = pod.sandbox().await?;
    let container = pod.create(&sandbox, "main", 0, Does::Heeds).await?;
    let has = async |shares: i64, quota: i64, limit: i64| {
        let status = subject.status(&container).await?;
        // Older ones do not say.
        let Some(found) = status.resources.and_then(|resources| resources.linux) else { return Ok(()) };
        let what = (found.cpu_shares, found.cpu_quota, found.memory_limit_in_bytes);
        ensure!(what == (shares, quota, limit) && found.cpu_period == 100_000, "{found:?}");
        Ok(())
    };
    subject.give(&container, cpu(512, 50_000)).await?;
    subject.give(&container, memory(MEMORY)).await?;
    has(512, 50_000, MEMORY).await.context("before its start")?;
    subject.start(&container).await?;
    has(512, 50_000, MEMORY).await.context("when it runs")?;
    subject.give(&container, cpu(256, 0)).await?;
    has(256, 50_000, MEMORY).await.context("of no quota it keeps what it had")?;
    subject.give(&container, cpu(256, 40_000)).await?;
    subject.give(&container, memory(MEMORY / 2)).await?;
    subject.give(&container, memory(2 * MEMORY)).await?;
    has(256, 40_000, 2 * MEMORY).await.context("less and more while it runs")?;
    subject.stop(&container, 60).await?;
    subject.give(&container, cpu(128, 0)).await.context("when it has ended")?;
    has(128, 40_000, 2 * MEMORY).await.context("when it has ended")?;
    subject.remove(&container).await?;
    let gone = code(&subject.give(&container, cpu(512, 0)).await);
    ensure!(matches!(gone, Code::NotFound | Code::Unknown), "{gone:?}");
    subject.remove_sandbox(&sandbox).await?;
    Ok(())
}
