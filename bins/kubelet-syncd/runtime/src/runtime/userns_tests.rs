//! Pools by a table; blocks by random sequences with restarts in between.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Default)]
struct Disk(Arc<Mutex<(Option<Vec<u8>>, bool)>>);

impl BlockStore for Disk {
    fn load(&self) -> Result<Option<Vec<u8>>, String> {
        Ok(self.0.lock().0.clone())
    }

    fn save(&self, json: &[u8]) -> Result<(), String> {
        let mut disk = self.0.lock();
        if disk.1 {
            return Err("full".to_owned());
        }
        disk.0 = Some(json.to_vec());
        Ok(())
    }
}

fn uid(n: u8) -> PodUid {
    PodUid::parse(&format!("pod-{n}")).unwrap()
}

fn blocks(pool: Result<Pool, PoolError>, disk: &Disk) -> UserNamespaces {
    UserNamespaces::new(pool, Box::new(disk.clone()))
}

#[test]
fn pools() {
    let pool = |ids, subordinate, pods| Pool::of(ids, subordinate, pods).map_err(|error| error.to_string());
    let ok = |first, blocks, length| Ok(Pool { first, blocks, length });
    let no = |why: &str| Err(why.to_owned());
    // The kernel maps no block that ends with the last id.
    assert_eq!(pool(65_536, None, 110), ok(65_536, 65_534, 65_536));
    assert_eq!(pool(131_072, None, 110), ok(131_072, 32_766, 131_072));
    assert_eq!(pool(65_536, Some((4_294_836_224, 131_072)), 2), ok(4_294_836_224, 1, 65_536));
    assert_eq!(pool(65_536, Some((4_294_901_760, 65_536)), 1), ok(4_294_901_760, 0, 65_536));
    assert_eq!(pool(65_536, Some((131_072, 655_360)), 10), ok(131_072, 10, 65_536));
    assert_eq!(pool(65_537, None, 1), no("kubelet user namespace length 65537 is not a multiple of 65536"));
    assert_eq!(pool(0, None, 1), no("kubelet user namespace length 0 is not a multiple of 65536"));
    assert_eq!(pool(-65_536, None, 1), no("kubelet user namespace length -65536 is not a multiple of 65536"));
    assert_eq!(
        pool(65_536, Some((100_000, 65_536)), 1),
        no("kubelet user assigned ID 100000 is not a multiple of 65536")
    );
    assert_eq!(pool(65_536, Some((0, 65_536)), 1), no("kubelet user assigned ID 0 must be greater or equal to 65536"));
    assert_eq!(
        pool(65_536, Some((65_536, 100_000)), 1),
        no("kubelet user assigned IDs length 100000 is not a multiple of 65536")
    );
    assert_eq!(
        pool(65_536, Some((65_536, 655_360)), 11),
        no("kubelet user assigned IDs are not enough to support 11 pods")
    );
    assert_eq!(pool(1 << 32, None, 1), no("kubelet user assigned IDs are not enough to support 1 pods"));
}

#[test]
fn what_the_machine_has_set_aside() {
    let of = |subuid: &str, subgid: &str| subordinate_ids(subuid, subgid).map_err(|error| error.to_string());
    let both = |text: &str| of(text, text);
    assert_eq!(both(""), Ok(None));
    assert_eq!(both("alice:100000:65536\nkubelets:1:2\n"), Ok(None));
    assert_eq!(both("alice:100000:65536\nkubelet:65536:7208960\n"), Ok(Some((65_536, 7_208_960))));
    let refused = |found: Result<_, String>, why: &str| {
        assert_eq!(found, Err(format!("subordinate ids of user kubelet: {why}")));
    };
    refused(both("kubelet:65536:65536\nkubelet:196608:65536\n"), "there must be only one range");
    refused(both("kubelet:65536\n"), "invalid line \"kubelet:65536\"");
    refused(both("kubelet:65536:-1\n"), "invalid line \"kubelet:65536:-1\"");
    refused(of("kubelet:65536:65536\n", ""), "mismatched subuids and subgids");
}

#[test]
fn a_block_is_written_down_before_it_is_used() {
    let disk = Disk::default();
    let pool = Pool::of(65_536, Some((65_536, 131_072)), 2);
    let held = blocks(pool.clone(), &disk);
    disk.0.lock().1 = true;
    assert_eq!(held.of_pod(&uid(1)), Err(UsernsError::NotSaved("full".to_owned())));
    disk.0.lock().1 = false;
    let first = held.of_pod(&uid(1)).unwrap();
    assert_eq!(first, IdBlock { first: 65_536, length: 65_536 });
    assert_eq!(held.of_pod(&uid(2)).unwrap().first, 131_072);
    assert_eq!(held.of_pod(&uid(3)), Err(UsernsError::NoneLeft));
    // A restart keeps them, also with another pool.
    let again = blocks(Pool::of(131_072, None, 110), &disk);
    assert_eq!(again.of_pod(&uid(1)), Ok(first));
    let larger = again.of_pod(&uid(3)).unwrap();
    assert_eq!(larger, IdBlock { first: 393_216, length: 131_072 });
    again.retain(|pod| *pod == uid(1));
    assert_eq!(blocks(pool, &disk).of_pod(&uid(4)).unwrap().first, 131_072);
}

#[test]
fn what_cannot_be_read_is_not_given_out_again() {
    let disk = Disk::default();
    disk.0.lock().0 = Some(b"{\"blocks\": 7}".to_vec());
    let held = blocks(Pool::of(65_536, None, 110), &disk);
    held.retain(|_| false);
    assert!(matches!(held.of_pod(&uid(1)), Err(UsernsError::Unknown(_))));
    assert_eq!(disk.0.lock().0.as_deref(), Some(&b"{\"blocks\": 7}"[..]));
}

#[derive(Debug, Clone)]
enum Step {
    Start(u8),
    End(u8),
    Restart,
}

proptest! {
    #[test]
    fn no_two_pods_share_a_user_and_none_has_the_machines(
        steps in proptest::collection::vec(
            prop_oneof![(0u8..12).prop_map(Step::Start), (0u8..12).prop_map(Step::End), Just(Step::Restart)], 0..80),
        count in 1u32..10,
    ) {
        let disk = Disk::default();
        let pool = Pool::of(65_536, Some((131_072, count * 65_536)), 1);
        let mut held = blocks(pool.clone(), &disk);
        let mut alive: BTreeMap<u8, IdBlock> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Start(pod) => match held.of_pod(&uid(pod)) {
                    Ok(block) => {
                        prop_assert!(block.first >= 131_072);
                        prop_assert!(u64::from(block.first) + u64::from(block.length) <= 131_072 + u64::from(count) * 65_536);
                        prop_assert!(alive.iter().all(|(other, theirs)| *other == pod || !theirs.overlaps(block)));
                        prop_assert!(alive.insert(pod, block).is_none_or(|before| before == block));
                    }
                    Err(error) => {
                        prop_assert_eq!(error, UsernsError::NoneLeft);
                        prop_assert_eq!(alive.len(), count as usize);
                    }
                },
                Step::End(pod) => {
                    alive.remove(&pod);
                    held.retain(|uid| alive.keys().any(|alive| *uid == self::uid(*alive)));
                }
                Step::Restart => held = blocks(pool.clone(), &disk),
            }
        }
    }
}
