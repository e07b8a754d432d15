//! A stand-in for the login manager on a real `dbus-daemon`.

use std::sync::{Arc, Mutex};

use super::*;
use crate::bus::fake::locks;
use crate::bus::login::{LoginError, may_reboot, reboot};

/// What the stand-in was asked, and who holds up a shutdown.
#[derive(Default)]
struct World {
    calls: Vec<&'static str>,
    locks: Vec<[&'static str; 4]>,
}

/// A login manager in a thread of its own; it ends with its connection.
fn stand_in(socket: &Path, world: &Arc<Mutex<World>>) {
    let mut stream = client(socket);
    own(&mut stream, "org.freedesktop.login1");
    let world = Arc::clone(world);
    std::thread::spawn(move || {
        serve(&mut stream, |stream, call| {
            let has = |member: &str| call.windows(member.len()).any(|bytes| bytes == member.as_bytes());
            let mut world = world.lock().unwrap();
            if has("CanReboot") {
                world.calls.push("CanReboot");
                answer_call(stream, call, "s", &text("yes"));
            } else if has("ListInhibitors") {
                world.calls.push("ListInhibitors");
                answer_call(stream, call, "a(ssssuu)", &locks(&world.locks));
            } else if has("Reboot") {
                assert_eq!(call[call.len() - 4..], [0; 4], "not interactive");
                world.calls.push("Reboot");
                answer_call(stream, call, "", &[]);
            }
        });
    });
}

#[tokio::test]
async fn a_real_bus_carries_the_way_to_a_reboot_and_who_blocks_it() {
    let folder = tempfile::tempdir().unwrap();
    let Some((socket, bus)) = daemon(folder.path(), 5) else { return };
    let said = may_reboot(&socket, LIMIT).await.unwrap_err();
    let nobody = ["ServiceUnknown", "NameHasNoOwner"];
    assert!(nobody.iter().any(|name| said.to_string().contains(name)), "{said}");

    let world = Arc::new(Mutex::new(World::default()));
    stand_in(&socket, &world);
    wait_until("the stand-in", || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let socket = socket.clone();
        std::thread::spawn(move || runtime.unwrap().block_on(may_reboot(&socket, LIMIT)).is_ok()).join().unwrap()
    });
    let all = |how| ["shutdown:sleep", "packages", "an upgrade runs", how];
    world.lock().unwrap().locks =
        vec![["idle", "x", "y", "block"], all("block"), ["shutdown", "kubelet", "pods", "delay"]];
    world.lock().unwrap().calls.clear();
    let said = reboot(&socket, LIMIT).await.unwrap_err();
    assert!(matches!(&said, LoginError::Blocked(who) if who == "packages (process 77: an upgrade runs)"), "{said:?}");
    assert_eq!(world.lock().unwrap().calls, ["CanReboot", "ListInhibitors"]);

    world.lock().unwrap().locks.remove(1);
    world.lock().unwrap().calls.clear();
    assert_eq!(reboot(&socket, LIMIT).await.as_deref(), Ok("kubelet (process 77: pods)"));
    assert_eq!(world.lock().unwrap().calls, ["CanReboot", "ListInhibitors", "Reboot"]);
    bus.signal(Signal::STOP);
    assert_eq!(may_reboot(&socket, LIMIT).await, Err(CallError::Silent(LIMIT).into()));
    bus.signal(Signal::CONT);
}
