//! An API server in memory: enough of the real one's rules to test the shell against it, with faults.
//!
//! Objects have versions that rise, uids, generations and finalizers; writes obey versions and
//! preconditions; status is a subresource of our own kinds; watches resume from a version. Every call is
//! recorded. A hook may answer, or hold back, any call.

#![allow(dead_code, reason = "each test uses a part of it")]
#![expect(clippy::unwrap_used, reason = "a test world that breaks is a failed test")]

mod admission;
mod apply;
mod evict;
mod path;
mod reviews;
mod serve;
pub mod world;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use axum::body::Body as Answer;
use http::{Request, Response};
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

pub use path::Target;
pub use reviews::API;

#[derive(Clone, Debug)]
pub struct Call {
    pub verb: &'static str,
    pub target: Target,
    pub query: BTreeMap<String, String>,
    pub body: Value,
    /// When it came.
    pub at: Instant,
}

impl Call {
    /// Whether it only asks whether it would be taken.
    pub fn is_dry_run(&self) -> bool {
        self.query.contains_key("dryRun") || self.body.get("dryRun").is_some()
    }

    pub fn is(&self, verb: &str, plural: &str) -> bool {
        self.verb == verb && self.target.plural == plural
    }

    pub fn is_eviction(&self) -> bool {
        self.target.subresource.as_deref() == Some("eviction")
    }

    pub fn is_write(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch")
    }

    /// Short form for assertions: `create jobs/op-1`.
    pub fn line(&self) -> String {
        let name = self.target.name.clone().or_else(|| Some(self.body["metadata"]["name"].as_str()?.to_owned()));
        format!("{} {}/{}", self.verb, self.target.resource(), name.unwrap_or_default())
    }
}

/// What a hook does with a call.
pub enum Fault {
    /// Answered with this code, nothing is done.
    Code(u16),
    /// Answered that too much is asked, with the wait in seconds that is asked for, nothing is done.
    Busy(u32),
    /// Never answered, nothing is done.
    Stall,
    /// Done and answered after a while.
    Late(Duration),
    /// Done at once, and answered after a while with what was so then.
    AnsweredLate(Duration),
    /// Done, and never answered: what a crash of the caller looks like.
    DoneButSilent,
    /// A list that shows nothing, as one that is far behind.
    Empty,
    /// Something happens just before it is done.
    Meanwhile(Box<dyn FnOnce(&FakeApi) + Send>),
}

type Hook = Box<dyn FnMut(&Call) -> Option<Fault> + Send>;

struct Change {
    version: u64,
    kind: &'static str,
    target: Target,
    object: Arc<Value>,
}

#[derive(Default)]
struct Store {
    version: u64,
    objects: BTreeMap<Target, Arc<Value>>,
    changes: Vec<Change>,
    calls: Vec<Call>,
    hook: Option<Hook>,
    /// Fields of a status by the manager that applied them.
    applied: BTreeMap<(Target, String), Value>,
    /// Kinds of other projects: apiVersion, kind and plural.
    kinds: Vec<(String, String, String)>,
    /// What an access review says no to: verb and resource.
    denied: Vec<(String, String)>,
    tokens: Vec<reviews::Token>,
    /// Its clock, which it writes into each Lease.
    clock: Option<Box<dyn Fn() -> Timestamp + Send>>,
    /// Accounts that may read `/metrics`.
    readers: Vec<String>,
    down: bool,
}

/// What etcd held at one moment.
pub struct Backup {
    version: u64,
    objects: BTreeMap<Target, Arc<Value>>,
    applied: BTreeMap<(Target, String), Value>,
}

#[derive(Clone, Default)]
pub struct FakeApi {
    store: Arc<Mutex<Store>>,
    changed: Arc<Notify>,
}

impl FakeApi {
    pub fn new() -> Self {
        let api = Self::default();
        api.install_admission();
        api
    }

    pub fn set_clock(&self, clock: impl Fn() -> Timestamp + Send + 'static) {
        self.lock().clock = Some(Box::new(clock));
    }

    pub fn client(&self) -> Client {
        self.client_with_lease(None)
    }

    /// A client whose Leases are its own: whoever uses it leads, whoever else leads too.
    pub fn client_with_lease(&self, own: Option<&str>) -> Client {
        let (api, own) = (self.clone(), own.map(str::to_owned));
        let service = tower::service_fn(move |request: Request<Body>| {
            let (api, own) = (api.clone(), own.clone());
            async move { Ok::<Response<Answer>, Infallible>(api.serve(request, own).await) }
        });
        Client::new(service, "default")
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap()
    }

    /// Sets what happens to calls from now on.
    pub fn hook(&self, hook: impl FnMut(&Call) -> Option<Fault> + Send + 'static) {
        self.lock().hook = Some(Box::new(hook));
    }

    /// This happens just before the first such call is done.
    pub fn meanwhile(
        &self,
        mut is_it: impl FnMut(&Call) -> bool + Send + 'static,
        happens: impl FnOnce(&Self) + Send + 'static,
    ) {
        let mut happens = Some(happens);
        self.hook(move |call| Some(Fault::Meanwhile(Box::new(happens.take_if(|_| is_it(call))?))));
    }

    pub fn unhook(&self) {
        self.lock().hook = None;
    }

    /// Serves a kind of another project, with objects in namespaces.
    pub fn serve_kind(&self, api_version: &str, kind: &str, plural: &str) {
        self.lock().kinds.push((api_version.to_owned(), kind.to_owned(), plural.to_owned()));
    }

    /// From now on access reviews say no to this, and to nothing else.
    pub fn deny(&self, denied: &[(&str, &str)]) {
        self.lock().denied = denied.iter().map(|(verb, plural)| ((*verb).to_owned(), (*plural).to_owned())).collect();
    }

    /// No call is answered any more, and watches end; or all is well again.
    pub fn set_down(&self, down: bool) {
        self.lock().down = down;
        self.changed.notify_waiters();
    }

    pub fn backup(&self) -> Backup {
        let store = self.lock();
        Backup { version: store.version, objects: store.objects.clone(), applied: store.applied.clone() }
    }

    /// All is as it was then, the count of versions too; Leases alone stay, so whoever leads goes on. Watches that run are not told:
    /// they are silent until the count passes the last change that they have read.
    pub fn restore(&self, backup: Backup) {
        let mut store = self.lock();
        let Backup { version, mut objects, applied } = backup;
        objects.retain(|target, _| target.plural != "leases");
        let is_lease = |(target, _): &(&Target, &Arc<Value>)| target.plural == "leases";
        objects.extend(store.objects.iter().filter(is_lease).map(|(target, lease)| (target.clone(), lease.clone())));
        store.changes.retain(|change| change.version <= version);
        (store.version, store.objects, store.applied) = (version, objects, applied);
        drop(store);
        self.changed.notify_waiters();
    }

    pub fn put(&self, mut object: Value) -> Value {
        let target = path::of_object(&object);
        let mut store = self.lock();
        let old = store.objects.get(&target).cloned();
        for field in ["uid", "creationTimestamp"] {
            if object["metadata"][field].is_null()
                && let Some(old) = &old
            {
                object["metadata"][field] = old["metadata"][field].clone();
            }
        }
        let stored = store.write(&target, old.as_deref(), object);
        drop(store);
        self.changed.notify_waiters();
        stored
    }

    pub fn change(&self, plural: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.get(plural, name).unwrap_or_else(|| panic!("no {plural}/{name}"));
        change(&mut object);
        self.put(object);
    }

    pub fn remove(&self, plural: &str, name: &str) {
        let mut store = self.lock();
        let found = store.objects.keys().find(|t| t.plural == plural && t.name.as_deref() == Some(name)).cloned();
        if let Some(target) = found {
            store.erase(&target);
        }
        drop(store);
        self.changed.notify_waiters();
    }

    pub fn get(&self, plural: &str, name: &str) -> Option<Value> {
        self.field(plural, name, "")
    }

    /// A field of an object, by its JSON pointer. Cheaper than `get`, which copies the whole object.
    pub fn field(&self, plural: &str, name: &str, pointer: &str) -> Option<Value> {
        let store = self.lock();
        let mut objects = store.objects.iter();
        let (_, object) = objects.find(|(t, _)| t.name.as_deref() == Some(name) && t.plural == plural)?;
        object.pointer(pointer).cloned()
    }

    pub fn list(&self, plural: &str) -> Vec<Value> {
        self.lock().objects.iter().filter(|(t, _)| t.plural == plural).map(|(_, o)| Value::clone(o)).collect()
    }

    pub fn calls(&self) -> Vec<Call> {
        self.lock().calls.clone()
    }

    pub fn forget_calls(&self) {
        self.lock().calls.clear();
    }

    /// Writes so far, in short.
    pub fn writes(&self) -> Vec<String> {
        self.lock().calls.iter().filter(|call| call.is_write()).map(Call::line).collect()
    }

    /// How many of them have this part.
    pub fn count_writes(&self, part: &str) -> usize {
        self.writes().iter().filter(|write| write.contains(part)).count()
    }

    /// Writes that touch anything but leases, statuses, reports, commands and Events.
    pub fn acts(&self) -> Vec<String> {
        let account = ["leases", "events", "noderemediations", "noderuntimehealths", "nodecommands"];
        let is_act = |call: &&Call| {
            call.is_write()
                && !account.contains(&call.target.plural.as_str())
                && call.target.subresource.as_deref() != Some("status")
        };
        self.lock().calls.iter().filter(is_act).map(Call::line).collect()
    }
}

impl Store {
    /// Stores an object and tells watches; a write that changes nothing is none.
    fn write(&mut self, target: &Target, old: Option<&Value>, mut object: Value) -> Value {
        let timeless = |object: &Value| {
            let mut object = object.clone();
            object["metadata"]["resourceVersion"] = Value::Null;
            object["metadata"]["managedFields"] = Value::Null;
            object
        };
        if let Some(old) = old
            && timeless(old) == timeless(&object)
        {
            return old.clone();
        }
        self.version += 1;
        let meta = &mut object["metadata"];
        if target.plural == "leases"
            && let Some(clock) = &self.clock
        {
            let time = clock().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            meta["managedFields"] = json!([{"manager": "nrh-controller", "operation": "Update", "time": time}]);
        }
        meta["resourceVersion"] = json!(self.version.to_string());
        if meta["uid"].is_null() {
            meta["uid"] = json!(format!("uid-{}", self.version));
        }
        if meta["creationTimestamp"].is_null() {
            meta["creationTimestamp"] = json!("2025-06-01T00:00:00Z");
        }
        let generation = old.and_then(|old| old["metadata"]["generation"].as_i64()).unwrap_or(0);
        let changed = old.is_none_or(|old| old["spec"] != object["spec"]);
        object["metadata"]["generation"] = json!(generation + i64::from(changed));
        let kind = if old.is_some() { "MODIFIED" } else { "ADDED" };
        let finalized = object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
        if !object["metadata"]["deletionTimestamp"].is_null() && finalized {
            self.objects.insert(target.clone(), Arc::new(object.clone()));
            self.erase(target);
            return object;
        }
        let stored = Arc::new(object.clone());
        self.objects.insert(target.clone(), Arc::clone(&stored));
        self.changes.push(Change { version: self.version, kind, target: target.clone(), object: stored });
        object
    }

    fn erase(&mut self, target: &Target) {
        let Some(mut object) = self.objects.remove(target) else { return };
        self.version += 1;
        Arc::make_mut(&mut object)["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.applied.retain(|(other, _), _| other != target);
        self.changes.push(Change { version: self.version, kind: "DELETED", target: target.clone(), object });
    }
}
