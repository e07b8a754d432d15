//! Work that can block in the kernel, on separate threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::deadline::within;

/// Why work has no result, in one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unanswered(String);

/// Maximum number of threads at a time, including abandoned ones that the kernel never answered.
pub(crate) const MAX_THREADS: usize = 4;
/// Reads of `/proc` need little stack.
const STACK: usize = 512 << 10;

/// Runs blocking work with a deadline: a thread that the kernel blocks is abandoned, and still counts.
///
/// Clones share the limit: one `Reader` serves all executors of a process.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    busy: Arc<AtomicUsize>,
}

struct Busy(Arc<AtomicUsize>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Reader {
    /// Returns the result of `work`, or why there is none: it took longer than `bound`, or too many threads are in use.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        bound: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Unanswered> {
        let busy = self.begin()?;
        let (send, receive) = tokio::sync::oneshot::channel();
        let thread = std::thread::Builder::new().name("nrh-check".to_owned()).stack_size(STACK);
        let spawned = thread.spawn(move || {
            let result = work();
            // Before the result is sent: the caller may begin its next read at once, and must not find this one still out.
            drop(busy);
            let _ = send.send(result);
        });
        spawned.map_err(|error| Unanswered(format!("cannot start a thread for the check: {error}")))?;
        match within(bound, receive).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(_)) => Err(Unanswered("the thread of a read or write on the node died".to_owned())),
            Err(_) => Err(Unanswered(format!("a read or write on the node took longer than {}s", bound.as_secs()))),
        }
    }

    fn begin(&self) -> Result<Busy, Unanswered> {
        if self.busy.fetch_add(1, Ordering::SeqCst) >= MAX_THREADS {
            self.busy.fetch_sub(1, Ordering::SeqCst);
            return Err(Unanswered(format!(
                "{MAX_THREADS} reads and writes on the node are still out: the kernel does not answer them"
            )));
        }
        Ok(Busy(Arc::clone(&self.busy)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_has_ended_does_not_count() {
        let reader = Reader::default();
        for _ in 0..1_000 {
            assert_eq!(reader.run(Duration::from_mins(1), || 7).await, Ok(7));
            assert_eq!(reader.busy.load(Ordering::SeqCst), 0);
        }
    }

    #[tokio::test]
    async fn a_check_that_never_ends_is_given_up_and_only_so_many_are_started() {
        let reader = Reader::default();
        let (release, gate) = std::sync::mpsc::channel::<()>();
        let gate = Arc::new(std::sync::Mutex::new(gate));
        for _ in 0..MAX_THREADS {
            let gate = Arc::clone(&gate);
            let wait = move || gate.lock().unwrap().recv().is_ok();
            assert!(reader.run(Duration::from_millis(10), wait).await.is_err());
        }
        let refused = reader.run(Duration::from_secs(1), || 7).await.unwrap_err();
        assert!(refused.to_string().contains("still out"), "{refused}");
        drop(release);
        crate::waiting::wait_until("the threads", || reader.busy.load(Ordering::SeqCst) == 0);
        assert_eq!(reader.run(Duration::from_secs(1), || 7).await.unwrap(), 7);
    }
}
