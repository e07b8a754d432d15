//! One program for all targets: `NRH_FUZZ_TARGET` names the one that gets the bytes.
#![no_main]

use std::sync::LazyLock;

static TARGET: LazyLock<String> =
    LazyLock::new(|| std::env::var("NRH_FUZZ_TARGET").expect("NRH_FUZZ_TARGET is a folder of fuzz/corpus"));

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    nrh::fuzz::run(&TARGET, data);
});
