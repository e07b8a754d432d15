use std::fs;

use tokio::net::TcpListener;

use super::*;
use crate::proc::fake::{Entry, IDLE, Proc};

async fn answering(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0_u8; 256];
        let _ = stream.read(&mut request).await.unwrap();
        stream.write_all(answer).await.unwrap();
    });
    address
}

#[tokio::test]
async fn only_200_is_healthy() {
    assert!(healthz(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await).await.is_ok());
    let endless: &'static [u8] = Vec::leak(vec![b'x'; 1 << 16]);
    for answer in [
        endless,
        b"HTTP/1.1 500 Internal Server Error\r\n\r\n200",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"SSH-2.0-OpenSSH 200\r\n",
        b"\xff\xfe\x00200",
        b"",
    ] {
        let unhealthy = healthz(answering(answer).await).await.unwrap_err();
        assert!(unhealthy.message.len() <= 200 && matches!(unhealthy.contact, Contact::Connected(_)), "{unhealthy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_port_ends_at_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let unhealthy = healthz(listener.local_addr().unwrap()).await.unwrap_err();
    assert!(unhealthy.message.contains("within 5 s"), "{unhealthy:?}");
}

#[tokio::test]
async fn a_closed_port_says_refused() {
    // A port that is never given out; one that was given back could be somebody else's by now.
    let unhealthy = healthz("127.0.0.1:1".parse().unwrap()).await.unwrap_err();
    assert!(unhealthy.contact == Contact::Refused && unhealthy.message.contains("refused"), "{unhealthy:?}");
}

#[test]
fn the_address_is_one_a_client_can_use() {
    let at = |address: &str, healthz_port| {
        let settings = Settings { healthz_address: address.parse().unwrap(), healthz_port, ..Settings::default() };
        healthz_address(&settings)
    };
    assert_eq!(at("0.0.0.0", 10248), Ok("127.0.0.1:10248".parse().unwrap()));
    assert_eq!(at("::", 1), Ok("[::1]:1".parse().unwrap()));
    assert_eq!(at("10.99.0.11", 10258), Ok("10.99.0.11:10258".parse().unwrap()));
    assert!(at("127.0.0.1", 0).unwrap_err().contains("switched off"));
    let elsewhere = Settings { same_network: false, ..Settings::default() };
    assert!(healthz_address(&elsewhere).unwrap_err().contains("network namespace"));
}

impl Proc {
    /// A kubelet, or what calls itself so, that started this many seconds after boot.
    fn kubelet(&self, pid: i32, command: &str, exe: &str, args: &str, began: u64) {
        Entry { pid, command: command.as_bytes(), exe, args, began, ..IDLE }.write(&self.file(&pid.to_string()));
        fs::create_dir_all(self.file(&format!("{pid}/root/etc"))).unwrap();
    }

    fn find(&self) -> io::Result<Option<Found>> {
        Finder::new(self.path()).find()
    }
}

#[test]
fn the_kubelet_is_found_with_its_own_settings_and_followed_over_a_restart() {
    let root = Proc::new();
    let mut finder = Finder::new(root.path());
    assert_eq!(finder.find().unwrap(), None);

    root.kubelet(40, "kubelet", "/usr/bin/kubelet", "kubelet --config=/etc/k.yaml", 900);
    let found = finder.find().unwrap().unwrap();
    assert_eq!((found.pid, found.start_ticks, found.age), (40, 90_000, Duration::from_secs(100)));
    assert!(found.settings.unwrap_err().contains("/etc/k.yaml"), "its file cannot be read yet");

    root.write("40/root/etc/k.yaml", "healthzPort: 11001\n");
    assert_eq!(finder.find().unwrap().unwrap().settings.unwrap().healthz_port, 11001);
    // A running kubelet does not read its file again, so neither do we.
    root.write("40/root/etc/k.yaml", "healthzPort: 22002\n");
    assert_eq!(finder.find().unwrap().unwrap().settings.unwrap().healthz_port, 11001);

    fs::remove_dir_all(root.file("40")).unwrap();
    root.kubelet(41, "kubelet", "/usr/bin/kubelet", "kubelet --healthz-port=33003", 950);
    let found = finder.find().unwrap().unwrap();
    assert_eq!((found.pid, found.settings.unwrap().healthz_port), (41, 33003));
    fs::remove_dir_all(root.file("41")).unwrap();
    assert_eq!(finder.find().unwrap(), None);
}

#[test]
fn what_only_calls_itself_kubelet_is_none() {
    let root = Proc::new();
    root.kubelet(40, "kubelet", "/usr/bin/dash", "/bin/sh /usr/local/bin/kubelet", 900);
    root.kubelet(41, "kubelet", "/usr/bin/kubelet", "kubelet --version", 900);
    root.kubelet(42, "other", "/usr/bin/kubelet", "kubelet", 900);
    root.kubelet(43, "kubelet", "/usr/bin/kubelet", "kubelet", 900);
    root.write("43/status", "Uid:\t0\t0\t0\t0\nNSpid:\t43\t7\n");
    root.kubelet(44, "kubelet", "/kubelet", "kubelet", 900);
    root.write("44/status", "Uid:\t65534\t65534\t65534\t65534\nNSpid:\t44\n");
    root.kubelet(45, "kubelet", "/kubelet", "kubelet", 900);
    root.write("45/cgroup", "0::/kubepods/besteffort/podx/y\n");
    assert_eq!(root.find().unwrap(), None);
}

#[test]
fn a_kubelet_in_a_container_is_not_no_kubelet() {
    let root = Proc::new();
    let id = "0123456789abcdef".repeat(4);
    root.kubelet(40, "kubelet", "/usr/bin/kubelet", "kubelet", 900);
    let finds = |group: &str| {
        root.write("40/cgroup", format!("0::{group}\n"));
        root.find().map_err(|error| error.to_string())
    };
    for group in [format!("/system.slice/docker-{id}.scope"), format!("/docker/{id}")] {
        let said = finds(&group).unwrap_err();
        assert!(said.contains("process 40 in one, which is not supported"), "{said}");
    }
    // Beside one that is no container's it is somebody else's.
    root.kubelet(41, "kubelet", "/usr/bin/kubelet", "kubelet", 900);
    assert_eq!(finds(&format!("/docker/{id}")).unwrap().unwrap().pid, 41);
}

#[test]
fn a_kubelet_that_cannot_be_read_is_not_no_kubelet() {
    let root = Proc::new();
    root.kubelet(40, "kubelet", "/usr/bin/kubelet", "kubelet", 900);
    root.write("40/status", "NSpid:\t40\n");
    assert!(root.find().unwrap_err().to_string().contains("no Uid line"));
    // It ends during the check.
    fs::remove_file(root.file("40/status")).unwrap();
    assert_eq!(root.find().unwrap(), None);
}

#[test]
fn of_two_kubelets_none_is_believed_and_a_child_that_has_not_begun_is_no_second_one() {
    let root = Proc::new();
    root.kubelet(40, "kubelet", "/usr/bin/kubelet", "kubelet", 900);
    root.kubelet(41, "kubelet", "/usr/bin/kubelet", "kubelet", 950);
    let stat = fs::read_to_string(root.file("41/stat")).unwrap();
    let said = root.find().unwrap_err().to_string();
    assert!(said.contains("processes 40 and 41"), "{said}");
    fs::write(root.file("41/stat"), stat.replace(") S 1 ", ") S 40 ")).unwrap();
    assert_eq!(root.find().unwrap().unwrap().pid, 40);
}

#[test]
fn k3s_brings_its_own_kubelet_and_runtime() {
    let root = Proc::new();
    root.kubelet(40, "k3s-agent", "/var/lib/rancher/k3s/data/current/bin/k3s", "k3s agent", 900);
    let settings = root.find().unwrap().unwrap().settings.unwrap();
    assert_eq!(settings.runtime_endpoint, None, "nobody has named it");
    assert_eq!(settings.usual_runtime, Some("/run/k3s/containerd/containerd.sock"));
    assert_eq!(settings.kubelet.source, nrh_core::observation::SettingsSource::Assumed);
}

#[test]
fn a_table_that_cannot_be_read_is_not_a_missing_kubelet() {
    let root = Proc::new();
    fs::remove_file(root.file("uptime")).unwrap();
    assert!(root.find().is_err());
}

#[test]
fn a_kubelet_that_was_killed_and_cannot_go_is_not_no_kubelet() {
    let root = Proc::new();
    root.kubelet(40, "kubelet", "/usr/bin/kubelet", "kubelet", 900);
    let mut finder = Finder::new(root.path());
    assert_eq!(finder.find().unwrap().unwrap().pid, 40);
    let stat = |pid: i32, state: char, threads: u8| {
        format!("{pid} (kubelet) {state} 1{} {threads} 0 90000{}\n", " 0".repeat(15), " 0".repeat(30))
    };
    let thread = Entry { pid: 41, command: b"kubelet", exe: "/usr/bin/kubelet", ..IDLE };
    thread.write(&root.file("40/task/41"));
    root.write("40/stat", stat(40, 'Z', 2));
    root.write("40/task/40/stat", stat(40, 'Z', 2));
    root.write("40/task/41/stat", stat(41, 'D', 2));
    fs::remove_file(root.file("40/exe")).unwrap();
    root.write("40/cmdline", "");
    for finder in [&mut finder, &mut Finder::new(root.path())] {
        assert_eq!(finder.find().unwrap().map(|found| found.pid), Some(40));
    }
    root.write("40/stat", stat(40, 'Z', 1));
    for finder in [&mut finder, &mut Finder::new(root.path())] {
        assert_eq!(finder.find().unwrap(), None);
    }
}
