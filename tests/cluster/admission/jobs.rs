//! The one shape of a Job in nrh-node.

use anyhow::{Result, ensure};
use nrh::core::command::ActionCommand;
use nrh_testbed::Bed;
use nrh_testbed::operator::IMAGE;
use serde_json::{Value, json};

use crate::admission::callers::{Callers, GONE, NEXT_IMAGE};
use crate::admission::requests::{Call, Cases, create, delete, get, merge};
use crate::plane;

const JOBS: &str = "/apis/batch/v1/namespaces/nrh-node/jobs";

/// A Job as the controller makes it, for a command to worker-1.
pub fn shaped() -> Value {
    let command: ActionCommand = serde_json::from_value(crate::admission::nodes::command()).unwrap();
    serde_json::to_value(nrh::controller::jobs::job(&command, IMAGE).unwrap()).unwrap()
}

pub fn tried(job: Value) -> Call {
    create(format!("{JOBS}?dryRun=All"), job)
}

/// The shape with one thing changed.
fn with(change: impl FnOnce(&mut Value)) -> Value {
    let mut job = shaped();
    change(&mut job);
    job
}

/// The shape with one thing of its pod changed.
fn with_pod(change: impl FnOnce(&mut Value)) -> Value {
    with(|job| change(&mut job["spec"]["template"]["spec"]))
}

/// The shape with one thing of its container changed.
fn with_container(change: impl FnOnce(&mut Value)) -> Value {
    with_pod(|pod| change(&mut pod["containers"][0]))
}

/// Which controller pod the API server compares first, and so names as expected, is by chance.
fn deviations() -> Vec<(&'static str, Value, &'static str)> {
    let (image, command) = ("found example.org/x:1", "runs the command");
    let alone = "has one container";
    let (powers, mounts) =
        ("is not privileged", "mounts nothing but these folders of the node: /run/nrh, /run/containerd");
    let profile = "under the runtime's default seccomp profile";
    let (account, once) = ("runs as ServiceAccount nrh-act, without a token", "runs once, without retries");
    let other = json!({"name": "other", "image": IMAGE, "command": ["/nrh", "run-command"]});
    vec![
        ("another image", with_container(|c| c["image"] = json!("example.org/x:1")), image),
        ("a second container", with_pod(|p| p["containers"].as_array_mut().unwrap().push(other.clone())), alone),
        ("an init container", with_pod(|p| p["initContainers"] = json!([other])), alone),
        ("a shell", with_container(|c| c["command"] = json!(["/bin/sh", "-c", "id"])), command),
        ("another part of the program", with_container(|c| c["command"] = json!(["/nrh", "probe"])), command),
        ("the image's own command", with_container(|c| c["command"] = Value::Null), command),
        ("arguments", with_container(|c| c["args"] = json!(["--command", "{}"])), command),
        ("a hook", with_container(|c| c["lifecycle"] = json!({"postStart": {"exec": {"command": ["x"]}}})), command),
        ("privileged", with_container(|c| c["securityContext"] = json!({"privileged": true})), powers),
        ("no word on powers", with_container(|c| c["securityContext"] = Value::Null), powers),
        ("SYS_ADMIN", with_container(|c| c["securityContext"]["capabilities"]["add"] = json!(["SYS_ADMIN"])), powers),
        (
            "the default capabilities",
            with_container(|c| c["securityContext"]["capabilities"]["drop"] = json!([])),
            powers,
        ),
        ("a writable root", with_container(|c| c["securityContext"]["readOnlyRootFilesystem"] = json!(false)), powers),
        ("no seccomp profile", with_container(|c| c["securityContext"]["seccompProfile"] = Value::Null), profile),
        (
            "no system call filtered",
            with_container(|c| c["securityContext"]["seccompProfile"]["type"] = json!("Unconfined")),
            profile,
        ),
        ("another user", with_container(|c| c["securityContext"]["runAsUser"] = json!(65532)), profile),
        ("the image's user", with_container(|c| c["securityContext"]["runAsUser"] = Value::Null), profile),
        (
            "a kernel parameter",
            with_pod(|p| p["securityContext"]["sysctls"] = json!([{"name": "kernel.shm_rmid_forced", "value": "0"}])),
            profile,
        ),
        ("another runtime class", with_pod(|p| p["runtimeClassName"] = json!("x")), profile),
        ("a socket", with_pod(|p| p["volumes"][0]["hostPath"]["type"] = json!("Socket")), mounts),
        ("a folder of no kind", with_pod(|p| p["volumes"][0]["hostPath"]["type"] = Value::Null), mounts),
        ("the node's disk", with_pod(|p| p["volumes"][0]["hostPath"]["path"] = json!("/")), mounts),
        (
            "a folder beside the socket's",
            with_pod(|p| p["volumes"][1]["hostPath"]["path"] = json!("/run/containerd/fifo")),
            mounts,
        ),
        (
            "the runtime's folder to write to",
            with_container(|c| c["volumeMounts"][1]["readOnly"] = json!(false)),
            "writes to none but /run/nrh",
        ),
        (
            "the runtime's folder in another's place",
            with_container(|c| {
                c["volumeMounts"][1] = json!({"name": "runtime", "mountPath": "/run/nrh"});
                c["volumeMounts"][0]["mountPath"] = json!("/run/nrh/x");
            }),
            "writes to none but /run/nrh",
        ),
        ("no node", with_pod(|p| p["nodeName"] = Value::Null), "names its node"),
        (
            "a Secret",
            with_pod(|p| {
                p["volumes"].as_array_mut().unwrap().push(json!({"name": "s", "secret": {"secretName": "s"}}));
            }),
            mounts,
        ),
        ("the probe's account", with_pod(|p| p["serviceAccountName"] = json!("nrh-probe")), account),
        ("a token", with_pod(|p| p["automountServiceAccountToken"] = json!(true)), account),
        ("the node's IPC", with_pod(|p| p["hostIPC"] = json!(true)), account),
        ("retries", with(|j| j["spec"]["backoffLimit"] = json!(3)), once),
        ("no end", with(|j| j["spec"]["activeDeadlineSeconds"] = Value::Null), once),
        ("two at once", with(|j| j["spec"]["parallelism"] = json!(2)), once),
        ("starting again", with_pod(|p| p["restartPolicy"] = json!("OnFailure")), once),
    ]
}

/// A Job gets the node's name and the command, and nothing else.
fn other_variables() -> Vec<(&'static str, Value)> {
    let variable = |value: Value| with_container(|c| c["env"].as_array_mut().unwrap().push(value));
    vec![
        ("a variable of the loader", variable(json!({"name": "LD_PRELOAD", "value": "x"}))),
        ("another socket", variable(json!({"name": "NRH_RUNTIME_ENDPOINT", "value": "/x"}))),
        ("another socket of Docker", variable(json!({"name": "NRH_DOCKER_ENDPOINT", "value": "/x"}))),
        ("another folder for claims", variable(json!({"name": "NRH_STATE_DIR", "value": "/run/nrh/x"}))),
        ("a second command", variable(json!({"name": "NRH_COMMAND", "value": "{}"}))),
        ("no command", with_container(|c| c["env"] = json!([c["env"][0]]))),
        ("another node's name", with_container(|c| c["env"][0] = json!({"name": "NODE_NAME", "value": "x"}))),
        (
            "its node's name from a label",
            with_container(|c| c["env"][0]["valueFrom"]["fieldRef"]["fieldPath"] = json!("metadata.labels['x']")),
        ),
        (
            "a variable from a Secret",
            with_container(|c| {
                c["env"][1] = json!({"name": "NRH_COMMAND", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}});
            }),
        ),
        ("variables from elsewhere", with_container(|c| c["envFrom"] = json!([{"secretRef": {"name": "s"}}]))),
    ]
}

/// Every deviation is denied, and so is everybody else.
pub async fn pinned(all: &Callers, bed: &Bed, cases: &mut Cases) -> Result<()> {
    for (what, job, sentence) in deviations() {
        cases.denied(&all.controller, what, create(JOBS, job), sentence).await;
    }
    for (what, job) in other_variables() {
        cases.denied(&all.controller, what, create(JOBS, job), "has two variables").await;
    }
    let only = "nothing but Jobs of the controller is created in nrh-node";
    cases.denied(&all.admin, "the very Job", create(JOBS, shaped()), only).await;
    let cron = json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "c"},
        "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": shaped()["spec"]}}});
    cases.denied(&all.admin, "a CronJob", create("/apis/batch/v1/namespaces/nrh-node/cronjobs", cron), only).await;
    let call = create("/apis/batch/v1/namespaces/default/jobs", shaped());
    cases.denied(&all.controller, "a Job elsewhere", call, "cannot create resource").await;
    let call = create("/api/v1/namespaces/nrh-node/pods", crate::admission::controller::bare_pod("p"));
    cases.denied(&all.controller, "a pod", call, "cannot create resource").await;

    let other =
        "runs the image of the pod that creates it: expected runtimehealth.io/nrh:next, found runtimehealth.io/nrh:dev";
    cases.denied(&all.next, "the image of another controller", create(JOBS, shaped()), other).await;
    let next = with_container(|c| c["image"] = json!(NEXT_IMAGE));
    cases.allowed(&all.next, "the image of its own pod", tried(next)).await;
    // The API server takes the token for some seconds more, and does not find the pod any more.
    let foreign = create(JOBS, with_container(|c| c["image"] = json!("example.org/nrh:dev")));
    cases.allowed(&all.gone, "the image of its own pod", tried(shaped())).await;
    bed.kubectl(&["delete", "pod", GONE, "-n", "nrh-system", "--force", "--grace-period=0"])?;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let repository = "an image of the repository that the controller has";
    cases.denied(&all.gone, "another image, once its pod is gone", foreign, repository).await;
    cases.denied(&all.loose, "a token of no pod", create(JOBS, shaped()), "a token that is bound to a pod").await;
    cases.allowed(&all.controller, "the one shape", create(JOBS, shaped())).await;
    let path = format!("{JOBS}/op-1");
    let call = merge(&path, json!({"spec": {"suspend": true}}));
    cases.denied(&all.admin, "change it later", call, "is not changed once it exists").await;
    let call = merge(&path, json!({"spec": {"suspend": true}}));
    cases.denied(&all.controller, "change it later", call, "cannot patch resource").await;
    // The cluster's own controllers finish it: its pod is made, and it goes when it is deleted.
    plane::soon(async || {
        let pods = all.admin.must(&get("/api/v1/namespaces/nrh-node/pods?labelSelector=job-name%3Dop-1")).await?;
        ensure!(pods["items"][0].is_object(), "the Job's pod was not made");
        Ok(())
    })
    .await?;
    let foreground = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground", "gracePeriodSeconds": 0});
    cases.allowed(&all.controller, "delete it", delete(&path, foreground)).await;
    Ok(())
}
