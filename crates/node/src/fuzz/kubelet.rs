//! What the kubelet was told, and the certificate by which it proves who it is.

use std::time::Duration;

use super::checks::{beginnings, is_bounded};
use crate::collect::disks::credential;
use crate::collect::kubelet::metrics::{Memory, Parser, Sample};
use crate::collect::kubelet::settings::{ConfigFile, Settings, apply, apply_flags};
use crate::proc::handle;
use crate::yaml;

/// The last second of 9999: no certificate names a later one.
const LAST: Duration = Duration::from_secs(253_402_300_799);

/// What must hold for all settings that were understood, and for the sentence about those that were not.
fn check(read: &Result<(), String>, settings: &Settings) {
    match read {
        Ok(()) => {
            assert!(settings.runtime_endpoint.as_ref().is_none_or(|endpoint| is_bounded(endpoint, 512)));
            assert!(!settings.kubelet.request_timeout.is_zero(), "a kubelet that gives no call any time");
        }
        Err(why) => assert!(is_bounded(why, 300) && why.contains("kubelet"), "{why}"),
    }
}

/// The command line.
pub fn flags(data: &[u8]) -> bool {
    let args: Vec<String> = handle::split(data).map(|arg| String::from_utf8_lossy(arg).into_owned()).collect();
    let mut settings = Settings::default();
    let read = apply_flags(&mut settings, &args);
    check(&read, &settings);
    if read.is_ok() {
        let mut twice = settings.clone();
        assert!(apply_flags(&mut twice, &args).is_ok() && twice == settings);
        // The value of a flag is the last one, so what stands before all of them changes nothing.
        let before = ["kubelet", "--healthz-port=1", "--healthz-bind-address=::1"].map(str::to_owned);
        let mut after = Settings::default();
        let doubled: Vec<String> = before.into_iter().chain(args.iter().skip(1).cloned()).collect();
        assert!(apply_flags(&mut after, &doubled).is_ok());
        assert_eq!(after.runtime_endpoint, settings.runtime_endpoint);
        assert!(after.healthz_port == settings.healthz_port || after.healthz_port == 1);
    }
    read.is_ok()
}

/// The file of `--config`, or a drop-in.
pub fn config(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let Ok(file) = yaml::read::<ConfigFile>(text) else { return false };
    let mut settings = Settings::default();
    let read = apply(&mut settings, &file);
    check(&read, &settings);
    if read.is_ok() {
        let mut twice = settings.clone();
        assert!(apply(&mut twice, &file).is_ok() && twice == settings);
    }
    read.is_ok()
}

/// What the numbers are after each piece of so many bytes, until they are complete.
fn in_pieces(data: &[u8], size: usize) -> Option<Sample> {
    let mut parser = Parser::default();
    data.chunks(size).find_map(|piece| parser.push(piece).ok().flatten())
}

/// The kubelet's metrics.
pub fn metrics(data: &[u8]) -> bool {
    let found = in_pieces(data, data.len().max(1));
    for cut in beginnings(data) {
        let cut_off = in_pieces(cut, cut.len().max(1));
        // A later line of the same name changes nothing, so what was complete stays; a moment that was told too late is
        // none.
        let same = |one: Sample, other: Sample| {
            one.sum.to_bits() == other.sum.to_bits() && one.count.to_bits() == other.count.to_bits()
        };
        assert!(cut_off.is_none_or(|cut| found.is_some_and(|whole| same(cut, whole))), "cut at {}", cut.len());
    }
    let Some(found) = found else { return false };
    for size in [1, 61] {
        let pieces = in_pieces(data, size);
        assert!(pieces.is_some_and(|pieces| pieces.sum.to_bits() == found.sum.to_bits()), "pieces of {size}");
    }
    assert!(found.sum.is_finite() && found.count.is_finite() && found.sum >= 0.0 && found.count >= 0.0);
    let (mut memory, at) = (Memory::default(), tokio::time::Instant::now());
    let more = Sample { sum: found.sum + 60.0, count: found.count + 1.0, ..found };
    for (sample, after) in [(found, 0), (more, 60), (found, 120)] {
        let at = at + Duration::from_secs(after);
        let seen = memory.note((60, 6000), sample, at, at);
        assert!(seen.idle <= LAST && seen.mean.is_none_or(|mean| mean <= LAST), "{seen:?}");
    }
    true
}

pub fn kubeconfig(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let Ok(user) = credential::user(text) else { return false };
    if let Some(pem) = &user.client_certificate_data {
        assert!(pem.0.len() <= data.len(), "more than is there");
        certificate(&pem.0);
    }
    user.client_certificate.is_some() || user.client_certificate_data.is_some()
}

/// A certificate, as PEM or bare.
pub fn certificate(data: &[u8]) -> bool {
    let (pem, der) = (credential::dates(data), credential::validity(data).ok());
    for (begin, end) in pem.iter().chain(&der) {
        assert!(*begin <= LAST && *end <= LAST, "from {begin:?} to {end:?}");
    }
    for cut in beginnings(data) {
        let cut_off = credential::dates(cut);
        assert!(cut_off.is_none() || cut_off == pem, "cut at {}", cut.len());
        assert!(der.is_none() || credential::validity(cut).is_err(), "cut at {}", cut.len());
    }
    pem.is_some() || der.is_some()
}
