//! CPU amounts in the units of cgroups. Formulas: upstream `pkg/kubelet/cm/helpers_linux.go` and runc's
//! `libcontainer/cgroups/utils.go`; the pod's manager (who decides) and volnetd (who writes) must agree on them.

/// Shares of a pod that asks for nothing.
pub const MIN_SHARES: u64 = 2;
/// What the kernel accepts at most.
pub const MAX_SHARES: u64 = 262_144;
/// Microseconds: the length of a CFS period unless a pod's configuration says otherwise.
pub const QUOTA_PERIOD_US: u64 = 100_000;
/// Microseconds: the kernel refuses less.
pub const MIN_QUOTA_US: u64 = 1_000;

/// cgroup v1 `cpu.shares` of a request in thousandths of a CPU.
pub fn milli_cpu_to_shares(milli_cpu: u64) -> u64 {
    if milli_cpu == 0 {
        return MIN_SHARES;
    }
    (milli_cpu.saturating_mul(1024) / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

/// cgroup v1 `cpu.cfs_quota_us` of a limit in thousandths of a CPU; None for no limit.
pub fn milli_cpu_to_quota(milli_cpu: u64, period_us: u64) -> Option<u64> {
    (milli_cpu != 0).then(|| (milli_cpu.saturating_mul(period_us) / 1000).max(MIN_QUOTA_US))
}

/// cgroup v2 `cpu.weight` (1 to 10000) for v1 shares (2 to 262144).
pub fn shares_to_weight(shares: u64) -> u64 {
    if shares >= MAX_SHARES {
        return 10_000;
    }
    1 + shares.saturating_sub(MIN_SHARES) * 9_999 / 262_142
}

/// cgroup v1 shares for a v2 weight.
pub fn weight_to_shares(weight: u64) -> u64 {
    weight.saturating_sub(1).saturating_mul(262_142) / 9_999 + MIN_SHARES
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_values() {
        assert_eq!([0, 1, 100, 1000, 300_000].map(milli_cpu_to_shares), [2, 2, 102, 1024, 262_144]);
        assert_eq!(
            [0, 1, 10, 1500].map(|m| milli_cpu_to_quota(m, QUOTA_PERIOD_US)),
            [None, Some(1000), Some(1000), Some(150_000)]
        );
        assert_eq!([0, 2, 102, 1024, 262_144, u64::MAX].map(shares_to_weight), [1, 1, 4, 39, 10_000, 10_000]);
        assert_eq!([1, 39, 10_000].map(weight_to_shares), [2, 998, 262_144]);
    }

    proptest! {
        #[test]
        fn more_cpu_is_never_less(a in any::<u64>(), b in any::<u64>()) {
            let (low, high) = (a.min(b), a.max(b));
            prop_assert!(milli_cpu_to_shares(low) <= milli_cpu_to_shares(high));
            prop_assert!(shares_to_weight(low) <= shares_to_weight(high));
            prop_assert!((1..=10_000).contains(&shares_to_weight(a)));
            prop_assert!(weight_to_shares(low.min(10_000)) <= weight_to_shares(high.min(10_000)));
        }
    }
}
