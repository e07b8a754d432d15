//! The operator on a bed, installed as a user would: the shipped image, `kubectl apply -k config/default`.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

pub use crate::programs::Programs;
use crate::stand_in::settings::Image;
use crate::wait::{LONGEST_PAUSE, SOON, poll};
use crate::{Bed, Node, images, packages, state};

/// Image reference that the shipped manifests name.
pub const IMAGE: &str = "runtimehealth.io/nrh:dev";

/// The programs of this compilation, which tests and the demo run: nothing is compiled a second time.
pub fn built() -> Result<Programs> {
    let folder = images::compiled()?;
    Ok(Programs { nrh: folder.join("nrh"), probe: folder.join("nrh-probe") })
}

/// Builds the static programs of the operator, as shipped.
pub fn shipped() -> Result<Programs> {
    let [nrh, probe] = images::static_binaries("nrh", ["nrh", "nrh-probe"])?;
    Ok(Programs { nrh, probe })
}

/// Brings the image to these nodes of a bed; where stand-ins run, the programs themselves.
pub fn load_image(bed: &Bed, nodes: &[Node], programs: &Programs) -> Result<()> {
    let (stand_ins, real): (Vec<_>, Vec<_>) = nodes.iter().partition(|node| node.is_stand_in());
    stand_ins.iter().try_for_each(|node| node.set_image(IMAGE, Image::programs(programs)))?;
    if real.is_empty() {
        return Ok(());
    }
    packages::ensure(packages::BUILD)?;
    let archive = bed.dir().join("nrh-image.tar");
    images::operator_image(&state::workspace(), &programs.in_image(), IMAGE, &archive)?;
    real.iter().try_for_each(|node| node.import(&archive))
}

/// Installs the operator on all nodes of a bed as shipped, and waits until it runs.
pub fn install(bed: &Bed, programs: &Programs) -> Result<()> {
    load_image(bed, bed.nodes(), programs)?;
    apply_folder(bed, "config/default")?;
    wait(bed)
}

/// Applies a folder of the project, such as `config/default`.
pub fn apply_folder(bed: &Bed, folder: &str) -> Result<()> {
    let path = state::workspace().join(folder).display().to_string();
    let applied = poll(SOON, LONGEST_PAUSE, || bed.kubectl(&["apply", "-k", &path]), Result::is_ok);
    applied.unwrap_or_else(|failed| failed).map(drop).with_context(|| format!("kubectl apply -k {folder}"))
}

/// A token as the controller has it: of its account, bound to a pod of that name and image, which is made. Nobody runs the pod, which the
/// token does not need, and no Deployment replaces it.
pub fn controllers_token(bed: &Bed, pod: &str, image: &str) -> Result<String> {
    let security = json!({"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}});
    let container = json!({"name": "controller", "image": image,
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}});
    // A name of its own, so that it is no sibling of another one.
    let metadata = json!({"name": pod, "generateName": pod, "namespace": "nrh-system"});
    let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {
        "serviceAccountName": "nrh-controller", "schedulerName": "nobody", "securityContext": security,
        "containers": [container]}});
    bed.apply(&object)?;
    let bound = ["--bound-object-kind=Pod", "--bound-object-name", pod, "--duration=12h"];
    let token =
        bed.kubectl(&[&["-n", "nrh-system", "create", "token", "nrh-controller"], bound.as_slice()].concat())?;
    Ok(token.trim().to_owned())
}

/// A node's object.
pub fn health(bed: &Bed, node: &str) -> Result<Value> {
    bed.get(&["noderuntimehealth", node, "--request-timeout=60s"])
}

/// All remediations, the oldest first.
pub fn remediations(bed: &Bed) -> Result<Vec<Value>> {
    let list = bed.get(&["nrem", "--sort-by=.metadata.creationTimestamp"])?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

/// The faults in a node's object, be they the probe's to find or the controller's.
pub fn faults(health: &Value) -> impl Iterator<Item = &Value> {
    ["faults", "clusterFaults"].into_iter().filter_map(|list| health["status"][list].as_array()).flatten()
}

/// Waits until the controller and the probes run.
pub fn wait(bed: &Bed) -> Result<()> {
    for (namespace, what) in [("nrh-system", "deployment/nrh-controller"), ("nrh-node", "daemonset/nrh-probe")] {
        bed.kubectl(&["-n", namespace, "rollout", "status", what, "--timeout=900s"])?;
    }
    // Not every node is to have one.
    let path = "jsonpath={.items[*].spec.nodeName}";
    let probed =
        bed.kubectl(&["-n", "nrh-node", "get", "pods", "-l", "app.kubernetes.io/name=nrh-probe", "-o", path])?;
    let reports = |node: &str| {
        let path = "jsonpath={.status.probe.heartbeatAt}";
        bed.kubectl(&["get", "noderuntimehealth", node, "-o", path]).is_ok_and(|at| !at.is_empty())
    };
    let all_report = || probed.split_whitespace().all(reports);
    ensure!(
        poll(SOON, LONGEST_PAUSE, all_report, |all| *all).is_ok(),
        "not every probe has reported within {SOON:?}: they run on {probed}"
    );
    Ok(())
}
