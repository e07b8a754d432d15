#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    nrh::fuzz::run("command_object", data);
});
