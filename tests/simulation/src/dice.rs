//! Numbers of a seed, for what the world decides. The daemon draws its own from the kernel below it.

/// SplitMix64.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// Another sequence for each purpose, so that what one part draws does not move what another draws.
    pub fn of(seed: u64, purpose: &str) -> Self {
        let hash = purpose
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        let mut dice = Dice(seed ^ hash);
        dice.draw();
        dice
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`; 0 where that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.draw().checked_rem(bound).unwrap_or(0)
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// True in so many of a hundred cases.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of these; the first where there is no other.
    pub fn one_of<T: Copy>(&mut self, first: T, others: &[T]) -> T {
        let place = self.below(others.len() as u64 + 1);
        usize::try_from(place)
            .ok()
            .and_then(|place| place.checked_sub(1))
            .and_then(|place| others.get(place))
            .copied()
            .unwrap_or(first)
    }
}
