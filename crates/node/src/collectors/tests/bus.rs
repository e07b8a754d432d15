//! The collector of the system bus: where there is one, and where it hangs.

use tokio::net::UnixListener;

use super::*;
use nrh_core::observation::{BusSeen, BusStep};

/// A bus that takes connections and says nothing.
fn hung_bus(root: &Path) -> UnixListener {
    std::fs::create_dir_all(root.join("run/dbus")).unwrap();
    UnixListener::bind(root.join("run/dbus/system_bus_socket")).unwrap()
}

fn system(root: &Path) {
    std::fs::create_dir_all(root.join("run/systemd/system")).unwrap();
}

fn start_below(root: &Path, fake: &Fake) -> Collectors {
    let host = HostPaths { root: root.to_path_buf(), ..HostPaths::default() };
    Collectors::start(CollectorSettings { sockets: named(fake.socket()), host, ..settings() })
}

#[tokio::test]
async fn a_node_without_systemd_or_without_a_bus_has_nobody_to_ask() {
    let fake = Fake::start();
    let root = tempfile::tempdir().unwrap();
    let collectors = start_below(root.path(), &fake);
    until(&collectors, "no systemd", |seen| seen.bus.value() == Some(&BusSeen::NoBus)).await;
    // A bus without systemd is not asked, whatever it does: it would be seen to have been connected to.
    let hung = hung_bus(root.path());
    let socket = root.path().join("run/dbus/system_bus_socket");
    tokio::time::sleep(ms(500)).await;
    let asked = futures::FutureExt::now_or_never(hung.accept());
    assert!(asked.is_none() && now(&collectors).bus.value() == Some(&BusSeen::NoBus), "{:?}", now(&collectors).bus);
    // systemd, and no bus.
    std::fs::remove_file(socket).unwrap();
    system(root.path());
    let since = tokio::time::Instant::now();
    let checked = |seen: &Observations| matches!(seen.bus, Reading::Done { age, .. } if age < since.elapsed());
    let seen = until(&collectors, "a look since", checked).await;
    assert_eq!(seen.bus.value(), Some(&BusSeen::NoBus));
}

#[tokio::test]
async fn a_bus_that_hangs_is_told_and_holds_up_nobody_else() {
    let (fake, root) = (Fake::start(), tempfile::tempdir().unwrap());
    system(root.path());
    let hung = hung_bus(root.path());
    let collectors = start_below(root.path(), &fake);
    others_go_on(&collectors, &fake).await;
    let seen = until(&collectors, "the end of the look", |seen| matches!(seen.bus, Reading::Done { .. })).await;
    assert!(matches!(seen.bus.value(), Some(BusSeen::Silent { step: BusStep::Login, .. })), "{:?}", seen.bus);
    // One connection at a time, and none is kept: the queue holds those that are closed, too.
    let first = hung.accept().await.unwrap().0;
    let mut said = Vec::new();
    tokio::io::AsyncReadExt::read_to_end(&mut { first }, &mut said).await.unwrap();
    assert!(said.starts_with(b"\0AUTH EXTERNAL "), "{said:?}");
    assert!(collectors.call_counts().out["bus"] <= 1);
}
