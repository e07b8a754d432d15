//! Each cell of the table of who may do what, put to the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use nrh_testbed::Bed;
use nrh_testbed::matrix::access::{Access, Answer, Row, answers};
use nrh_testbed::wait::SOON;
use serde_json::{Value, json};

use crate::admission::callers::{Callers, UNLIMITED};
use crate::admission::requests::{Call, Caller, Cases, create, delete, get, merge, owned_command, strategic, update};
use crate::admission::{jobs, system};
use crate::objects::{COMMANDS, CONFIGS, POLICIES, REMEDIATIONS, ours, policy, remediation, step};
use crate::plane;

const JOBS: &str = "/apis/batch/v1/namespaces/nrh-node/jobs";
const SYSTEM_PODS: &str = "/api/v1/namespaces/nrh-system/pods";
const PODS: &str = "/api/v1/namespaces/default/pods";
/// Nodes that have reports: the first one is that of the callers who are a node.
const NODES: [&str; 2] = ["worker-1", "worker-2"];

const AT_ONCE: usize = 16;

struct Stage<'a> {
    admin: &'a Caller,
    /// What `{NAME}` stands for in the table.
    names: BTreeMap<String, String>,
    /// What `{me}` stands for, by the caller's name.
    accounts: BTreeMap<&'static str, String>,
    refused: Mutex<BTreeSet<String>>,
}

/// A row is asked by an account, for one verb.
struct Cell<'a> {
    row: &'a Row,
    verb: &'a str,
    caller: &'a Caller,
    expected: Answer,
}

/// Asks for each cell of the table, and then for those of accounts with every right.
pub async fn as_the_table_says(all: &Callers, bed: &Bed, cases: &mut Cases) -> Result<()> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/admission/access.yaml");
    let access = Access::read(&file)?;
    let shipped = [
        &all.controller,
        &all.pod,
        &all.unit,
        &all.act,
        &all.operator,
        &all.approver,
        &all.requester,
        &all.viewer,
        &all.edit_system,
        &all.admin_system,
        &all.edit_node,
        &all.admin_node,
        &all.admin,
    ];
    ensure!(shipped.len() == access.accounts.len(), "expected a caller for each of {:?}", access.accounts);
    let mut stage = Stage {
        admin: &all.admin,
        names: stage(all, bed).await?,
        accounts: BTreeMap::new(),
        refused: Mutex::default(),
    };
    for caller in shipped.iter().chain([&&all.unlimited]) {
        stage.accounts.insert(caller.name, caller.account().await?);
    }
    let rows = access.rows().map(|row| (row, row.roles.as_str()));
    stage.ask(cells(rows, &shipped)?, cases).await?;

    let unlimited = [&all.controller, &all.pod, &all.unit, &all.act, &all.unlimited];
    ensure!(unlimited.len() == access.unlimited.len(), "expected a caller for each of {:?}", access.unlimited);
    let secrets = get("/api/v1/namespaces/default/secrets");
    let (role, to) = (format!("--clusterrole={UNLIMITED}"), "--serviceaccount=nrh-system:nrh-controller");
    let groups = ["--group=system:nodes", "--group=system:serviceaccounts:nrh-node"];
    bed.kubectl(&[&["create", "clusterrolebinding", "to-parts", &role, to], &groups[..]].concat())?;
    all.act.until_allowed(&secrets).await?;
    let rows = access.rows().filter_map(|row| Some((row, row.unlimited.as_deref()?)));
    stage.ask(cells(rows, &unlimited)?, cases).await?;
    bed.kubectl(&["delete", "clusterrolebinding", "to-parts"])?;
    all.act.until_denied(&secrets).await?;
    let named: BTreeSet<String> = access.rows().flat_map(|row| &row.policies).cloned().collect();
    let refused = stage.refused.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let what = format!("policies that refuse something: expected {named:?}");
    cases.note(&what, refused == named, &format!("{refused:?}"));
    stage.clear().await
}

/// What the rows are about, and is not there yet.
async fn stage(all: &Callers, bed: &Bed) -> Result<BTreeMap<String, String>> {
    let admin = &all.admin;
    admin.must(&create(POLICIES, policy("standing", "DiskFull", &json!([{"action": "Notify"}])))).await?;
    admin.must(&create(CONFIGS, ours("RemediationConfig", "cluster", json!({"suspend": true})))).await?;
    all.controller.until_allowed(&create(REMEDIATIONS, remediation("waits", "worker-1"))).await?;
    let status = json!({"status": {"phase": "AwaitingApproval", "attempts": [step("op-1", "AwaitingApproval")]}});
    all.controller.must(&merge(format!("{REMEDIATIONS}/waits/status"), status)).await?;
    let job = all.controller.must(&create(JOBS, jobs::shaped())).await?;
    let neighbour = admin.must(&get(format!("/api/v1/nodes/{}", NODES[1]))).await?;
    let command = owned_command(NODES[1], &neighbour["metadata"]["uid"], json!({}));
    all.controller.must(&create(COMMANDS, command)).await?;

    let pod = json!({"metadata": {"name": "app"}, "spec": {"nodeName": "worker-1", "containers": [{"name": "c", "image": "i"}]}});
    let app = admin.must(&create(PODS, pod)).await?;
    let system = "/apis/apps/v1/namespaces/nrh-system";
    let sets = until_some(admin, &format!("{system}/replicasets")).await?;
    // With the controller's account, and on another node than the caller who is one.
    let mut replica = system::pod("replica", "nrh-controller");
    replica["spec"]["nodeName"] = json!(NODES[1]);
    replica["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "30m"}});
    admin.must(&create(SYSTEM_PODS, replica)).await?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    bed.kubectl(&["create", "service", "clusterip", "door", "--tcp=80:8080", "-n", "nrh-system"])?;
    bed.kubectl(&["create", "service", "clusterip", "door", "--tcp=80:10248", "-n", "nrh-node"])?;
    let mut names = BTreeMap::from([
        ("app-uid".to_owned(), text(&app["metadata"]["uid"])),
        ("controller-set".to_owned(), text(&sets["metadata"]["name"])),
        ("job".to_owned(), text(&job["metadata"]["name"])),
    ]);
    for node in NODES {
        let of_the_probe =
            format!("labelSelector=app.kubernetes.io%2Fname%3Dnrh-probe&fieldSelector=spec.nodeName%3D{node}");
        let probe = until_some(admin, &format!("/api/v1/namespaces/nrh-node/pods?{of_the_probe}")).await?;
        names.insert(format!("probe-pod {node}"), text(&probe["metadata"]["name"]));
        names.insert(format!("probe-uid {node}"), text(&probe["metadata"]["uid"]));
    }
    Ok(names)
}

async fn until_some(admin: &Caller, path: &str) -> Result<Value> {
    plane::soon(async || {
        let list = admin.must(&get(path)).await?;
        ensure!(list["items"][0].is_object(), "expected an object in {path}, found none");
        Ok(list["items"][0].clone())
    })
    .await
}

fn cells<'a>(rows: impl Iterator<Item = (&'a Row, &'a str)>, callers: &[&'a Caller]) -> Result<Vec<Cell<'a>>> {
    let mut cells = Vec::new();
    for (row, expected) in rows {
        for (caller, expected) in callers.iter().zip(answers(expected)?) {
            cells.extend(row.verbs.iter().map(|verb| Cell { row, verb, caller, expected }));
        }
    }
    Ok(cells)
}

impl Stage<'_> {
    /// Asks for all cells, and again for those that are not as expected, until the server has had time to know everything.
    async fn ask(&self, cells: Vec<Cell<'_>>, cases: &mut Cases) -> Result<()> {
        let (count, ends) = (cells.len(), Instant::now() + SOON);
        let mut left: Vec<(Cell<'_>, String)> = cells.into_iter().map(|cell| (cell, String::new())).collect();
        loop {
            let asked = futures::stream::iter(left).map(async |(cell, _)| (self.differs(&cell).await, cell));
            let asked: Vec<_> = asked.buffered(AT_ONCE).collect().await;
            left = asked.into_iter().filter_map(|(found, cell)| Some((cell, found?))).collect();
            if left.is_empty() || Instant::now() > ends {
                break;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        for _ in left.len()..count {
            cases.note("a cell of the table", true, "");
        }
        for (cell, found) in left {
            let Cell { row, verb, caller, expected } = cell;
            let what = format!("{verb} {}, as {}: expected {}", row.what, caller.name, expected.sign());
            cases.note(&what, false, &found);
        }
        Ok(())
    }

    /// What was found in place of what is expected.
    async fn differs(&self, cell: &Cell<'_>) -> Option<String> {
        match self.found(cell).await {
            Ok((found, _)) if found == cell.expected => None,
            Ok((found, said)) => Some(format!("{} {said}", found.sign())),
            Err(error) => Some(format!("{error:#}")),
        }
    }

    /// The answer, and what the server has said. A node asks for its own object and for its neighbour's.
    async fn found(&self, cell: &Cell<'_>) -> Result<(Answer, String)> {
        let own = cell.answer(self, NODES[0]).await?;
        let is_node = ["probe pod", "kubelet's certificate"].contains(&cell.caller.name);
        if !is_node || !["{node}", "{probe-pod}"].iter().any(|name| cell.row.path.contains(name)) {
            return Ok(own);
        }
        let other = cell.answer(self, NODES[1]).await?;
        match (own.0, other.0) {
            (Answer::Allowed, Answer::NoRight | Answer::Refused) => Ok((Answer::Own, other.1)),
            (one, other) if one == other => Ok(own),
            // Kubernetes itself keeps a kubelet from other nodes, before any policy is asked.
            (Answer::Refused, Answer::NoRight) => Ok(own),
            _ => bail!("of its own {own:?}, of its neighbour's {other:?}"),
        }
    }

    /// A text of the table with everything in its place.
    fn fill(&self, text: &str, node: &str, caller: &Caller) -> String {
        let text = text.replace("{probe-pod}", &self.names[&format!("probe-pod {node}")]);
        let text = text.replace("{probe-uid}", &self.names[&format!("probe-uid {node}")]);
        let text = text.replace("{node}", node).replace("{me}", &self.accounts[caller.name]);
        self.names.iter().fold(text, |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
    }

    async fn clear(&self) -> Result<()> {
        let now = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0, "propagationPolicy": "Background"});
        self.admin.must(&merge(format!("{CONFIGS}/cluster"), json!({"spec": {"suspend": false}}))).await?;
        for path in [
            format!("{COMMANDS}/{}", NODES[1]),
            format!("{POLICIES}/standing"),
            format!("{REMEDIATIONS}/waits"),
            format!("{CONFIGS}/cluster"),
            format!("{JOBS}/{}", self.names["job"]),
            format!("{PODS}/app"),
            format!("{SYSTEM_PODS}/replica"),
            "/api/v1/namespaces/nrh-system/services/door".to_owned(),
            "/api/v1/namespaces/nrh-node/services/door".to_owned(),
        ] {
            self.admin.must(&delete(path, now.clone())).await?;
        }
        Ok(())
    }
}

impl Cell<'_> {
    /// The answer for an object, and what the server has said.
    async fn answer(&self, stage: &Stage<'_>, node: &str) -> Result<(Answer, String)> {
        if let Some(review) = &self.row.review {
            return self.review(review).await;
        }
        let (code, message) = self.caller.code(&self.request(stage, node).await?).await?;
        let policy = message.split("ValidatingAdmissionPolicy '").nth(1).and_then(|rest| rest.split('\'').next());
        let answer = match (code, policy) {
            (403, Some(policy)) if self.row.policies.iter().any(|one| one == policy) => {
                stage.refused.lock().unwrap_or_else(PoisonError::into_inner).insert(policy.to_owned());
                Answer::Refused
            }
            (403, None) => Answer::NoRight,
            (200..300, _) => Answer::Allowed,
            // What is let through finds that the only object of its kind is there.
            (409, None) if self.verb == "create" && message.contains("already exists") => Answer::Allowed,
            // Nobody runs these pods: what is let through has no end to reach.
            (400 | 500 | 503, _) if self.is_connection() => Answer::Allowed,
            _ => bail!("{code}: {message}"),
        };
        Ok((answer, message))
    }

    fn is_connection(&self) -> bool {
        let sub = self.row.sub.as_deref().unwrap_or_default();
        ["exec", "attach", "portforward", "proxy", "log"].iter().any(|one| sub.starts_with(one))
    }

    async fn review(&self, attributes: &Value) -> Result<(Answer, String)> {
        let mut attributes = attributes.clone();
        attributes["verb"] = json!(self.verb);
        let body = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes}});
        let answer = self.caller.must(&create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)).await?;
        let is_allowed = answer["status"]["allowed"] == true;
        Ok((if is_allowed { Answer::Allowed } else { Answer::NoRight }, answer["status"].to_string()))
    }

    /// The request of this cell: a try-out where the server knows one.
    async fn request(&self, stage: &Stage<'_>, node: &str) -> Result<Call> {
        let mut path = stage.fill(&self.row.path, node, self.caller);
        let mut query: Vec<String> = self.row.query.iter().cloned().collect();
        match &self.row.sub {
            Some(sub) => path = format!("{path}/{sub}"),
            None if ["list", "watch", "create", "deletecollection"].contains(&self.verb) => {
                let (collection, name) = path.rsplit_once('/').context("expected a path that ends with a name")?;
                if self.verb == "watch" {
                    query.push(format!("watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3D{name}"));
                }
                path = collection.to_owned();
            }
            None => {}
        }
        let reads = ["get", "list", "watch"].contains(&self.verb);
        if !reads && !self.is_connection() && self.row.sub.as_deref() != Some("token") {
            query.push("dryRun=All".to_owned());
        }
        let mut body = match &self.row.body {
            Value::String(name) if name == "{shaped-job}" => {
                let mut job = jobs::shaped();
                job["metadata"]["name"] = json!("other");
                job
            }
            Value::Null if self.verb == "patch" => json!({}),
            other => serde_json::from_str(&stage.fill(&other.to_string(), node, self.caller))?,
        };
        // The server reads the query of a deletion only where it has no body.
        if ["delete", "deletecollection"].contains(&self.verb) && body.is_object() {
            body["dryRun"] = json!(["All"]);
        }
        let to = if query.is_empty() { path.clone() } else { format!("{path}?{}", query.join("&")) };
        Ok(match self.verb {
            "get" | "list" | "watch" => get(to),
            "create" => create(to, body),
            "patch" if path.contains("/runtimehealth.io/") => merge(to, body),
            "patch" => strategic(to, body),
            "update" => {
                let mut object = Value::Null;
                if !self.is_connection() {
                    object = stage.admin.must(&get(&path)).await?;
                    merged(&mut object, &body);
                }
                update(to, object)
            }
            "delete" | "deletecollection" => delete(to, body),
            other => bail!("expected a verb of RBAC, found {other}"),
        })
    }
}

/// Merges a patch into an object, as RFC 7386 says; nothing is taken out.
fn merged(object: &mut Value, patch: &Value) {
    match patch {
        Value::Null => {}
        Value::Object(fields) => {
            if !object.is_object() {
                *object = json!({});
            }
            for (name, value) in fields {
                merged(&mut object[name], value);
            }
        }
        other => *object = other.clone(),
    }
}
