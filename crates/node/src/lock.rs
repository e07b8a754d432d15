//! The lock of a value that is consistent at any moment.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after a panic elsewhere.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
