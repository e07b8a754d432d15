//! A bus that behaves badly (by hand, on a real socket), and a real `dbus-daemon` with a stand-in for systemd.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream as Blocking;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::process::Signal;
use tokio::net::UnixListener;

use super::fake::{message, number_field};
use super::message::{MAX_MESSAGE, call, field, signature, text};
use super::*;
use crate::proc::fake::Running;
use crate::waiting::wait_until;

mod login;

const LIMIT: Duration = Duration::from_millis(500);
const HELLO: u32 = 1;
const PING: u32 = 2;

/// An answer to the call of this serial: good, or the error of this name.
fn reply(serial: u32, error: Option<&str>) -> Vec<u8> {
    let mut fields = vec![number_field(5, serial)];
    fields.extend(error.map(|error| field(4, b's', error)));
    message(if error.is_some() { 3 } else { 2 }, &fields, &[])
}

/// What the fake says after the login, after Hello, and after Ping; what is missing at the end is never said.
async fn says(says: &[Vec<u8>]) -> Result<BusSeen, BusError> {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("bus");
    let listener = UnixListener::bind(&socket).unwrap();
    let says = says.to_vec();
    let fake = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut buffer = vec![0; 4096];
        for say in says {
            if stream.read(&mut buffer).await.unwrap_or(0) == 0 || say.is_empty() {
                return;
            }
            let _ = stream.write_all(&say).await;
            // BEGIN and what follows it are two writes: they may come as two.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep(Duration::from_mins(1)).await;
    });
    let said = ping(&socket, LIMIT).await;
    fake.abort();
    said
}

fn ok() -> Vec<u8> {
    b"OK 1234deadbeef\r\n".to_vec()
}

#[expect(clippy::unnecessary_wraps, reason = "held against answers, of which some are errors")]
fn silent(step: BusStep, how: &str) -> Result<BusSeen, BusError> {
    Ok(BusSeen::Silent { step, how: how.to_owned() })
}

#[expect(clippy::unnecessary_wraps, reason = "held against answers, of which some are errors")]
fn refused(step: BusStep, how: &str) -> Result<BusSeen, BusError> {
    Ok(BusSeen::Refused { step, how: how.to_owned() })
}

/// The fakes encode with the same functions, so these bytes are written by hand, from the D-Bus specification.
#[test]
fn a_call_has_the_bytes_of_the_specification() {
    let expected = [
        &b"l\x01\x02\x01\x0f\0\0\0\x05\0\0\0\x38\0\0\0"[..],
        b"\x01\x01o\0\x02\0\0\0/a\0\0\0\0\0\0",
        b"\x06\x01s\0\x01\0\0\0b\0\0\0\0\0\0\0",
        b"\x03\x01s\0\x01\0\0\0C\0\0\0\0\0\0\0",
        b"\x08\x01g\0\x02ss\0",
        b"\x01\0\0\0x\0\0\0\x02\0\0\0yz\0",
    ];
    assert_eq!(call(5, &[(1, "/a"), (6, "b"), (3, "C")], &["x", "yz"]), expected.concat());
}

#[tokio::test]
async fn a_bus_on_which_systemd_answers() {
    assert_eq!(says(&[ok(), reply(HELLO, None), reply(PING, None)]).await, Ok(BusSeen::Answered));
    // The bus tells of the new name on its own, at any moment.
    let signal = message(4, &[field(3, b's', "N")], &[9; 21]);
    let both = [reply(HELLO, None), signal.clone()].concat();
    assert_eq!(says(&[ok(), both, [signal, reply(PING, None)].concat()]).await, Ok(BusSeen::Answered));
}

#[tokio::test]
async fn silence_has_a_limit_and_says_how_far_it_got() {
    for (said, step) in [
        (vec![], BusStep::Login),
        (vec![b"OK 12".to_vec()], BusStep::Login),
        (vec![ok()], BusStep::Hello),
        (vec![ok(), reply(HELLO, None)], BusStep::Ping),
        (vec![ok(), reply(HELLO, None), reply(HELLO, None)], BusStep::Ping),
        (vec![ok(), reply(HELLO, None), reply(PING, None)[..20].to_vec()], BusStep::Ping),
    ] {
        assert_eq!(says(&said).await, silent(step, "no answer within 0 s"));
    }
    assert_eq!(says(&[ok(), Vec::new()]).await, refused(BusStep::Hello, "the connection was closed"));
}

#[tokio::test]
async fn errors_are_told_apart() {
    let name = |short: &str| format!("org.freedesktop.DBus.Error.{short}");
    for (short, seen) in [
        ("ServiceUnknown", Ok(BusSeen::NotOnIt)),
        ("NameHasNoOwner", Ok(BusSeen::NotOnIt)),
        ("UnknownMethod", Ok(BusSeen::Answered)),
        ("NoReply", silent(BusStep::Ping, "the bus says NoReply")),
        ("AccessDenied", Err(BusError::Forbidden("AccessDenied".into()))),
        ("Whatever", Err(BusError::Odd("Whatever".into()))),
    ] {
        let said = says(&[ok(), reply(HELLO, None), reply(PING, Some(&name(short)))]).await;
        assert_eq!(said, seen, "{short}");
    }
    let full = reply(HELLO, Some(&name("LimitsExceeded")));
    assert_eq!(says(&[ok(), full]).await, refused(BusStep::Hello, "the bus says LimitsExceeded"));
    let refused = says(&[b"REJECTED EXTERNAL\r\n".to_vec()]).await;
    assert!(matches!(refused, Err(BusError::Forbidden(_))), "{refused:?}");
}

#[tokio::test]
async fn what_is_no_bus_is_odd_and_nothing_of_it_is_kept() {
    let mut huge = reply(HELLO, None);
    huge[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    let long = message(2, &[number_field(5, HELLO)], &vec![0; MAX_MESSAGE]);
    for said in [
        vec![b"HTTP/1.1 400 Bad Request\r\n".to_vec()],
        vec![vec![b'x'; 100_000]],
        vec![ok(), vec![b'x'; 100]],
        vec![ok(), huge],
        vec![ok(), long],
        vec![ok(), message(2, &[], &[])],
        vec![ok(), message(3, &[number_field(5, HELLO)], &[])],
    ] {
        let seen = says(&said).await;
        let Err(BusError::Odd(what)) = seen else { panic!("{seen:?}") };
        assert!(what.len() <= MAX_ERROR);
    }
}

#[tokio::test]
async fn a_socket_that_is_not_there_or_that_nobody_serves() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("bus");
    assert!(matches!(ping(&socket, LIMIT).await, Err(BusError::Missing(_))));
    drop(UnixListener::bind(&socket).unwrap());
    assert_eq!(ping(&socket, LIMIT).await, refused(BusStep::Connect, "nobody takes connections"));
    // One whose queue is full, since it takes nobody any more.
    let full = folder.path().join("full");
    let listener = std::os::unix::net::UnixListener::bind(&full).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let _waits = Blocking::connect(&full).unwrap();
    assert_eq!(ping(&full, LIMIT).await, silent(BusStep::Connect, "too many wait to be taken already"));
}

/// A bus for as many connections as this at a time. `None` where the machine has none to start.
fn daemon(folder: &Path, connections: u32) -> Option<(PathBuf, Running)> {
    let program = ["/usr/bin/dbus-daemon", "/bin/dbus-daemon"].into_iter().find(|path| Path::new(path).exists());
    let Some(program) = program else {
        eprintln!("SKIP: no dbus-daemon here (Debian: dbus-daemon)");
        return None;
    };
    let (config, socket) = (folder.join("bus.conf"), folder.join("bus"));
    let text = format!(
        r#"<busconfig><type>system</type><listen>unix:path={}</listen><auth>EXTERNAL</auth>
        <policy context="default"><allow send_destination="*"/><allow receive_sender="*"/><allow own="*"/></policy>
        <limit name="max_connections_per_user">{connections}</limit></busconfig>"#,
        socket.display()
    );
    std::fs::write(&config, text).unwrap();
    let (config, flags) = (format!("--config-file={}", config.display()), ["--nofork", "--nopidfile", "--nosyslog"]);
    let daemon = Running::start(Command::new(program).arg(config).args(flags).stdin(Stdio::null()));
    wait_until("the bus", || Blocking::connect(&socket).is_ok());
    Some((socket, daemon))
}

/// A connection as another program has it.
fn client(socket: &Path) -> Blocking {
    let mut stream = Blocking::connect(socket).unwrap();
    let uid = rustix::process::geteuid().as_raw().to_string();
    let uid: String = uid.chars().flat_map(|digit| ['3', digit]).collect();
    stream.write_all(format!("\0AUTH EXTERNAL {uid}\r\n").as_bytes()).unwrap();
    assert!(stream.read(&mut [0; 256]).unwrap() > 0);
    let hello = [(1, "/org/freedesktop/DBus"), (6, "org.freedesktop.DBus"), (2, "org.freedesktop.DBus"), (3, "Hello")];
    stream.write_all(&[&b"BEGIN\r\n"[..], &call(1, &hello, &[])].concat()).unwrap();
    stream
}

/// No test: the process that plays systemd in the tests below.
#[test]
#[ignore = "run by other tests, as a process of its own"]
fn stand_in() {
    let socket = std::env::var_os("NRH_TEST_BUS").unwrap();
    let mut stream = client(Path::new(&socket));
    own(&mut stream, "org.freedesktop.systemd1");
    serve(&mut stream, |stream, call| answer_call(stream, call, "", &[]));
}

/// Takes a name on the bus.
fn own(stream: &mut Blocking, name: &str) {
    let fields = [
        field(1, b'o', "/org/freedesktop/DBus"),
        field(6, b's', "org.freedesktop.DBus"),
        field(2, b's', "org.freedesktop.DBus"),
        field(3, b's', "RequestName"),
        signature("su"),
    ];
    let mut body = text(name);
    body.resize(body.len().next_multiple_of(4), 0);
    body.extend(4_u32.to_le_bytes());
    stream.write_all(&message(1, &fields, &body)).unwrap();
}

/// Hands on each call until the connection ends.
fn serve(stream: &mut Blocking, mut answer: impl FnMut(&mut Blocking, &[u8])) {
    let mut unread = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        while let Some((_, bytes)) = Message::take(&unread).unwrap() {
            let taken: Vec<u8> = unread.drain(..bytes).collect();
            if taken[1] == 1 {
                answer(stream, &taken);
            }
        }
        match stream.read(&mut buffer).unwrap() {
            0 => return,
            bytes => unread.extend(&buffer[..bytes]),
        }
    }
}

/// Answers a call with a body of these kinds.
fn answer_call(stream: &mut Blocking, call: &[u8], kinds: &str, body: &[u8]) {
    let at = call.windows(3).position(|bytes| bytes == b":1.").unwrap();
    let sender: Vec<u8> = call[at..].iter().copied().take_while(|byte| *byte != 0).collect();
    let serial = u32::from_le_bytes(call[8..12].try_into().unwrap());
    let mut fields = vec![number_field(5, serial), field(6, b's', &String::from_utf8(sender).unwrap())];
    if !kinds.is_empty() {
        fields.push(signature(kinds));
    }
    stream.write_all(&message(2, &fields, body)).unwrap();
}

fn systemd(socket: &Path) -> Running {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--ignored", "--exact", "bus::tests::stand_in"]).env("NRH_TEST_BUS", socket);
    Running::start(program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))
}

/// Asks until this is seen: a process that is started or goes on needs a moment.
async fn until(socket: &Path, what: &str, done: impl Fn(&Result<BusSeen, BusError>) -> bool) {
    let began = Instant::now();
    loop {
        let seen = ping(socket, LIMIT).await;
        if done(&seen) {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{what}: {seen:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_real_bus_with_and_without_a_systemd_that_answers() {
    let folder = tempfile::tempdir().unwrap();
    let Some((socket, bus)) = daemon(folder.path(), 3) else { return };
    let answers = |seen: &Result<BusSeen, BusError>| *seen == Ok(BusSeen::Answered);
    until(&socket, "nobody has the name", |seen| *seen == Ok(BusSeen::NotOnIt)).await;
    let systemd = systemd(&socket);
    until(&socket, "it has the name", answers).await;

    systemd.signal(Signal::STOP);
    let stopped = silent(BusStep::Ping, "no answer within 0 s");
    until(&socket, "it is stopped", |seen| *seen == stopped).await;
    systemd.signal(Signal::CONT);
    until(&socket, "it goes on", answers).await;

    bus.signal(Signal::STOP);
    assert_eq!(ping(&socket, LIMIT).await, silent(BusStep::Login, "no answer within 0 s"));
    bus.signal(Signal::CONT);
    until(&socket, "the bus goes on", answers).await;

    // Of three connections one is systemd's: what is left of each question would be one too many soon.
    for number in 0..30 {
        until(&socket, &format!("question {number}"), answers).await;
    }
    let _others = [client(&socket), client(&socket)];
    let full = refused(BusStep::Hello, "the bus says LimitsExceeded");
    until(&socket, "all connections are taken", |seen| *seen == full).await;
    drop((systemd, bus));
    assert_eq!(ping(&socket, LIMIT).await, refused(BusStep::Connect, "nobody takes connections"));
}
