//! The stand-in of a shim: one process per sandbox that starts, watches and signals what runs in it.
//!
//! It answers one line per connection, so whoever asks a stopped one waits, as with a real one:
//! `start ID`, `state ID`, `kill ID SIGNAL`. It ends when nothing runs below it any more.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

use super::ROOT;
use super::table::{Config, KILLED, Object, Table, write};
use crate::process::{Identity, wait_until};

pub(super) const NAME: &str = "containerd-shim-runc-v2";

/// How long a new shim may take to answer.
const START: Duration = Duration::from_secs(10);
/// How often it checks whether something below it has ended.
const REAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// How long a client may take for its line.
const LINE: Duration = Duration::from_secs(1);
/// A shim below which nothing has ever run ends after this.
const UNUSED: Duration = Duration::from_secs(20);

/// `containerd-shim-runc-v2 -namespace k8s.io -id SANDBOX -address SOCKET [start]`, as the real one is called.
pub(super) fn run() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let at = args.iter().position(|arg| arg == "-id").context("no -id")?;
    let id = args.get(at + 1).context("no id")?;
    let table = Table::open(Path::new(ROOT))?;
    if args.last().is_some_and(|arg| arg == "start") { start(&table, id, &args) } else { serve(&table, id) }
}

/// Calls the shim of a new sandbox into being, by way of a process that ends, so that it belongs to the node's init.
pub(super) async fn launch(table: &Table, sandbox: &str) -> Result<()> {
    let arguments = ["-namespace", "k8s.io", "-id", sandbox, "-address", crate::view::SOCKET, "start"];
    let status = tokio::process::Command::new(NAME).args(arguments).status().await.context("start a shim")?;
    if !status.success() || !table.shim_socket(sandbox).exists() {
        bail!("the shim of {sandbox} did not start: {status}");
    }
    Ok(())
}

fn start(table: &Table, id: &str, args: &[String]) -> Result<()> {
    let log = OpenOptions::new().create(true).append(true).open("/var/log/shims.log").context("/var/log/shims.log")?;
    let mut shim = Command::new(NAME);
    shim.args(&args[1..args.len() - 1]).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
    shim.spawn().context("start the shim")?;
    ensure!(wait_until(START, || table.shim_socket(id).exists()), "the shim did not come up within {START:?}");
    Ok(())
}

fn serve(table: &Table, id: &str) -> Result<()> {
    write(&table.shim_identity(id), &Identity::of(i32::try_from(std::process::id())?)?)?;
    let socket = table.shim_socket(id);
    // Bound under another name first: once the file is there, somebody answers.
    let new = socket.with_extension("new");
    let _ = fs::remove_file(&new);
    let listener = UnixListener::bind(&new).with_context(|| new.display().to_string())?;
    fs::rename(&new, &socket)?;
    let mut shim = Shim { table, children: BTreeMap::new() };
    let (began, mut used) = (Instant::now(), false);
    loop {
        let mut fds = [PollFd::new(&listener, PollFlags::IN)];
        if poll(&mut fds, Some(&REAP)).unwrap_or_default() > 0
            && let Ok((stream, _)) = listener.accept()
            && let Err(error) = shim.answer(&stream)
        {
            eprintln!("shim {id}: {error:#}");
        }
        shim.reap()?;
        used |= !shim.children.is_empty();
        if shim.children.is_empty() && (used || began.elapsed() > UNUSED) {
            fs::remove_file(&socket)?;
            return Ok(());
        }
    }
}

struct Shim<'a> {
    table: &'a Table,
    children: BTreeMap<String, Child>,
}

impl Shim<'_> {
    fn answer(&mut self, stream: &UnixStream) -> Result<()> {
        stream.set_read_timeout(Some(LINE))?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        let words: Vec<&str> = line.split_whitespace().collect();
        self.reap()?;
        let said = match words.as_slice() {
            ["start", id] => self.start(id).map(|()| "ok".to_owned()),
            ["state", id] => Ok(if self.children.contains_key(*id) { "running" } else { "stopped" }.to_owned()),
            ["kill", id, signal] => self.kill(id, signal).map(|()| "ok".to_owned()),
            _ => bail!("not understood: {line:?}"),
        };
        let said = said.unwrap_or_else(|error| format!("error {error:#}").replace('\n', " "));
        let mut stream = stream;
        writeln!(stream, "{said}").context("answer")
    }

    fn start(&mut self, id: &str) -> Result<()> {
        let object = self.table.find(id).context("no such object")?;
        let child = command(&object)?.process_group(0).spawn().with_context(|| format!("run {:?}", object.argv))?;
        let process = Identity::of(i32::try_from(child.id())?)?;
        self.children.insert(id.to_owned(), child);
        self.table.started(id, process)
    }

    /// A process that has ended needs no signal.
    fn kill(&self, id: &str, signal: &str) -> Result<()> {
        let Some(child) = self.children.get(id) else { return Ok(()) };
        let signal = match signal {
            "TERM" => Signal::TERM,
            "KILL" => Signal::KILL,
            other => bail!("signal {other}?"),
        };
        // Nobody else takes its exit status, so the pid is still its own.
        kill_process(Pid::from_child(child), signal).context("signal")
    }

    fn reap(&mut self) -> Result<()> {
        let mut ended = Vec::new();
        for (id, child) in &mut self.children {
            if let Some(status) = child.try_wait()? {
                ended.push((id.clone(), status.code().unwrap_or_else(|| status.signal().map_or(KILLED, |s| 128 + s))));
            }
        }
        for (id, code) in ended {
            self.children.remove(&id);
            self.table.ended(&id, code)?;
        }
        Ok(())
    }
}

/// What runs an object: its program in a mount namespace of its own, where volumes are.
fn command(object: &Object) -> Result<Command> {
    let (mounts, log) = match &object.config {
        Config::Sandbox(_) => (&[][..], ""),
        Config::Container(config) => (config.mounts.as_slice(), config.log_path.as_str()),
    };
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "slave", "sh", "-ec", MOUNTS, "sh"]);
    for mount in mounts.iter().filter(|mount| mount.host_path != mount.container_path) {
        command.arg(&mount.host_path).arg(&mount.container_path);
    }
    command.arg("--").args(object.env.iter().map(|(name, value)| format!("{name}={value}"))).args(&object.argv);
    command.stdin(Stdio::null());
    if log.is_empty() {
        command.stdout(Stdio::null()).stderr(Stdio::null());
    } else {
        let log = File::options().create(true).append(true).open(log).with_context(|| log.to_owned())?;
        command.stdout(log.try_clone()?).stderr(log);
    }
    Ok(command)
}

/// Nothing may be written to the machine's own `/dev`, where the file for a container's last words is by default.
const MOUNTS: &str = r#"
dev=
while [ "$1" != -- ]; do
  from=$1; to=$2; shift 2
  case $to in /dev/*) [ -n "$dev" ] || { mount -t tmpfs dev /dev; dev=1; } ;; esac
  if [ -d "$from" ]; then mkdir -p "$to"; else [ -e "$to" ] || : >"$to"; fi
  mount --bind "$from" "$to"
done
shift
exec env -i "$@"
"#;
