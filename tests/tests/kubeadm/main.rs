//! What kubeadm writes for a kubelet and expects of it, tried in kubeadm's own order on a machine with systemd, with the package
//! installed and kubeadm's drop-in beside it: init, kubelet-finalize, an upgrade, reset, join. The list is docs/kubeadm.md.

mod steps {
    pub mod host;
    pub mod init;
    pub mod join;
    pub mod reset;
}

use anyhow::Result;
use bulkhead_testkit::apiserver::Config;
use bulkhead_testkit::systemd::Machine;
use bulkhead_tests::checklist::Checklist;
use bulkhead_tests::systemd_machine;

use steps::host::Host;
use steps::{init, join, reset};

#[test]
fn a_node_from_init_to_reset_and_join() -> Result<()> {
    let Some(builder) = systemd_machine()? else { return Ok(()) };
    let mut list = Checklist::of("docs/kubeadm.md", file!())?;
    let machine = Machine::boot(builder)?;
    let cluster = machine.stand_in(Config::default())?;
    let host = Host { machine, cluster };
    host.install()?;

    init::before(&host, &mut list);
    host.cluster.stop()?;
    init::without_a_cluster(&host, &mut list)?;
    host.cluster.resume()?;
    init::with_a_cluster(&host, &mut list)?;
    init::finalize(&host, &mut list)?;
    init::upgrade(&host, &mut list)?;
    init::another_config(&host, &mut list)?;
    init::flags(&host, &mut list)?;
    init::under_the_kubernetes_unit(&host, &mut list)?;
    reset::reset(&host, &mut list)?;
    join::join(&host, &mut list)?;

    let result = list.finish();
    drop(host.cluster);
    result.and(host.machine.finish())
}
