#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    nrh::fuzz::run("http_date", data);
});
