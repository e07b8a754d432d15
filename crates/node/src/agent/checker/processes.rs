//! A search of the process table.

use std::io;

use super::Checker;
use crate::agent::verdict::Refusal;
use crate::proc::role::Prover;
use crate::proc::{self, RawProcess};

impl Checker {
    /// Returns the first result of `find` for the living processes. It skips a process that ends meanwhile.
    /// `cannot`: as in [`Checker::read`].
    pub(super) async fn find_process<T: Send + 'static>(
        &self,
        cannot: &str,
        find: impl Fn(&Prover, &[RawProcess], &RawProcess) -> io::Result<Option<T>> + Send + 'static,
    ) -> Result<Option<T>, Refusal> {
        let search = move |prover: &Prover| {
            let table = proc::table(prover.root())?;
            for process in table.iter().filter(|process| !process.is_dead()) {
                match find(prover, &table, process) {
                    Err(error) if proc::is_gone(&error) => {}
                    Ok(None) => {}
                    found => return found,
                }
            }
            Ok(None)
        };
        self.read(cannot, search).await
    }
}
