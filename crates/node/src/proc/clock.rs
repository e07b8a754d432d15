//! Time as the process table counts it: ticks since boot.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::bounded::read_whole;

/// Time since boot, including suspended time, with a precision of a hundredth of a second.
pub fn uptime(root: &Path) -> io::Result<Duration> {
    let text = read_whole(&root.join("uptime"), 256)?;
    parse_uptime(&text).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{}/uptime: no seconds in it", root.display()))
    })
}

/// The identity of this boot (a UUID). Start ticks of two boots cannot be compared.
pub fn boot_id(root: &Path) -> io::Result<String> {
    Ok(read_whole(&root.join("sys/kernel/random/boot_id"), 128)?.trim().to_owned())
}

/// Age of a process that started `start_ticks` after boot, at this uptime; zero where the two disagree.
pub fn age(start_ticks: u64, uptime: Duration) -> Duration {
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    let whole = start_ticks.checked_div(per_second).unwrap_or_default();
    let rest = start_ticks.checked_rem(per_second).unwrap_or_default();
    let nanos = rest.saturating_mul(1_000_000_000).checked_div(per_second).unwrap_or_default();
    uptime.saturating_sub(Duration::from_secs(whole).saturating_add(Duration::from_nanos(nanos)))
}

pub(crate) fn parse_uptime(text: &str) -> Option<Duration> {
    let seconds: f64 = text.split_whitespace().next()?.parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// The processor time that this thread has used.
pub fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    // It is never negative.
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uptime_is_the_first_number() {
        assert_eq!(parse_uptime("12.50 99.0\n"), Some(Duration::from_millis(12_500)));
        assert_eq!(parse_uptime(""), None);
        assert_eq!(parse_uptime("-1 2"), None);
        assert_eq!(parse_uptime("NaN 2"), None);
    }

    #[test]
    fn a_start_after_now_has_no_age() {
        assert_eq!(age(u64::MAX, Duration::from_secs(5)), Duration::ZERO);
        let ticks = rustix::param::clock_ticks_per_second();
        assert_eq!(age(ticks.saturating_mul(2), Duration::from_secs(5)), Duration::from_secs(3));
    }
}
