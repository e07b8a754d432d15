//! Beds that tests share: the first test that needs one brings it up, the last one takes it down.

use std::fs;
use std::ops::Deref;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use nrh_testbed::Bed;
use nrh_testbed::operator::{self, Programs};
use tokio::runtime::Builder;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Beds that stand at a time: on a small machine more would only slow each other down.
const AT_A_TIME: usize = 3;

static ROOM: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(AT_A_TIME)));

/// Held while a bed comes up: that takes all cores of a small machine. A bed that is up mostly waits.
static COMING_UP: Mutex<()> = Mutex::new(());

/// Waits until no other bed is coming up.
pub fn alone() -> MutexGuard<'static, ()> {
    COMING_UP.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Room for a bed. Waits until there is some; who asks first gets it first.
pub fn room() -> OwnedSemaphorePermit {
    Builder::new_current_thread().build().unwrap().block_on(ROOM.clone().acquire_owned()).unwrap()
}

/// Whether beds can be had. As root nothing may be skipped.
pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!(
            "SKIPPED: a bed needs root on Linux: it makes network, mount and pid namespaces and runs a container runtime"
        );
    }
    root
}

/// How much is mounted on the machine itself: beds mount in their own namespaces, however many of them stand.
pub fn mounts() -> usize {
    fs::read_to_string("/proc/self/mounts").unwrap().lines().count()
}

/// A bed with the operator on it.
struct Stand {
    bed: Option<Bed>,
    programs: Programs,
    _room: OwnedSemaphorePermit,
}

impl Stand {
    fn new(up: fn(&Programs) -> Bed) -> Self {
        let (room, _alone, programs) = (room(), alone(), operator::built().unwrap());
        Self { bed: Some(up(&programs)), programs, _room: room }
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        let down = self.bed.take().map_or(Ok(()), Bed::down);
        match down {
            Err(error) if std::thread::panicking() => eprintln!("{error:#}"),
            down => down.unwrap(),
        }
    }
}

/// A bed for several tests.
pub struct Shared {
    up: fn(&Programs) -> Bed,
    stand: Mutex<Weak<Stand>>,
}

impl Shared {
    pub const fn new(up: fn(&Programs) -> Bed) -> Self {
        Self { up, stand: Mutex::new(Weak::new()) }
    }

    /// Joins those who stand on it; `None` where no bed can be.
    pub fn join(&self) -> Option<Guest> {
        if !is_root() {
            return None;
        }
        let mut stand = self.stand.lock().expect("the shared bed did not come up: see the test that failed first");
        let guest = stand.upgrade().unwrap_or_else(|| Arc::new(Stand::new(self.up)));
        *stand = Arc::downgrade(&guest);
        Some(Guest(guest))
    }
}

/// One test's hold on a shared bed.
pub struct Guest(Arc<Stand>);

impl Guest {
    pub fn programs(&self) -> &Programs {
        &self.0.programs
    }
}

impl Deref for Guest {
    type Target = Bed;

    fn deref(&self) -> &Bed {
        self.0.bed.as_ref().unwrap()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // The last guest may be one whose test passes.
        if std::thread::panicking()
            && let Ok(path) = self.save_logs()
        {
            eprintln!("logs of bed {} are in {}", self.name(), path.display());
        }
    }
}
