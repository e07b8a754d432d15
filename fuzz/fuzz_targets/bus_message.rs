#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    nrh::fuzz::run("bus_message", data);
});
