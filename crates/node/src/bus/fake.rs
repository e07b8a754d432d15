//! A bus with systemd and its login manager for tests. It knows units, restarts them and reboots as the test sets, and records
//! its calls.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use super::message::{encoded, field, signature, text, texts};
use super::units::UnitSeen;

const JOB: &str = "/org/freedesktop/systemd1/job/42";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Restarts {
    /// Its job ends with this result, and the unit then has this state.
    End(&'static str, UnitSeen),
    Never,
    Refuse(&'static str),
    /// The connection ends after the call.
    Cut,
    /// The connection ends after the call to reset the unit's failures.
    CutAtReset,
}

#[derive(Clone, Debug)]
pub(crate) struct Login {
    /// To `CanReboot`.
    pub can: &'static str,
    /// To `ListInhibitors`: what, who, why and how.
    pub locks: Vec<[&'static str; 4]>,
    /// Whether the end of that answer is missing.
    pub cut_short: bool,
    /// To `Reboot`.
    pub reboots: Reboots,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reboots {
    Accepted,
    Never,
    Refuse(&'static str),
    /// The connection ends after the call.
    Cut,
}

impl Default for Login {
    fn default() -> Self {
        Self { can: "yes", locks: Vec::new(), cut_short: false, reboots: Reboots::Accepted }
    }
}

/// Its units, the results of a restart, and the calls it received.
#[derive(Debug)]
struct World {
    units: BTreeMap<String, UnitSeen>,
    restarts: Restarts,
    login: Login,
    calls: Vec<String>,
}

/// The server; it ends with the test's async runtime.
#[derive(Clone, Debug)]
pub(crate) struct Systemd {
    pub(crate) socket: PathBuf,
    world: Arc<Mutex<World>>,
}

/// A unit that is loaded and enabled, in this state.
pub(crate) fn unit(active: &str, sub: &str) -> UnitSeen {
    let text = str::to_owned;
    UnitSeen {
        load: text("loaded"),
        active: text(active),
        sub: text(sub),
        file: text("enabled"),
        kill: text("process"),
        ..UnitSeen::default()
    }
}

impl Systemd {
    pub(crate) fn start(socket: &Path, units: &[(&str, UnitSeen)], restarts: Restarts) -> Self {
        let units = units.iter().map(|(name, seen)| ((*name).to_owned(), seen.clone())).collect();
        let world = Arc::new(Mutex::new(World { units, restarts, login: Login::default(), calls: Vec::new() }));
        let listener = UnixListener::bind(socket).unwrap();
        let served = Arc::clone(&world);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let world = Arc::clone(&served);
                tokio::spawn(async move { serve(stream, &world).await });
            }
        });
        Self { socket: socket.to_owned(), world }
    }

    pub(crate) fn login(&self, login: Login) {
        self.world.lock().unwrap().login = login;
    }

    /// The calls that change something, in order.
    pub(crate) fn acts(&self) -> Vec<String> {
        let calls = self.world.lock().unwrap().calls.clone();
        let changes = |call: &String| ["ResetFailed", "Restart", "Reboot"].iter().any(|name| call.starts_with(name));
        calls.into_iter().filter(changes).collect()
    }
}

async fn serve(mut stream: UnixStream, world: &Mutex<World>) {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.push(stream.read_u8().await.unwrap_or(b'\n'));
    }
    stream.write_all(b"OK 1234deadbeef\r\n").await.unwrap();
    let mut begin = [0; 7];
    stream.read_exact(&mut begin).await.unwrap();
    while let Some((serial, member, arguments)) = next_call(&mut stream).await {
        for answer in world.lock().unwrap().answers(serial, &member, &arguments) {
            let Some(answer) = answer else { return };
            // Bytes that cannot be written any more are dropped.
            let _ = stream.try_write(&answer);
        }
    }
}

/// Serial, member and texts of the next call.
async fn next_call(stream: &mut UnixStream) -> Option<(u32, String, Vec<String>)> {
    let mut fixed = [0; 16];
    stream.read_exact(&mut fixed).await.ok()?;
    let number = |at: usize| u32::from_le_bytes(fixed[at..at + 4].try_into().unwrap());
    let (body, serial, fields) = (number(4) as usize, number(8), number(12) as usize);
    let mut rest = vec![0; fields.next_multiple_of(8) + body];
    stream.read_exact(&mut rest).await.ok()?;
    let (header, body) = rest.split_at(fields.next_multiple_of(8));
    // The code of each field, and its text where it is one.
    let (mut at, mut member) = (0, String::new());
    while at < fields {
        at = at.next_multiple_of(8);
        let (code, kind) = (header[at], header[at + 2]);
        if kind == b'g' {
            at += 6 + usize::from(header[at + 4]);
            continue;
        }
        let length = u32::from_le_bytes(header[at + 4..at + 8].try_into().unwrap()) as usize;
        let text = String::from_utf8(header[at + 8..at + 8 + length].to_vec()).unwrap();
        member = if code == 3 { text } else { member };
        at += 9 + length;
    }
    let (mut at, mut arguments) = (0, Vec::new());
    while at < body.len() {
        at = at.next_multiple_of(4);
        let length = u32::from_le_bytes(body[at..at + 4].try_into().unwrap()) as usize;
        arguments.push(String::from_utf8(body[at + 4..at + 4 + length].to_vec()).unwrap());
        at += 5 + length;
    }
    Some((serial, member, arguments))
}

impl World {
    /// The answers to a call, in order; `None` ends the connection.
    fn answers(&mut self, serial: u32, member: &str, arguments: &[String]) -> Vec<Option<Vec<u8>>> {
        self.calls.push(format!("{member} {}", arguments.join(" ")));
        let first = arguments.first().cloned().unwrap_or_default();
        match member {
            // The path of a unit's object is its name here.
            "LoadUnit" => {
                self.calls.push(format!("at {first}"));
                vec![Some(reply(serial, "o", &text(&format!("/{first}"))))]
            }
            "Get" => {
                let name = self.calls.iter().rev().find_map(|call| call.strip_prefix("at ")).unwrap_or_default();
                let missing = UnitSeen { load: "not-found".into(), active: "inactive".into(), ..UnitSeen::default() };
                let seen = self.units.get(name).unwrap_or(&missing);
                let plain = |value: &str| [&[1, b's', 0, 0][..], &text(value)].concat();
                let value = match arguments[1].as_str() {
                    "LoadState" => plain(&seen.load),
                    "ActiveState" => plain(&seen.active),
                    "SubState" => plain(&seen.sub),
                    "UnitFileState" => plain(&seen.file),
                    "KillMode" => plain(&seen.kill),
                    "MainPID" => [[1, b'u', 0, 0], seen.main_pid.to_le_bytes()].concat(),
                    "Job" => [&b"\x04(uo)\0\0\0"[..], &seen.job.to_le_bytes(), &text("/")].concat(),
                    "RequiredBy" | "ConsistsOf" => b"\x02as\0\0\0\0\0".to_vec(),
                    "BoundBy" => {
                        let names = texts(&seen.restarted_with);
                        let length = u32::try_from(names.len()).unwrap().to_le_bytes();
                        [&b"\x02as\0"[..], &length, &names].concat()
                    }
                    other => panic!("nobody asks for {other}"),
                };
                vec![Some(reply(serial, "v", &value))]
            }
            "ResetFailedUnit" if matches!(self.restarts, Restarts::CutAtReset) => vec![None],
            "RestartUnit" => self.restart(serial, &first),
            "CanReboot" => vec![Some(reply(serial, "s", &text(self.login.can)))],
            "ListInhibitors" => {
                let mut body = locks(&self.login.locks);
                if self.login.cut_short {
                    body.truncate(body.len() - 4);
                }
                vec![Some(reply(serial, "a(ssssuu)", &body))]
            }
            // False is a 0, which reads like an empty text. True could not be read at all.
            "Reboot" => match self.login.reboots {
                Reboots::Accepted => vec![Some(reply(serial, "", &[]))],
                Reboots::Never => Vec::new(),
                Reboots::Cut => vec![None],
                Reboots::Refuse(error) => vec![Some(refusal(serial, error))],
            },
            _ => vec![Some(reply(serial, "", &[]))],
        }
    }

    fn restart(&mut self, serial: u32, unit: &str) -> Vec<Option<Vec<u8>>> {
        let begun = reply(serial, "o", &text(JOB));
        let ended = |job: &str, result: &str| {
            let body = [&42_u32.to_le_bytes()[..], &texts(&[job, unit, result])].concat();
            message(4, &[field(3, b's', "JobRemoved"), signature("uoss")], &body)
        };
        match self.restarts.clone() {
            Restarts::Refuse(error) => vec![Some(refusal(serial, error))],
            Restarts::Never => vec![Some(begun), Some(ended("/org/freedesktop/systemd1/job/7", "done"))],
            Restarts::Cut | Restarts::CutAtReset => vec![Some(begun), None],
            Restarts::End(result, after) => {
                self.units.insert(unit.to_owned(), after);
                // The end of another job, then the end of ours before the answer that names it.
                vec![Some(ended("/org/freedesktop/systemd1/job/7", "failed")), Some(ended(JOB, result)), Some(begun)]
            }
        }
    }
}

/// The inhibitors of a shutdown, each with user id 0 and process id 77, in the login manager's encoding.
pub(super) fn locks(locks: &[[&str; 4]]) -> Vec<u8> {
    // The array begins at 8, and its length counts from there.
    let mut all = vec![0; 8];
    for lock in locks {
        all.resize(all.len().next_multiple_of(8), 0);
        all.extend(texts(lock));
        all.resize(all.len().next_multiple_of(4), 0);
        all.extend(0_u32.to_le_bytes());
        all.extend(77_u32.to_le_bytes());
    }
    let length = u32::try_from(all.len() - 8).unwrap();
    all[..4].copy_from_slice(&length.to_le_bytes());
    all
}

fn refusal(serial: u32, error: &str) -> Vec<u8> {
    let fields = [number_field(5, serial), field(4, b's', error), signature("s")];
    message(3, &fields, &text("because of a test"))
}

pub(super) fn number_field(code: u8, value: u32) -> Vec<u8> {
    [vec![code, 1, b'u', 0], value.to_le_bytes().to_vec()].concat()
}

fn reply(serial: u32, kinds: &str, body: &[u8]) -> Vec<u8> {
    let mut fields = vec![number_field(5, serial)];
    if !kinds.is_empty() {
        fields.push(signature(kinds));
    }
    message(2, &fields, body)
}

pub(super) fn message(kind: u8, fields: &[Vec<u8>], body: &[u8]) -> Vec<u8> {
    encoded(kind, 0, 7, fields, body)
}
