use bulkhead_types::ContainerId;
use proptest::prelude::*;

use super::super::plan::Size;
use super::*;

fn limits(cpu_milli: i64, memory: i64, cpu_shares: u64) -> PodLimits {
    let cpu_quota_us = if cpu_milli < 0 { -1 } else { cpu_milli * 100 };
    PodLimits { cpu_shares, cpu_quota_us, cpu_period_us: 100_000, memory_limit_bytes: memory }
}

fn update(name: usize, from: (i64, i64), to: (i64, i64)) -> ContainerUpdate {
    let size = |(cpu, memory)| Size { cpu_limit: cpu, cpu_request: cpu, memory_limit: memory, memory_request: memory };
    let id = ContainerId::parse(&format!("c{name}")).unwrap();
    ContainerUpdate { id, name: format!("c{name}"), from: size(from), to: size(to) }
}

#[test]
fn room_is_made_first_and_taken_last() {
    let updates = vec![update(0, (100, 50), (200, 60)), update(1, (100, 50), (50, 20))];
    let resize = Resize { updates, restarts: false, pod_level: true };
    // CPU grows in sum, memory shrinks.
    let got = steps(&resize, limits(200, 100, 204), limits(250, 80, 256));
    use Kind::{Cpu, Memory};
    assert_eq!(
        got,
        [
            Step::Container(Memory, 1),
            Step::Container(Memory, 0),
            Step::PodLimit(Memory),
            Step::PodLimit(Cpu),
            Step::PodRequest(Cpu),
            Step::Container(Cpu, 1),
            Step::Container(Cpu, 0),
        ]
    );
}

#[test]
fn a_limit_that_is_added_comes_last_and_none_is_taken_away() {
    let resize = Resize { updates: vec![update(0, (0, 0), (100, 50))], restarts: false, pod_level: false };
    let got = steps(&resize, limits(-1, -1, 2), limits(100, 50, 2));
    assert_eq!(got.last(), Some(&Step::PodLimit(Kind::Cpu)));
    let kept = limits(100, 50, 100).wanted(&CgroupResources { cpu_shares: Some(10), ..Default::default() });
    assert_eq!(kept, limits(100, 50, 10));
    assert!(steps(&Resize::default(), limits(1, 1, 1), limits(2, 2, 2)).is_empty());
    let restart = Resize { restarts: true, ..Default::default() };
    let got = steps(&restart, limits(100, 50, 10), limits(200, 20, 5));
    assert_eq!(got, [Step::PodLimit(Kind::Memory), Step::PodLimit(Kind::Cpu), Step::PodRequest(Kind::Cpu)]);
}

proptest! {
    /// At every step the pod's limits are at least the sums of its containers', and at the end everything is as wanted.
    #[test]
    fn the_pod_always_holds_its_containers(sizes in prop::collection::vec(((1..9i64, 1..9i64), (1..9i64, 1..9i64)), 1..6)) {
        let updates: Vec<_> = sizes.iter().enumerate().map(|(i, (from, to))| update(i, *from, *to)).collect();
        let sum = |of: fn(&ContainerUpdate) -> i64| updates.iter().map(of).sum::<i64>();
        let current = limits(sum(|u| u.from.cpu_limit), sum(|u| u.from.memory_limit), 10);
        let wanted = limits(sum(|u| u.to.cpu_limit), sum(|u| u.to.memory_limit), 20);
        let resize = Resize { updates: updates.clone(), restarts: false, pod_level: false };
        let mut has: Vec<Size> = updates.iter().map(|u| u.from).collect();
        let mut pod = current;
        for step in steps(&resize, current, wanted) {
            match step {
                Step::PodLimit(Kind::Memory) => pod.memory_limit_bytes = wanted.memory_limit_bytes,
                Step::PodLimit(Kind::Cpu) => pod.cpu_quota_us = wanted.cpu_quota_us,
                Step::PodRequest(_) => pod.cpu_shares = wanted.cpu_shares,
                Step::Container(kind, i) => has[i] = has[i].with(kind, updates[i].to),
            }
            prop_assert!(pod.memory_limit_bytes >= has.iter().map(|s| s.memory_limit).sum());
            prop_assert!(pod.cpu() >= has.iter().map(|s| s.cpu_limit).sum());
        }
        prop_assert_eq!(has, updates.iter().map(|u| u.to).collect::<Vec<_>>());
        prop_assert_eq!((pod.memory_limit_bytes, pod.cpu_quota_us), (wanted.memory_limit_bytes, wanted.cpu_quota_us));
    }
}
