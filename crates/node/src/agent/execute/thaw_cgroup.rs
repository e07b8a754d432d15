//! `ThawCgroup`: the thaw of one container's control group whose first process is still that of the runtime.

use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::{done, effect, failed, process};
use crate::agent::checker::{Bounds, Checker, asked, recovered};
use crate::agent::target::PinnedProcess;
use crate::agent::verdict::Refusal;
use crate::collect::host::{PodGroups, is_group_frozen};
use crate::proc::role::KUBELET_NAMESPACE;
use crate::proc::{groups, rooted};
use crate::reader::Reader;
use crate::runtime::Client;
use nrh_core::command::{ActionCommand, Outcome, OutcomeReason};
use nrh_core::fault::{ProcessRef, Role, Target};
use nrh_core::faults::frozen_cgroup;
use nrh_core::observation::ContainerState;

/// The file that freezes a group, and what thaws it: version 2, then version 1.
const THAW: [(&str, &str); 2] = [("cgroup.freeze", "0"), ("freezer.state", "THAWED")];
/// The files that say whether a group is frozen itself, and not only by one above it.
const OWN: [&str; 2] = ["cgroup.freeze", "freezer.self_freezing"];

/// The first process of the container, and its control group, which is that of the container or below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    process: ProcessRef,
    group: PathBuf,
    container: PathBuf,
    container_id: String,
}

/// The frozen group. While it is open, no other group can take its place.
#[derive(Debug)]
pub(in crate::agent) struct Allowed {
    group: Arc<OwnedFd>,
    path: String,
    held: Arc<PinnedProcess>,
    reader: Reader,
}

pub(super) fn admit(command: &ActionCommand) -> Result<Admitted, Refusal> {
    let process = process(command, Role::ContainerInit)?;
    let group = PathBuf::from(command.target.control_group.as_deref().unwrap_or_default());
    // With systemd's groups of version 2, crun has a group of its own below that of the container.
    let of_container =
        group.ancestors().take(2).find_map(|path| Some((path, container_of_pod(path, &command.target)?)));
    match of_container.map(|(path, id)| (path.to_owned(), id.to_owned())) {
        Some((container, container_id)) => Ok(Admitted { process, group, container, container_id }),
        None => Err(Refusal::malformed("the control group is not that of a container of the named pod")),
    }
}

/// The container of a group that the kubelet and the runtime make: `…/kubepods…/…podUID/ID`, or `k8s.io/ID` where the kubelet keeps no
/// groups of pods.
fn container_of_pod<'g>(group: &'g Path, target: &Target) -> Option<&'g str> {
    let mut names: Vec<&str> = group.iter().filter_map(|name| name.to_str()).collect();
    let (container_id, parent) = (groups::container_id(names.pop()?)?, names.pop()?);
    let is_of_pods = |name: &&str| name.strip_suffix(".slice").unwrap_or(name).ends_with("kubepods");
    let is_named = |uid: String| target.pod.as_ref().is_none_or(|pod| pod.uid == uid);
    let is_of_pod = groups::pod_uid(parent).is_some_and(is_named) && names.iter().any(is_of_pods);
    (is_of_pod || parent == KUBELET_NAMESPACE).then_some(container_id)
}

pub(super) async fn check(checker: &Checker, command: &ActionCommand, admitted: &Admitted) -> Result<Allowed, Refusal> {
    let Admitted { process, group: folder, container, container_id } = admitted;
    let held = checker.hold(process, &command.target).await?;
    checker.as_old_as(&held, checker.thresholds.bound(&frozen_cgroup::AGE)).await?;
    has_not_started(checker, &held, command.target.sandbox_id.as_deref(), container_id).await?;
    let (host, own, container, of) = (checker.host.clone(), folder.clone(), container.clone(), Arc::clone(&held));
    let open = move || frozen_itself(&host, &own, &container, &of);
    let (group, path) = checker.reader.run(checker.bounds.processes, open).await??;
    checker.prove_again(&held, process, &command.target).await?;
    Ok(Allowed { group: Arc::new(group), path, held, reader: checker.reader.clone() })
}

/// Checks that the runtime has not started the container. A person may have paused one that runs, and any process in it can have
/// the name of the runtime's.
async fn has_not_started(
    checker: &Checker,
    held: &PinnedProcess,
    sandbox_id: Option<&str>,
    id: &str,
) -> Result<(), Refusal> {
    if held.is_of_docker() {
        checker.runtime_is_docker(held.process.pid).await?;
    }
    let not_listed =
        |what: &str| Err(Refusal::new(OutcomeReason::TargetGone, format!("the runtime does not list {what} {id}")));
    let bound = checker.bounds.call;
    let runtime = Client::connect(&checker.endpoint).await.map_err(|error| asked("a connection", &error))?;
    if sandbox_id == Some(id) {
        let seen = runtime.sandboxes(bound).await.map_err(|error| asked("the list of sandboxes", &error))?.items;
        return match seen.iter().find(|sandbox| sandbox.id == id) {
            Some(sandbox) if sandbox.ready => Err(recovered(format!("sandbox {id} is ready"))),
            // Docker lists a sandbox from the moment it makes it, and makes containers of other people too.
            None if held.is_of_docker() => not_listed("sandbox"),
            _ => Ok(()),
        };
    }
    let seen = runtime.containers(bound).await.map_err(|error| asked("the list of containers", &error))?.items;
    match seen.iter().find(|seen| seen.id == id) {
        Some(seen) if Some(seen.sandbox_id.as_str()) != sandbox_id => {
            let message = format!("container {id} belongs to sandbox {}, not the one in the command", seen.sandbox_id);
            Err(Refusal::new(OutcomeReason::TargetChanged, message))
        }
        Some(seen) if seen.state == ContainerState::Created => Ok(()),
        Some(seen) => Err(recovered(format!("container {id} is not in creation: it is {:?}", seen.state))),
        // CRI-O lists a container only once it is made.
        None if held.is_being_made_by_conmon(id) => Ok(()),
        None => not_listed("container"),
    }
}

/// Opens the container's group that is frozen itself, if the process is in it, and no group above the container's is frozen. Returns
/// its path too.
fn frozen_itself(
    host: &Path,
    folder: &Path,
    container: &Path,
    held: &PinnedProcess,
) -> Result<(OwnedFd, String), Refusal> {
    let pid = held.process.pid;
    let unread =
        |error: io::Error| Refusal::cannot_check(format!("cannot read control group /{}: {error}", folder.display()));
    let refuse = |reason, message: String| Err(Refusal::new(reason, message));
    let root = openat(CWD, host, rooted::FOLDER, Mode::empty()).map_err(|error| unread(error.into()))?;
    let Some(group) = rooted::folder(&root, folder).map_err(unread)? else {
        return refuse(OutcomeReason::TargetGone, format!("control group /{} is gone", folder.display()));
    };
    if !folder.starts_with(groups::MOUNT) {
        return refuse(OutcomeReason::Protected, format!("/{} is no control group", folder.display()));
    }
    // Other people's containers are there, too.
    if container.parent().is_some_and(|parent| parent.ends_with(KUBELET_NAMESPACE))
        && !PodGroups::default().open(&root).map_err(unread)?.is_empty()
    {
        let message = format!("control group /{} is not below that of the pods, which this node has", folder.display());
        return refuse(OutcomeReason::Protected, message);
    }
    if !groups::has(&group, pid).map_err(unread)? {
        let message = format!("process {pid} is not in control group /{}", folder.display());
        return refuse(OutcomeReason::TargetChanged, message);
    }
    if !is_group_frozen(&group).map_err(unread)? {
        return Err(recovered(format!("control group /{} is not frozen", folder.display())));
    }
    let mut own = None;
    for path in folder.ancestors() {
        let Some(group) = rooted::folder(&root, path).map_err(unread)? else { continue };
        if !freezes(&group).map_err(unread)? {
            continue;
        }
        if !path.starts_with(container) {
            let message = format!("nothing is thawed: control group /{} is frozen, and all below it", path.display());
            return refuse(OutcomeReason::Protected, message);
        }
        own = Some((group, format!("/{}", path.display())));
    }
    let message = || format!("control group /{} is frozen, but not by itself", folder.display());
    own.ok_or_else(|| Refusal::cannot_check(message()))
}

/// Whether a group is frozen itself.
fn freezes(group: &OwnedFd) -> io::Result<bool> {
    for name in OWN {
        if let Some(text) = groups::file(group, name)? {
            return Ok(text.trim() == "1");
        }
    }
    Ok(false)
}

pub(super) async fn execute(command: &ActionCommand, allowed: Allowed, bounds: &Bounds) -> Outcome {
    match thaw_and_see(&allowed, bounds).await {
        Ok(message) => done(command, &message),
        Err(message) => failed(command, &message),
    }
}

async fn thaw_and_see(allowed: &Allowed, bounds: &Bounds) -> Result<String, String> {
    let Allowed { group, path, held, reader } = allowed;
    let what = format!("control group {path} with process {} ({})", held.process.pid, held.process.command);
    let cannot = |error: &dyn Display| format!("cannot thaw {what}: {error}");
    let (own, late) = (Arc::clone(group), Arc::new(AtomicBool::new(false)));
    let is_late = Arc::clone(&late);
    let wrote = reader.run(bounds.processes, move || thaw(&own, &is_late)).await.map_err(|error| {
        late.store(true, Ordering::SeqCst);
        cannot(&error)
    })?;
    let wrote = wrote.map_err(|error| cannot(&error))?;
    let cannot = |error: &dyn Display| format!("wrote {wrote} of {what}, cannot see its effect: {error}");
    let is_thawed = || {
        let read = Arc::clone(group);
        let seen = reader.run(bounds.processes, move || is_group_frozen(&read));
        async {
            match seen.await {
                Ok(Ok(true)) => Err(()),
                Ok(Ok(false)) => Ok(Ok(())),
                Ok(Err(error)) => Ok(Err(cannot(&error))),
                Err(error) => Ok(Err(cannot(&error))),
            }
        }
    };
    let Ok(seen) = effect(bounds.verify, is_thawed).await else {
        let seconds = bounds.verify.as_secs();
        return Err(format!("wrote {wrote} of {what}: it was not seen thawed within {seconds} s"));
    };
    seen.map(|()| format!("wrote {wrote} of {what}: it was frozen, and is not frozen any more"))
}

/// Thaws the group, and says what was written where. Nothing is written once it `is_late`: nobody waits for it any more, and a person
/// may have frozen the group since.
fn thaw(group: impl AsFd, is_late: &AtomicBool) -> io::Result<String> {
    for (name, text) in THAW {
        match rooted::open(&group, Path::new(name), OFlags::WRONLY | OFlags::CLOEXEC) {
            Ok(_) if is_late.load(Ordering::SeqCst) => return Err(io::Error::from(io::ErrorKind::TimedOut)),
            Ok(file) => {
                rustix::io::write(&file, text.as_bytes())?;
                return Ok(format!("{text} to {name}"));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("it has no file that thaws it"))
}
