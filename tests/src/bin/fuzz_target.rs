//! One target of `cargo xtask fuzz` under libFuzzer, the one that `$BULKHEAD_FUZZ_TARGET` names. Built by `fuzz` with the counters that
//! say which code an input reached.
#![no_main]

use std::sync::OnceLock;

use bulkhead_tests::fuzz::Target;
use libfuzzer_sys::fuzz_target;

static TARGET: OnceLock<&Target> = OnceLock::new();

fuzz_target!(
    init: {
        let name = std::env::var("BULKHEAD_FUZZ_TARGET").unwrap_or_default();
        let Some(target) = Target::named(&name) else { panic!("BULKHEAD_FUZZ_TARGET={name:?} is no target") };
        TARGET.get_or_init(|| target);
    },
    |input: &[u8]| {
        if let Some(target) = TARGET.get() {
            (target.run)(input);
        }
    }
);
