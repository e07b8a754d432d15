//! The stand-in of `ctr`: the few calls below CRI with which faults are injected.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::runtime::Runtime;
use super::table::Standing;
use crate::view;

/// Name of the program.
pub const NAME: &str = "ctr";
/// How long it waits for anything.
const LIMIT: Duration = Duration::from_secs(5);

/// `ctr [--flag value]… version | tasks kill ID | tasks rm ID | containers rm ID`
pub(super) fn run() -> Result<()> {
    let mut words = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        // Every flag that the bed uses has a value.
        if arg.starts_with('-') {
            args.next();
        } else {
            words.push(arg);
        }
    }
    let runtime = Runtime::open()?;
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["version"] => view::lists(view::SOCKET.as_ref(), LIMIT).map(drop),
        ["tasks", "kill", id] => {
            let server = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            server.block_on(async { tokio::time::timeout(LIMIT, runtime.kill_task(id)).await.context("no answer")? })
        }
        ["tasks", "rm", id] => {
            let object = runtime.table.find(id).with_context(|| format!("{id}: not found"))?;
            if let Standing::Running(process) = runtime.table.standing(&object)? {
                bail!("task {id} (process {}) still runs", process.pid);
            }
            Ok(())
        }
        ["containers", "rm", id] => {
            runtime.table.find(id).with_context(|| format!("{id}: not found"))?;
            runtime.table.remove(id)
        }
        other => bail!("not part of this stand-in: ctr {}", other.join(" ")),
    }
}
