//! Epochs and generations: how one process tells "restarted" from "gone", and "newer" from "older".

/// Random 64 bits, drawn at each start of a process. Never zero, so that a missing field cannot match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Epoch(std::num::NonZeroU64);

impl Epoch {
    /// From random bits; zero is mapped to one.
    pub fn from_random(bits: u64) -> Self {
        Epoch(std::num::NonZeroU64::new(bits).unwrap_or(std::num::NonZeroU64::MIN))
    }

    /// From the wire, where zero means "not given".
    pub fn from_wire(bits: u64) -> Option<Self> {
        std::num::NonZeroU64::new(bits).map(Epoch)
    }

    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl std::fmt::Display for Epoch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.get())
    }
}

/// Counts changes of the desired pods within one epoch of syncd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Generation(pub u64);

impl Generation {
    #[must_use]
    pub const fn next(self) -> Self {
        Generation(self.0 + 1)
    }
}
