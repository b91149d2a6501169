//! When the node's status is written: on a change, or when it was not for nodeStatusReportFrequency. Pure.

use std::time::Duration;

use tokio::time::Instant;

/// Upstream's `isUpdateStatusPeriodExpired` and `calculateDelay` (`pkg/kubelet/kubelet_node_status.go`): after a change
/// or a first report the next unchanged one is spread by half the period to either side, so that the nodes of a cluster
/// do not write together; later ones come with the period.
#[derive(Debug, Clone)]
pub struct Cadence {
    frequency: Duration,
    last: Option<Instant>,
    /// From -0.5 to 0.5, of `frequency`.
    spread: f64,
}

impl Cadence {
    pub fn new(frequency: Duration) -> Self {
        Cadence { frequency, last: None, spread: 0.0 }
    }

    /// Whether a write is due although nothing has changed.
    pub fn due(&self, now: Instant) -> bool {
        self.last.is_none_or(|last| now.duration_since(last) >= self.frequency.mul_f64(1.0 + self.spread))
    }

    /// A status was written, `changed` or only because it was due. `random` is uniform in 0..1.
    pub fn written(&mut self, now: Instant, changed: bool, random: f64) {
        self.spread = if changed || self.last.is_none() { random.clamp(0.0, 1.0) - 0.5 } else { 0.0 };
        self.last = Some(now);
    }
}

/// `base`, longer by up to `factor` of itself: upstream's jitter. `random` is uniform in 0..1.
pub fn jittered(base: Duration, factor: f64, random: f64) -> Duration {
    base.mul_f64(1.0 + factor * random.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FIVE_MINUTES: Duration = Duration::from_secs(300);

    #[test]
    fn first_at_once_then_spread_then_regular() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut cadence = Cadence::new(FIVE_MINUTES);
        assert!(cadence.due(start));
        cadence.written(start, false, 0.0);
        assert!(!cadence.due(after(149)) && cadence.due(after(150)));
        cadence.written(after(150), false, 0.0);
        assert!(!cadence.due(after(449)) && cadence.due(after(450)));
        cadence.written(after(450), true, 1.0);
        assert!(!cadence.due(after(450 + 449)) && cadence.due(after(450 + 450)));
    }

    proptest! {
        #[test]
        fn never_sooner_than_half_nor_later_than_one_and_a_half(changed: bool, first: bool, random in -1.0..2.0_f64) {
            let start = Instant::now();
            let mut cadence = Cadence::new(FIVE_MINUTES);
            if !first {
                cadence.written(start, false, 0.5);
            }
            cadence.written(start, changed, random);
            prop_assert!(!cadence.due(start + Duration::from_secs(149)));
            prop_assert!(cadence.due(start + Duration::from_secs(450)));
        }

        #[test]
        fn jitter_lengthens_only(random in 0.0..1.0_f64) {
            let interval = jittered(Duration::from_secs(10), 0.04, random);
            prop_assert!(interval >= Duration::from_secs(10) && interval <= Duration::from_millis(10_400));
        }
    }
}
