//! kubeadm itself, unchanged, on two machines with systemd and our package: is what it makes with our kubelet a cluster, from
//! init and join over an upgrade, new certificates and reboots to reset? What it relies on, line by line, is `kubeadm/main.rs`.

mod hosts;
mod left;
mod steps;

use anyhow::Result;
use bulkhead_testkit::skip::{Lack, skip_this_test};
use bulkhead_testkit::{kubernetes_images, machine};
use bulkhead_tests::checklist::Checklist;

use hosts::Hosts;

#[test]
fn a_cluster_of_two_machines_from_init_to_reset() -> Result<()> {
    if !machine::is_root() {
        return skip_this_test(Lack::Root);
    }
    let Some(programs) = kubernetes_images::programs() else { return skip_this_test(Lack::ControlPlane) };
    let mut list = Checklist::of("docs/kubeadm.md", file!())?;
    let mut hosts = Hosts::boot(&programs)?;
    hosts.install()?;
    let before = [left::State::of(&hosts.first)?, left::State::of(&hosts.second)?];

    steps::init_and_join(&hosts, &mut list)?;
    steps::deployment(&hosts, &mut list)?;
    steps::upgrade(&hosts, &mut list);
    steps::certificates(&hosts, &mut list)?;
    steps::reboots(&mut hosts, &mut list)?;
    steps::reset(&hosts, &before, &mut list);

    let result = list.finish();
    let Hosts { first, second } = hosts;
    result.and(second.finish()).and(first.finish())
}
