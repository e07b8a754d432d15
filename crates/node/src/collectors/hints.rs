//! Kernel log lines that are a reason to check now. They prove nothing: checks alone suspect and confirm a fault, and those
//! checks would come a minute later anyway.
//!
//! A log can grow by thousands of lines a second. The collector reads some every few seconds. It skips and counts the rest.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Shared, lock};
use crate::kmsg::{Log, Record};

/// Time between two reads.
const TURN: Duration = Duration::from_secs(5);
/// Maximum number of records of one turn.
const RECORDS: usize = 128;
/// Minimum time between two checks for such a reason: a failing disk logs for hours.
const CHECK_INTERVAL: Duration = Duration::from_mins(1);

/// Kernel messages of a faulty node: hung tasks and locked processors, disks and the file systems on them, the whole node out
/// of memory, network namespaces that cannot end, refused forks. A container that has used up its own memory ("Memory cgroup
/// out of memory") is not among them.
const SIGNS: [&str; 11] = [
    "blocked for more than",
    "soft lockup",
    "I/O error",
    "EXT4-fs error",
    "Remounting filesystem read-only",
    "Shutting down filesystem",
    "Out of memory: Killed process",
    "unregister_netdevice: waiting for",
    "fork rejected by pids controller",
    "not responding, still trying",
    "blocked FC remote port time out",
];

/// Counts of what has been read from the kernel's log since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// Records that were read.
    pub read: u64,
    /// Records that were skipped, because too many came at once.
    pub dropped: u64,
    /// How often records were a reason to check at once.
    pub checks: u64,
}

/// State kept between two turns.
#[derive(Debug, Default)]
struct Reader {
    /// The number of the newest record.
    last: Option<u64>,
    checked: Option<Instant>,
    counts: Hints,
}

impl Reader {
    /// Handles one read. Returns whether it is a reason to check now.
    fn take(&mut self, text: &str, now: Instant) -> bool {
        let mut sign = false;
        for record in text.lines().filter_map(Record::of) {
            let missed = self.last.map_or(0, |last| record.sequence.saturating_sub(last.saturating_add(1)));
            self.counts.dropped = self.counts.dropped.saturating_add(missed);
            self.counts.read = self.counts.read.saturating_add(1);
            self.last = Some(record.sequence);
            sign |= record.facility == 0 && SIGNS.iter().any(|sign| record.text.contains(sign));
        }
        let due = self.checked.is_none_or(|checked| now.saturating_duration_since(checked) >= CHECK_INTERVAL);
        if sign && due {
            self.checked = Some(now);
            self.counts.checks = self.counts.checks.saturating_add(1);
        }
        sign && due
    }

    /// One turn. Returns whether there is a reason to check now.
    fn turn(&mut self, log: &mut Log, now: Instant) -> std::io::Result<bool> {
        let mut check = false;
        for _ in 0..RECORDS {
            let Some(text) = log.read()? else { return Ok(check) };
            check |= self.take(&text, now);
        }
        log.skip()?;
        Ok(check)
    }
}

/// Reads for ever, or until the log cannot be read. Then there are no hints, and nothing else changes.
pub(super) async fn follow(shared: Arc<Shared>, path: Option<PathBuf>) {
    let Some(path) = path else { return };
    if let Err(error) = read(&shared, &path).await {
        tracing::info!(path = %path.display(), %error, "the kernel's log is not read: every check comes at its own time");
    }
}

async fn read(shared: &Shared, path: &std::path::Path) -> std::io::Result<()> {
    let mut log = Log::open(path)?;
    // Checks already cover earlier records.
    log.skip()?;
    let mut reader = Reader::default();
    loop {
        let check = reader.turn(&mut log, Instant::now())?;
        *lock(&shared.hints) = reader.counts;
        if check {
            tracing::info!("the kernel reports trouble: every collector checks now");
            shared.refresh();
        }
        sleep(TURN).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectors::CollectorSettings;

    fn line(sequence: u64, text: &str) -> String {
        format!("6,{sequence},1000,-;{text}\n")
    }

    #[test]
    fn a_sign_of_the_kernel_is_a_reason_and_somebody_elses_words_are_none() {
        let (mut reader, now) = (Reader::default(), Instant::now());
        assert!(!reader.take(&line(1, "eth0: link is up"), now));
        assert!(
            !reader.take("12,2,1000,-;INFO: task runc blocked for more than 120 seconds.\n", now),
            "from user space"
        );
        assert!(!reader.take(&line(3, "Memory cgroup out of memory: Killed process 7 (java)"), now));
        assert!(reader.take(&line(4, "INFO: task runc:77 blocked for more than 120 seconds."), now));
        assert_eq!(reader.counts, Hints { read: 4, dropped: 0, checks: 1 });
    }

    #[test]
    fn a_disk_that_complains_without_end_is_checked_once_a_minute() {
        let (mut reader, now) = (Reader::default(), Instant::now());
        let checks = (0..300).filter(|second| {
            let text = line(*second, "blk_update_request: I/O error, dev sda");
            reader.take(&text, now + Duration::from_secs(*second))
        });
        assert_eq!(checks.count(), 5);
    }

    #[test]
    fn what_was_passed_over_is_counted() {
        let (mut reader, now) = (Reader::default(), Instant::now());
        for sequence in [10, 11, 5011, 5012] {
            reader.take(&line(sequence, "x"), now);
        }
        assert_eq!(reader.counts, Hints { read: 4, dropped: 4999, checks: 0 });
    }

    #[tokio::test(start_paused = true)]
    async fn every_collector_checks_when_the_kernel_tells_of_trouble_from_now_on() {
        use std::io::Write;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kmsg");
        let mut kernel = std::fs::File::create(&path).unwrap();
        let lockup = "watchdog: BUG: soft lockup - CPU#1 stuck for 22s!";
        kernel.write_all(line(1, lockup).as_bytes()).unwrap();
        let shared = Arc::new(Shared::new(&CollectorSettings::default()));
        let running = tokio::spawn(follow(Arc::clone(&shared), Some(path)));
        sleep(2 * TURN).await;
        assert_eq!((shared.tempo.borrow().asked, *lock(&shared.hints)), (0, Hints::default()), "of before");
        kernel.write_all(line(2, lockup).as_bytes()).unwrap();
        sleep(2 * TURN).await;
        assert_eq!(shared.tempo.borrow().asked, 1);
        running.abort();
    }

    /// The real log, where the test can write to it: the test's lines arrive, and are no reason to check.
    #[tokio::test]
    async fn the_real_log_is_followed_at_a_bounded_pace() {
        use std::io::Write;
        let path = PathBuf::from(crate::kmsg::KMSG);
        let Ok(mut kernel) = std::fs::OpenOptions::new().write(true).open(&path) else {
            println!("SKIPPED: the kernel's log cannot be written to");
            return;
        };
        let collectors = Arc::new(Shared::new(&CollectorSettings::default()));
        let running = tokio::spawn(follow(Arc::clone(&collectors), Some(path)));
        let end = Instant::now() + Duration::from_mins(1);
        loop {
            writeln!(kernel, "nrh: a test of its log reader, task x blocked for more than 120 seconds").unwrap();
            sleep(Duration::from_millis(100)).await;
            let counts = *lock(&collectors.hints);
            if counts.read > 0 {
                assert_eq!(counts.checks, 0, "written by us, not by the kernel");
                break;
            }
            assert!(Instant::now() < end && !running.is_finished(), "no line of the kernel's log was read");
        }
        running.abort();
    }
}
