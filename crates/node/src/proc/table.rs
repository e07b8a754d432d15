//! The process table. Any process that can start others can make it long, so it is bounded. Beyond the bound, the node's own
//! processes are kept and those of containers are counted.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::place::ProcessNamespaces;
use super::{Handle, RawProcess, is_gone, processor_time, stat, unless_gone};

/// How much of a process table is read and kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Number of processes that are kept, whatever they are.
    pub kept: usize,
    /// Number of the node's own processes that are kept beyond those.
    pub own: usize,
    /// Number of parents whose children beyond `kept` are counted.
    pub parents: usize,
    /// Processor time for the part beyond `kept`.
    pub time: Duration,
}

impl Bounds {
    /// A usual node has less than 10,000 processes. While a table is read, each that is kept takes some 380 bytes: 9 MiB at most.
    pub(crate) const USUAL: Self = Self { kept: 16_384, own: 8_192, parents: 32_768, time: Duration::from_secs(2) };
}

/// Processes, by ascending pid, and which of them are missing.
#[derive(Debug, Default)]
pub struct Table {
    /// All processes. If the table is too long: all of the node's own, and some of the others.
    pub processes: Vec<RawProcess>,
    /// How many processes of containers, or of users other than root, are not among them.
    pub left_out: usize,
    /// Why the node's own processes, or children of those, may be missing. `None`: one of the node's own processes that is not
    /// in the table does not exist, and the numbers of children are right.
    pub lack: Option<String>,
}

struct Reader<'a> {
    root: &'a Path,
    bounds: Bounds,
    processes: BTreeMap<i32, RawProcess>,
    /// The node's own processes beyond `bounds.kept`.
    own: usize,
    /// The place of process 1; known once a process has to be judged by its place.
    node: Option<ProcessNamespaces>,
    left_out: usize,
    /// How many children of each parent live, among those left out.
    children: BTreeMap<i32, u32>,
    lack: Option<String>,
}

/// The whole table: every one of the node's own processes, with the right numbers of children.
///
/// # Errors
/// When a process cannot be read for another reason than that it has ended, or when the table is so long that the node's own
/// processes may be missing.
pub fn table(root: &Path) -> io::Result<Vec<RawProcess>> {
    let table = Table::read(root, [], Bounds::USUAL)?;
    table.lack.map_or(Ok(table.processes), |lack| Err(io::Error::other(lack)))
}

impl Table {
    /// As much of the table as there is room for. The processes `first` are read before all others.
    ///
    /// # Errors
    /// When a process cannot be read for another reason than that it has ended. A table with unknown gaps would let a living
    /// child or parent look absent.
    pub(crate) fn read(root: &Path, first: impl IntoIterator<Item = i32>, bounds: Bounds) -> io::Result<Self> {
        let mut reader = Reader {
            root,
            bounds,
            processes: BTreeMap::new(),
            own: 0,
            node: None,
            left_out: 0,
            children: BTreeMap::new(),
            lack: None,
        };
        for pid in first {
            reader.take(pid)?;
        }
        let mut began = None;
        for entry in std::fs::read_dir(root)? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()).filter(|pid| *pid > 0) else {
                continue;
            };
            reader.take(pid)?;
            if reader.left_out > 0 && reader.is_over(*began.get_or_insert_with(processor_time)) {
                break;
            }
        }
        Ok(reader.end())
    }
}

impl Reader<'_> {
    fn take(&mut self, pid: i32) -> io::Result<()> {
        if self.processes.contains_key(&pid) {
            return Ok(());
        }
        let Some(stat) = unless_gone(stat::read(self.root, pid))? else { return Ok(()) };
        let process = RawProcess::from_stat(pid, stat);
        if self.processes.len() >= self.bounds.kept {
            if !self.is_own(&process) {
                self.leave_out(&process);
                return Ok(());
            }
            if self.own >= self.bounds.own {
                let most = self.bounds.own;
                self.lacks(format!(
                    "the node has more than {most} processes of its own beyond those of its containers"
                ));
                return Ok(());
            }
            self.own += 1;
        }
        self.processes.insert(pid, process);
        Ok(())
    }

    /// Whether a process is one of the node's own. One that cannot be judged is left out, and counts as missing.
    fn is_own(&mut self, process: &RawProcess) -> bool {
        let node = self.node.get_or_insert_with(|| ProcessNamespaces::of_first(self.root));
        match Handle::open(self.root, process.pid).and_then(|handle| node.has(&handle)) {
            Ok(is_own) => is_own,
            Err(error) if is_gone(&error) => false,
            Err(error) => {
                self.lacks(format!("whether process {} is one of the node's own is not known: {error}", process.pid));
                false
            }
        }
    }

    fn leave_out(&mut self, process: &RawProcess) {
        self.left_out += 1;
        if self.children.len() < self.bounds.parents || self.children.contains_key(&process.parent) {
            count(&mut self.children, process);
        } else {
            let most = self.bounds.parents;
            self.lacks(format!("the children of more than {most} processes are not counted"));
        }
    }

    fn is_over(&mut self, began: Duration) -> bool {
        let is_over = processor_time().saturating_sub(began) > self.bounds.time;
        if is_over {
            let (kept, time) = (self.processes.len(), self.bounds.time.as_secs());
            self.lacks(format!(
                "the process table is too long to be read: after {kept} processes that are kept and {} that are not, {time} s of a \
                 processor were used",
                self.left_out
            ));
        }
        is_over
    }

    fn lacks(&mut self, why: String) {
        self.lack.get_or_insert(why);
    }

    fn end(self) -> Table {
        let Self { mut processes, mut children, left_out, lack, .. } = self;
        for process in processes.values() {
            count(&mut children, process);
        }
        for (parent, living) in children {
            if let Some(parent) = processes.get_mut(&parent) {
                parent.living_children = living;
            }
        }
        Table { processes: processes.into_values().collect(), left_out, lack }
    }
}

/// Counts a process for its parent, if it lives.
fn count(children: &mut BTreeMap<i32, u32>, child: &RawProcess) {
    let living = children.entry(child.parent).or_default();
    *living = living.saturating_add(u32::from(!child.is_dead()));
}
