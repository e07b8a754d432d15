//! Who answers at the kubelet's health port: the kubelet, or a pod that has the port as its `hostPort`.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use crate::proc::Handle;

/// Most sockets of the node that are read.
const MAX_ROWS: usize = 1 << 20;
/// `TCP_LISTEN` of the kernel's `include/net/tcp_states.h`.
const LISTEN: &str = "0A";

/// How far a call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contact {
    /// No connection could be made, because this process lacks something.
    NotConnected,
    Refused,
    /// Nothing answered the request for a connection.
    Waiting,
    /// There was a connection, from this port.
    Connected(u16),
}

/// One line of `net/tcp`: a socket at the port in question.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    remote: u16,
    is_listener: bool,
    /// Whether connections wait for a listener to take them.
    has_backlog: bool,
    /// The socket; 0 = no process has it.
    inode: u64,
}

/// Checks that the kubelet is the peer of a call to this port in the network namespace of this process. The caller keeps the
/// connection open.
///
/// # Errors
/// A phrase that says what is not proven.
pub(super) fn prove(proc: &Path, pid: i32, port: u16, contact: Contact) -> Result<(), String> {
    let read = || -> io::Result<_> {
        // In this order: what was taken before the first reading is still there at the second.
        let rows = rows(proc, port)?;
        Ok((rows, Handle::open(proc, pid)?.sockets()?))
    };
    let (rows, sockets) = read().map_err(|error| format!("cannot read who has port {port}: {error}"))?;
    // A kubelet without any open file answers nobody: it ends, which can take for ever.
    let Some(sockets) = sockets else { return Ok(()) };
    let is_kubelets = |row: &Row| sockets.contains(&row.inode);
    let listener = rows.iter().find(|row| row.is_listener && is_kubelets(row));
    // What the kubelet has not taken yet, or has closed, belongs to no process.
    let is_peer = |row: &Row, from| !row.is_listener && row.remote == from && (row.inode == 0 || is_kubelets(row));
    let why = match (contact, listener) {
        (Contact::NotConnected, _) => return Err("no connection could be made".to_owned()),
        (Contact::Refused, None) if !rows.iter().any(|row| row.is_listener) => return Ok(()),
        (Contact::Refused, Some(_)) => "the kubelet listens there, but something else refused the connection",
        (_, None) => "the kubelet does not listen there",
        (Contact::Waiting, Some(listener)) if listener.has_backlog => return Ok(()),
        (Contact::Waiting, Some(_)) => "the connection has not reached the kubelet",
        (Contact::Connected(from), Some(_)) if rows.iter().any(|row| is_peer(row, from)) => return Ok(()),
        (Contact::Connected(_), Some(_)) => "another program took the connection",
    };
    Err(format!("{why}; expected kubelet {pid} at port {port}: check for a pod with hostPort {port}"))
}

/// The sockets at this port.
fn rows(proc: &Path, port: u16) -> io::Result<Vec<Row>> {
    let mut found = Vec::new();
    for table in ["self/net/tcp", "self/net/tcp6"] {
        let file = match File::open(proc.join(table)) {
            // A node without IPv6 has no such table.
            Err(error) if error.kind() == io::ErrorKind::NotFound && table.ends_with('6') => continue,
            file => file?,
        };
        for (number, line) in BufReader::new(file).lines().enumerate() {
            if number > MAX_ROWS {
                return Err(io::Error::other(format!("{table} has more than {MAX_ROWS} lines")));
            }
            found.extend(row(&line?, port));
        }
    }
    Ok(found)
}

/// Reads `sl local remote state queues timer retransmits uid timeout inode …`, as `Documentation/networking/proc_net_tcp.rst` of the
/// kernel describes it.
fn row(line: &str, port: u16) -> Option<Row> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let port_of = |address: &str| u16::from_str_radix(address.rsplit(':').next()?, 16).ok();
    let (local, remote) = (port_of(fields.next()?)?, port_of(fields.next()?)?);
    let (state, queues) = (fields.next()?, fields.next()?);
    let inode = fields.nth(4)?.parse().ok()?;
    let backlog = u32::from_str_radix(queues.rsplit(':').next()?, 16).ok()?;
    (local == port).then_some(Row { remote, is_listener: state == LISTEN, has_backlog: backlog > 0, inode })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::proc::fake::{Entry, IDLE, Proc};

    /// A `/proc` in which process 40 is this test, 41 another one, and 42 one that ends.
    fn processes() -> Proc {
        let root = Proc::new();
        for pid in [40, 41, 42] {
            Entry { pid, command: b"kubelet", exe: "/usr/bin/kubelet", ..IDLE }.write(&root.file(&pid.to_string()));
        }
        symlink("/proc/self", root.file("self")).unwrap();
        symlink("/proc/self/fd", root.file("40/fd")).unwrap();
        std::fs::create_dir_all(root.file("41/fd")).unwrap();
        symlink("/dev/null", root.file("41/fd/0")).unwrap();
        std::fs::create_dir_all(root.file("42/fd")).unwrap();
        root
    }

    #[tokio::test]
    async fn only_the_process_that_has_the_other_end_is_the_peer() {
        let root = processes();
        let proves = |pid, port, contact| prove(root.path(), pid, port, contact);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(proves(40, port, Contact::Waiting).unwrap_err().contains("has not reached the kubelet"));
        let own = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let from = own.local_addr().unwrap().port();
        let (from, elsewhere) = (Contact::Connected(from), Contact::Connected(from.wrapping_add(1)));
        for _ in 0..2 {
            assert_eq!(proves(40, port, from), Ok(()));
            assert!(proves(41, port, from).unwrap_err().starts_with("the kubelet does not listen there"));
            assert!(proves(40, port, elsewhere).unwrap_err().starts_with("another program took the connection"));
            assert!(proves(40, port, Contact::Refused).unwrap_err().contains("refused the connection"));
            assert!(proves(40, port, Contact::NotConnected).is_err());
            drop(tokio::time::timeout(std::time::Duration::from_millis(100), listener.accept()).await);
        }
        // The kubelet has closed its end; the node still knows of it.
        assert_eq!(proves(40, port, from), Ok(()));
    }

    #[tokio::test]
    async fn a_connection_that_waits_in_the_backlog_waits_for_the_kubelet() {
        let root = processes();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let _own = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        assert_eq!(prove(root.path(), 40, port, Contact::Waiting), Ok(()));
        assert!(prove(root.path(), 41, port, Contact::Waiting).is_err());
    }

    #[test]
    fn a_port_without_a_listener_refuses_and_one_of_another_program_proves_nothing() {
        let root = processes();
        assert_eq!(prove(root.path(), 40, 1, Contact::Refused), Ok(()));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(prove(root.path(), 41, port, Contact::Refused).unwrap_err().contains("does not listen there"));
        assert_eq!(prove(root.path(), 42, port, Contact::Refused), Ok(()), "it ends");
    }

    #[test]
    fn a_line_is_read_as_the_kernel_writes_it() {
        let line = "   1: 0100007F:2808 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 3456789 1 0000 20 4";
        let read = Row { remote: 50_000, is_listener: false, has_backlog: false, inode: 3_456_789 };
        assert_eq!(row(line, 10_248), Some(read));
        assert_eq!(row(line, 50_000), None);
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode";
        assert_eq!(row(head, 10_248), None);
        assert_eq!(row("", 10_248), None);
    }
}
