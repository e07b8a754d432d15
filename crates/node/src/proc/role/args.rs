//! What the arguments of a process, and the environment of a plugin, show about its role.

use std::path::Path;

use super::Proof;
use nrh_core::fault::PodRef;
use nrh_core::text::{is_full_id, is_subdomain};

/// Verbs of OCI runtimes.
const VERBS: [&str; 15] = [
    "create",
    "start",
    "run",
    "delete",
    "kill",
    "exec",
    "update",
    "pause",
    "resume",
    "checkpoint",
    "restore",
    "state",
    "init",
    "ps",
    "events",
];

/// A call of this plugin, with what its environment names; `args` is `CNI_ARGS`.
pub(super) fn plugin_call(
    path: &Path,
    command: Option<String>,
    sandbox_id: Option<String>,
    args: Option<&str>,
) -> Proof {
    let plugin = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    let (pod_uid, pod_name) = (args.and_then(pod_uid), args.and_then(pod_name));
    Proof::NetworkPlugin { plugin, command, sandbox_id, pod_uid, pod_name }
}

/// The pod's uid in `CNI_ARGS` (`IgnoreUnknown=1;K8S_POD_NAMESPACE=…;K8S_POD_NAME=…;K8S_POD_UID=…`).
pub(crate) fn pod_uid(args: &str) -> Option<String> {
    cni_arg(args, "K8S_POD_UID").filter(|uid| !uid.is_empty()).map(str::to_owned)
}

/// The pod's namespace and name in `CNI_ARGS`, as `namespace/name`, if both are names that Kubernetes gives.
pub(crate) fn pod_name(args: &str) -> Option<String> {
    let (namespace, name) = (cni_arg(args, "K8S_POD_NAMESPACE")?, cni_arg(args, "K8S_POD_NAME")?);
    [namespace, name].into_iter().all(is_subdomain).then(|| format!("{namespace}/{name}"))
}

fn cni_arg<'a>(args: &'a str, name: &str) -> Option<&'a str> {
    args.split(';').filter_map(|pair| pair.split_once('=')).find_map(|(key, value)| (key == name).then_some(value))
}

pub(crate) fn shim(args: &[String]) -> Option<Proof> {
    // `start` and `delete` are calls of the runtime that end by themselves; a serving shim has neither argument.
    if args.iter().skip(1).any(|arg| arg == "start" || arg == "delete") {
        return None;
    }
    let id = flag(args, "id").filter(|id| !id.is_empty())?;
    let namespace = flag(args, "namespace").filter(|namespace| !namespace.is_empty())?;
    let address = flag(args, "address").unwrap_or_default();
    Some(Proof::Shim { id, namespace, address })
}

pub(crate) fn monitor(args: &[String]) -> Option<Proof> {
    // It watches a command in the container then, and not the container.
    let is_of_exec = |arg: &String| {
        let flag = arg.split_once('=').map_or(arg.as_str(), |(flag, _)| flag);
        matches!(flag, "-e" | "--exec" | "--exec-attach" | "--exec-process-spec")
    };
    if args.iter().skip(1).any(is_of_exec) {
        return None;
    }
    let id = flag(args, "cid").or_else(|| flag(args, "c"))?;
    let pod = flag(args, "n").or_else(|| flag(args, "name")).and_then(|name| named_pod(&name));
    is_full_id(&id).then_some(Proof::Monitor { id, pod })
}

/// The pod in the name of a container of CRI-O: `k8s_<container>_<pod>_<namespace>_<uid>_<attempt>`. None of these has a `_`.
fn named_pod(name: &str) -> Option<PodRef> {
    let [_, name, namespace, uid, _] = name.strip_prefix("k8s_")?.split('_').collect::<Vec<_>>()[..] else {
        return None;
    };
    let is_full = [name, namespace, uid].iter().all(|text| !text.is_empty());
    is_full.then(|| PodRef { namespace: namespace.to_owned(), name: name.to_owned(), uid: uid.to_owned() })
}

pub(crate) fn client(args: &[String]) -> Option<Proof> {
    let mut args = args.iter().skip(1).skip_while(|arg| !VERBS.contains(&arg.as_str()));
    let verb = args.next()?.clone();
    // The container comes last, except with `kill`, where a signal may follow it.
    let container_id = if verb == "kill" { args.find(|arg| !arg.starts_with('-')) } else { args.last() };
    let container_id = container_id.filter(|id| !id.starts_with('-')).cloned();
    Some(Proof::RuntimeClient { verb, container_id })
}

/// A client, recognised by its arguments alone, whatever the name of its executable: a verb, and at the end the full id of a
/// container. A script shows its interpreter first: `/bin/sh /usr/local/bin/wrapper --root … create --bundle … ID`.
pub(crate) fn wrapper(args: &[String]) -> Option<Proof> {
    let is_of_container = |proof: &Proof| match proof {
        Proof::RuntimeClient { container_id, .. } => container_id.as_deref().is_some_and(is_full_id),
        _ => false,
    };
    client(args).filter(is_of_container)
}

/// The value of a Go-style flag: `-id X`, `--id X`, `-id=X` or `--id=X`.
fn flag(args: &[String], name: &str) -> Option<String> {
    let mut args = args.iter().skip(1);
    while let Some(arg) = args.next() {
        let Some(bare) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) else { continue };
        if bare == name {
            return args.next().cloned();
        }
        if let Some(value) = bare.strip_prefix(name).and_then(|rest| rest.strip_prefix('=')) {
            return Some(value.to_owned());
        }
    }
    None
}
