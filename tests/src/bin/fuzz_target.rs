//! One target of `cargo xtask fuzz` under libFuzzer, the one that `$BULKHEAD_FUZZ_TARGET` names. Built by `fuzz` with the counters that
//! say which code an input reached.
#![no_main]

use std::sync::OnceLock;

use std::time::Duration;

use bulkhead_tests::fuzz::Target;
use libfuzzer_sys::fuzz_target;
use nix::time::{ClockId, clock_gettime};

static TARGET: OnceLock<&Target> = OnceLock::new();

/// An input that takes longer has found something, too. Of the processor: libFuzzer's own limit is the wall's, which a busy machine
/// reaches with inputs that are not slow.
const SLOW: Duration = Duration::from_secs(1);

fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

fuzz_target!(
    init: {
        let name = std::env::var("BULKHEAD_FUZZ_TARGET").unwrap_or_default();
        let Some(target) = Target::named(&name) else { panic!("BULKHEAD_FUZZ_TARGET={name:?} is no target") };
        TARGET.get_or_init(|| target);
    },
    |input: &[u8]| {
        if let Some(target) = TARGET.get() {
            let before = processor_time();
            (target.run)(input);
            let taken = processor_time().saturating_sub(before);
            assert!(taken <= SLOW, "{taken:?} of the processor for {} bytes", input.len());
        }
    }
);
