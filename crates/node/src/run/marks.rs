//! Reboot markers for another tool, which stay as long as their command is current. A separate task removes obsolete
//! markers, also those of an earlier probe. While the API server is unreachable, it removes expired ones.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

use crate::agent::AgentSettings;
use crate::proc;
use crate::reader::Reader;
use crate::report::command::Command;
use crate::sentinel::{self, Folder, SentinelError};

/// Minimum and maximum interval between two checks of the folder.
const LEAST: Duration = Duration::from_secs(1);
const RHYTHM: Duration = Duration::from_secs(30);

/// Maintains the markers until the probe ends. Removing our own marker is no action, so it also happens if actions are
/// disabled.
pub(super) async fn run(settings: AgentSettings, mut commands: watch::Receiver<Command>) {
    let mut is_told = false;
    // A separate reader: checks of the executor that the kernel blocks must not prevent the removal of a marker.
    let reader = Reader::default();
    loop {
        let command = commands.borrow_and_update().clone();
        let (root, host, node) = (settings.proc.clone(), settings.host.clone(), settings.node.clone());
        let work = move || {
            let moment = || Ok((proc::boot_id(&root)?, proc::uptime(&root)?));
            let (boot, uptime) =
                moment().map_err(|error| SentinelError::Io { what: "read the clock".into(), error })?;
            sentinel::remove_obsolete_markers(&Folder::open_to_remove(&host)?, &node, &command, &boot, uptime)
        };
        match reader.run(settings.bounds.processes, work).await {
            Ok(Ok(_)) => is_told = false,
            // Logged once: the task tries again as long as the probe runs.
            Ok(Err(error)) if !is_told => {
                is_told = true;
                tracing::warn!(%error, "cannot check the files that request a reboot, or remove one");
            }
            Ok(Err(_)) => {}
            Err(error) => tracing::debug!(%error, "cannot check the files that request a reboot"),
        }
        sleep(LEAST).await;
        tokio::select! {
            changed = commands.changed() => if changed.is_err() { return },
            () = sleep(RHYTHM) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Instant;

    use super::*;
    use crate::cri::endpoint::{Endpoint, NamedBy};
    use crate::sentinel::Placed;
    use crate::sentinel::tests::{Host, mark};
    use nrh_core::examples::command;

    fn node(host: &Path) -> AgentSettings {
        let proc = host.join("proc");
        std::fs::create_dir_all(proc.join("sys/kernel/random")).unwrap();
        std::fs::write(proc.join("uptime"), "1000.00 1.0\n").unwrap();
        std::fs::write(proc.join("sys/kernel/random/boot_id"), "boot\n").unwrap();
        let none = Endpoint::cri(host.join("none"), NamedBy::Nobody);
        let settings = AgentSettings::new("n1", &host.join("state"), none);
        // Markers are removed even if actions are disabled.
        AgentSettings { host: host.to_owned(), proc, allow_actions: false, ..settings }
    }

    fn marked(host: &Path) {
        assert_eq!(Folder::open(host).unwrap().place("reboot-required", &mark()).unwrap(), Placed::Made);
    }

    /// Uses real time, because the work runs on threads.
    async fn is_gone(host: &Path, within: Duration) -> bool {
        let began = Instant::now();
        while began.elapsed() < within {
            if !host.join("run/reboot-required").exists() {
                return true;
            }
            sleep(Duration::from_millis(20)).await;
        }
        false
    }

    #[tokio::test]
    async fn what_an_earlier_probe_has_left_goes_once_the_api_server_says_that_nobody_wants_it() {
        let Host(host) = Host::new();
        let settings = node(host.path());
        marked(host.path());
        let (sender, commands) = watch::channel(Command::default());
        let keeper = tokio::spawn(run(settings, commands));
        assert!(!is_gone(host.path(), Duration::from_millis(500)).await, "nothing is known of its command yet");
        sender.send_replace(Command { command: Some(command("op-1")), ..Command::NONE });
        assert!(!is_gone(host.path(), Duration::from_millis(1500)).await, "its command stands");
        sender.send_replace(Command::NONE);
        assert!(is_gone(host.path(), Duration::from_secs(20)).await);
        drop(sender);
        keeper.await.unwrap();
    }
}
