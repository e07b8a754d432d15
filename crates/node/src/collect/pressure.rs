//! How long the node's processes wait for its processors, memory and disks.

use std::path::Path;

use crate::proc::bounded::read_whole;
use nrh_core::observation::Pressure;

/// Largest of these files that is read.
const MAX: usize = 4096;

/// Reads `/proc/pressure`. Where the kernel does not count pressure, the load replaces the value for the processors. A value
/// that cannot be read counts as no pressure. The kernel answers from memory, so this never waits.
pub fn read(proc: &Path) -> Pressure {
    let file = |name: &str| read_whole(&proc.join(name), MAX).unwrap_or_default();
    let cpu = percent(&file("pressure/cpu"), "some");
    Pressure {
        cpu: cpu.unwrap_or_else(|| if is_overloaded(&file("loadavg"), processors()) { 100 } else { 0 }),
        memory: percent(&file("pressure/memory"), "full").unwrap_or_default(),
        io: percent(&file("pressure/io"), "full").unwrap_or_default(),
    }
}

/// The share of the last ten seconds, in whole per cent.
fn percent(text: &str, line: &str) -> Option<u8> {
    let fields = text.lines().find_map(|found| found.strip_prefix(line))?;
    let share = fields.split_ascii_whitespace().find_map(|field| field.strip_prefix("avg10="))?;
    share.split('.').next()?.parse().ok().filter(|share| *share <= 100)
}

/// Whether there were eight runnable processes for each processor on average over the last minute.
fn is_overloaded(loadavg: &str, processors: f32) -> bool {
    let load = loadavg.split_ascii_whitespace().next().and_then(|load| load.parse::<f32>().ok());
    load.is_some_and(|load| load >= 8.0 * processors)
}

fn processors() -> f32 {
    let count = std::thread::available_parallelism().map_or(1, |count| u16::try_from(count.get()).unwrap_or(u16::MAX));
    f32::from(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_the_last_ten_seconds_counts_and_what_is_no_number_does_not() {
        let cpu = "some avg10=97.50 avg60=4.90 avg300=64.93 total=328596358\nfull avg10=0.00 avg60=0.00 total=0\n";
        assert_eq!((percent(cpu, "some"), percent(cpu, "full")), (Some(97), Some(0)));
        for text in ["", "some", "some avg10=NaN avg60=x", "some avg60=1.0", "some avg10=101.00"] {
            assert_eq!(percent(text, "some"), None, "{text:?}");
        }
    }

    #[test]
    fn without_pressure_in_the_kernel_the_load_of_each_processor_counts() {
        assert!(is_overloaded("40.12 20.00 5.00 3/900 1234\n", 2.0));
        assert!(!is_overloaded("15.9 20.00 5.00 3/900 1234\n", 2.0));
        assert!(!is_overloaded("", 2.0));
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()), Pressure::default(), "nothing can be read");
        std::fs::write(folder.path().join("loadavg"), "100000 0 0 1/1 1").unwrap();
        assert_eq!(read(folder.path()).cpu, 100);
    }

    #[test]
    fn this_kernel_tells() {
        let seen = read(Path::new("/proc"));
        assert!(seen.cpu <= 100 && seen.memory <= 100 && seen.io <= 100, "{seen:?}");
    }
}
