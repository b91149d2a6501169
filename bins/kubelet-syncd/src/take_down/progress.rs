//! Whether a pod that ends needs its slot, pure.

/// Where a container of the pod is whose stop was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Its signal waits for the slot.
    Waits,
    /// It was signalled a moment ago, or it has ended and the runtime clears it away.
    Ends,
    /// It was signalled and runs on: the runtime only waits for it.
    RunsOn,
}

impl Stop {
    /// Of a container that was signalled [`super::RUNS_ON`] ago and of which the runtime has not answered yet.
    pub fn after_a_moment(runs: bool) -> Self {
        if runs { Stop::RunsOn } else { Stop::Ends }
    }
}

/// `left`: running containers of which no stop has come back, those in `stops` included. The others of them have a hook to run, or
/// wait for their turn in the pod, and the runtime does nothing for them.
pub fn needs_slot(left: usize, mut stops: impl Iterator<Item = Stop>) -> bool {
    // With no container left the sandbox is next.
    left == 0 || stops.any(|stop| stop != Stop::RunsOn)
}

#[cfg(test)]
mod tests {
    use super::Stop::{Ends, RunsOn, Waits};
    use super::*;

    #[test]
    fn a_slot_is_held_while_the_runtime_works_for_the_pod() {
        for (left, stops, needs) in [
            (1, &[][..], false),
            (1, &[Waits], true),
            (1, &[Ends], true),
            (1, &[RunsOn], false),
            (2, &[RunsOn, RunsOn], false),
            (2, &[RunsOn, Ends], true),
            (2, &[RunsOn, Waits], true),
            (2, &[RunsOn], false),
            (0, &[], true),
        ] {
            assert_eq!(needs_slot(left, stops.iter().copied()), needs, "{left} {stops:?}");
        }
        assert_eq!([true, false].map(Stop::after_a_moment), [RunsOn, Ends]);
    }
}
