//! A thread for checks that may block in the kernel. It answers one question at a time.
//!
//! It does not use tokio's blocking pool: that pool grows with each check that hangs, and tokio waits for it at the end.

use std::sync::mpsc::{Sender, channel};
use std::thread;

use tokio::sync::oneshot;

use super::slot::Failure;

/// Stack size of one such thread.
const STACK: usize = 256 << 10;
/// How often a hanging thread is replaced in the lifetime of a probe. Each one costs a thread for ever.
const MAX_REPLACED: u32 = 3;

/// Where the answer to one question goes.
type Reply<T> = oneshot::Sender<Result<T, Failure>>;
/// Creates the function that runs on the thread, anew for each thread.
type Make<T> = Box<dyn Fn() -> Box<dyn FnMut() -> Result<T, Failure> + Send> + Send + Sync>;

/// One thread and its current question.
pub(super) struct Worker<T> {
    name: &'static str,
    make: Make<T>,
    asks: Option<Sender<Reply<T>>>,
    /// The question that the caller left before its answer came.
    left: Option<oneshot::Receiver<Result<T, Failure>>>,
    replaced: u32,
}

impl<T: Send + 'static> Worker<T> {
    pub(super) fn new<C>(name: &'static str, make: impl Fn() -> C + Send + Sync + 'static) -> Self
    where
        C: FnMut() -> Result<T, Failure> + Send + 'static,
    {
        Self { name, make: Box::new(move || Box::new(make())), asks: None, left: None, replaced: 0 }
    }

    /// Asks, and waits for the answer. If the caller drops this before, the question stays out. The next call first waits for
    /// its end, or goes to a new thread while one is still allowed.
    pub(super) async fn ask(&mut self) -> Result<T, Failure> {
        if let Some(left) = &mut self.left {
            let over = !matches!(left.try_recv(), Err(oneshot::error::TryRecvError::Empty));
            if !over && self.replaced < MAX_REPLACED {
                self.replaced += 1;
                self.asks = None;
            } else if !over {
                // Its answer may be old by now, so this code waits for it and discards it.
                let _ = left.await;
            }
            self.left = None;
        }
        if self.asks.is_none() {
            self.asks = Some(self.spawn()?);
        }
        let (reply, answer) = oneshot::channel();
        let sent = self.asks.as_ref().is_some_and(|asks| asks.send(reply).is_ok());
        if !sent {
            return Err(self.ended("has ended"));
        }
        let answer = self.left.insert(answer).await;
        self.left = None;
        answer.unwrap_or_else(|_| Err(self.ended("ended in a check")))
    }

    /// The failure of a thread that is no more. The next question starts another one.
    fn ended(&mut self, how: &str) -> Failure {
        self.asks = None;
        Failure::Failed(format!("the thread of the {} collector {how}; it is started again", self.name))
    }

    fn spawn(&self) -> Result<Sender<Reply<T>>, Failure> {
        let (asks, questions) = channel::<Reply<T>>();
        let mut check = (self.make)();
        let run = move || {
            while let Ok(reply) = questions.recv() {
                // No caller may be waiting any more; then the answer is not needed.
                let _ = reply.send(check());
            }
        };
        thread::Builder::new().name(self.name.to_owned()).stack_size(STACK).spawn(run).map(|_| asks).map_err(|error| {
            Failure::Failed(format!("cannot start the thread of the {} collector: {error}", self.name))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, Condvar, Mutex};
    use std::time::Duration;

    use super::*;

    /// A worker whose checks wait until the gate is open; each check is counted.
    fn gated(gate: &Arc<(Mutex<bool>, Condvar)>, checks: &Arc<AtomicU32>) -> Worker<u32> {
        let (gate, checks) = (Arc::clone(gate), Arc::clone(checks));
        Worker::new("test", move || {
            let (gate, checks) = (Arc::clone(&gate), Arc::clone(&checks));
            move || {
                let number = checks.fetch_add(1, Ordering::SeqCst);
                drop(gate.1.wait_while(gate.0.lock().unwrap(), |open| !*open));
                Ok(number)
            }
        })
    }

    fn set(gate: &(Mutex<bool>, Condvar), open: bool) {
        *gate.0.lock().unwrap() = open;
        gate.1.notify_all();
    }

    async fn short<T>(call: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout(Duration::from_millis(50), call).await.ok()
    }

    #[tokio::test]
    async fn a_stuck_thread_is_replaced_only_so_often() {
        let (gate, checks) = (Arc::new((Mutex::new(true), Condvar::new())), Arc::new(AtomicU32::new(0)));
        let mut worker = gated(&gate, &checks);
        assert_eq!(worker.ask().await, Ok(0));
        set(&gate, false);
        for _ in 0..8 {
            assert_eq!(short(worker.ask()).await, None);
        }
        let begun = async {
            while checks.load(Ordering::SeqCst) < 5 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), begun).await.unwrap();
        // The first thread and three replacements, each at one check: no thread gets a second question.
        assert_eq!(checks.load(Ordering::SeqCst), 1 + 4);
        set(&gate, true);
        assert_eq!(tokio::time::timeout(Duration::from_secs(5), worker.ask()).await.unwrap(), Ok(5));
    }

    #[tokio::test]
    async fn a_thread_that_panics_is_a_failure_and_is_started_again() {
        let first = Arc::new(AtomicU32::new(0));
        let mut worker = Worker::new("test", move || {
            let first = Arc::clone(&first);
            move || {
                assert!(first.fetch_add(1, Ordering::SeqCst) > 0, "the first look panics, as this test wants");
                Ok(1)
            }
        });
        assert!(matches!(worker.ask().await, Err(Failure::Failed(_))));
        assert_eq!(worker.ask().await, Ok(1));
    }
}
