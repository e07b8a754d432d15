//! One request, one answer.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body as Answer, Bytes};
use futures::stream;
use http::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::apply::{apply_status, merge, record_owner};
use super::path::{Target, of_path};
use super::{Call, FakeApi, Fault, Store};

pub(super) type Reply = Result<(u16, Value), (u16, &'static str, String)>;

impl FakeApi {
    pub(super) async fn serve(&self, request: Request<Body>, own_lease: Option<String>) -> Response<Answer> {
        let (parts, body) = request.into_parts();
        let bytes = body.collect_bytes().await.unwrap_or_default();
        if let Some(list) = self.lock().discovered(parts.uri.path()) {
            return list;
        }
        let mut target = of_path(parts.uri.path()).unwrap_or_else(|| panic!("strange path {}", parts.uri));
        let query = query(parts.uri.query().unwrap_or_default());
        let watch = query.get("watch").is_some_and(|value| value == "true" || value == "1");
        let verb = match (&parts.method, watch, target.name.is_some()) {
            (&Method::GET, true, _) => "watch",
            (&Method::GET, false, true) => "get",
            (&Method::GET, false, false) => "list",
            (&Method::POST, ..) => "create",
            (&Method::PUT, ..) => "update",
            (&Method::PATCH, ..) => "patch",
            (&Method::DELETE, ..) => "delete",
            other => panic!("strange method {other:?}"),
        };
        let mut body: Value = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        if let Some(own) = own_lease.filter(|_| target.plural == "leases") {
            if body["metadata"]["name"].is_string() {
                body["metadata"]["name"] = json!(own);
            }
            target.name = target.name.map(|_| own);
        }
        let call = Call { verb, target, query, body, at: Instant::now() };
        let kind = parts.headers.get("content-type").and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
        let fault = {
            let mut store = self.lock();
            // What is only tried is no call that a test counts or holds up.
            let is_tried = call.is_dry_run();
            if !is_tried {
                store.calls.push(call.clone());
            }
            if store.down {
                return status(503, "ServiceUnavailable", "down");
            }
            store.hook.as_mut().filter(|_| !is_tried).and_then(|hook| hook(&call))
        };
        let mut late = Duration::ZERO;
        match fault {
            Some(Fault::Code(code)) => return status(code, "Fault", "injected"),
            Some(Fault::Busy(seconds)) => return busy(seconds),
            Some(Fault::Late(by)) => sleep(by).await,
            Some(Fault::AnsweredLate(by)) => late = by,
            Some(Fault::Stall) => return std::future::pending().await,
            Some(Fault::DoneButSilent) => {
                let _ = self.lock().reply(&call, &kind);
                self.changed.notify_waiters();
                return std::future::pending().await;
            }
            Some(Fault::Empty) => {
                let mut list = self.lock().listed(&call);
                list["items"] = json!([]);
                return json_answer(200, &list);
            }
            Some(Fault::Meanwhile(happens)) => happens(self),
            None => {}
        }
        if verb == "watch" {
            return self.watch(call);
        }
        let reply = self.lock().reply(&call, &kind);
        self.changed.notify_waiters();
        if !late.is_zero() {
            sleep(late).await;
        }
        match reply {
            Ok((code, value)) => json_answer(code, &value),
            Err((code, reason, message)) => status(code, reason, &message),
        }
    }

    fn watch(&self, call: Call) -> Response<Answer> {
        let since: u64 = call.query.get("resourceVersion").and_then(|v| v.parse().ok()).unwrap_or(0);
        let lines = stream::unfold((self.clone(), call, since), |(api, call, mut since)| async move {
            loop {
                let notify = api.changed.clone();
                let changed = notify.notified();
                let found = {
                    let store = api.lock();
                    if store.down {
                        return None;
                    }
                    let first = store.changes.partition_point(|change| change.version <= since);
                    let next = store.changes[first..]
                        .iter()
                        .inspect(|change| since = change.version)
                        .find(|change| call.target.holds(&change.target) && selected(&change.object, &call.query));
                    next.map(|change| json!({"type": change.kind, "object": *change.object}))
                };
                if let Some(event) = found {
                    let line = Bytes::from(format!("{event}\n"));
                    return Some((Ok::<_, Infallible>(line), (api, call, since)));
                }
                changed.await;
            }
        });
        Response::builder().status(200).body(Answer::from_stream(lines)).unwrap()
    }
}

impl Store {
    fn reply(&mut self, call: &Call, content_type: &str) -> Reply {
        if call.is_dry_run() {
            return self.admit_dry_run(call);
        }
        match call.verb {
            "list" => Ok((200, self.listed(call))),
            "get" => self.found(&call.target.object()).map(|object| (200, object)),
            "create" => self.create(call),
            "update" => self.update(call),
            "patch" => self.patch(call, content_type),
            "delete" => self.delete(call),
            other => panic!("{other}"),
        }
    }

    /// The kinds of a group and version, where that is asked for.
    fn discovered(&self, path: &str) -> Option<Response<Answer>> {
        let api_version = path.strip_prefix("/apis/")?;
        if api_version.split('/').count() != 2 {
            return None;
        }
        let of_group = self.kinds.iter().filter(|(version, ..)| version == api_version);
        let resources: Vec<Value> = of_group
            .map(|(_, kind, plural)| {
                json!({"name": plural, "singularName": "", "namespaced": true, "kind": kind, "verbs": ["get"]})
            })
            .collect();
        if resources.is_empty() || self.down {
            return Some(status(if self.down { 503 } else { 404 }, "NotFound", "no such group"));
        }
        let list =
            json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": resources});
        Some(json_answer(200, &list))
    }

    pub(super) fn found(&self, target: &Target) -> Result<Value, (u16, &'static str, String)> {
        let object = self.objects.get(target).map(|object| Value::clone(object));
        object.ok_or_else(|| (404, "NotFound", format!("{target:?} not found")))
    }

    fn listed(&self, call: &Call) -> Value {
        let items: Vec<&Value> = self
            .objects
            .iter()
            .filter(|(target, object)| call.target.holds(target) && selected(object, &call.query))
            .map(|(_, object)| &**object)
            .collect();
        let number = |key: &str| call.query.get(key).and_then(|value| value.parse::<usize>().ok());
        let (from, left) = (number("continue").unwrap_or(0), items.len());
        let page: Vec<&Value> = items.into_iter().skip(from).take(number("limit").unwrap_or(left)).collect();
        let next = from + page.len();
        let mut metadata = json!({"resourceVersion": self.version.to_string()});
        if next < left {
            metadata["continue"] = json!(next.to_string());
        }
        json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": page})
    }

    fn create(&mut self, call: &Call) -> Reply {
        if call.target.subresource.as_deref() == Some("eviction") {
            return self.evict(call);
        }
        if let Some(answer) = self.review(call) {
            return Ok((201, answer));
        }
        let mut object = call.body.clone();
        let name = object["metadata"]["name"].as_str().unwrap_or_else(|| panic!("no name in {object}")).to_owned();
        let target = Target { name: Some(name.clone()), ..call.target.clone() };
        if self.objects.contains_key(&target) {
            return Err((409, "AlreadyExists", format!("{name} exists")));
        }
        if target.group == "runtimehealth.io" {
            object.as_object_mut().unwrap().remove("status");
        }
        Ok((201, self.write(&target, None, object)))
    }

    /// Puts a Lease in place of the one that stands: nothing else is updated.
    fn update(&mut self, call: &Call) -> Reply {
        assert_eq!(call.target.resource(), "leases", "an update of something else");
        let old = self.found(&call.target)?;
        let mut object = call.body.clone();
        at_version(&old, &object)?;
        object["metadata"]["uid"] = old["metadata"]["uid"].clone();
        object["metadata"]["creationTimestamp"] = old["metadata"]["creationTimestamp"].clone();
        Ok((200, self.write(&call.target, Some(&old), object)))
    }

    fn patch(&mut self, call: &Call, content_type: &str) -> Reply {
        let (target, old) = (call.target.object(), self.found(&call.target.object())?);
        let uid = &call.body["metadata"]["uid"];
        if !uid.is_null() && *uid != old["metadata"]["uid"] {
            return Err((422, "Invalid", format!("metadata.uid: Invalid value: {uid}: field is immutable")));
        }
        at_version(&old, &call.body)?;
        let mut object = old.clone();
        let is_status = call.target.subresource.as_deref() == Some("status");
        match content_type {
            "application/merge-patch+json" if is_status => {
                merge(&mut object["status"], &call.body["status"]);
            }
            "application/merge-patch+json" => {
                let version = old["metadata"]["resourceVersion"].clone();
                merge(&mut object, &call.body);
                object["metadata"]["resourceVersion"] = version;
            }
            "application/apply-patch+yaml" if is_status => {
                let manager = call.query.get("fieldManager").cloned().unwrap_or_default();
                let before = self.applied.get(&(target.clone(), manager.clone())).cloned().unwrap_or(Value::Null);
                apply_status(&mut object["status"], &before, &call.body["status"]);
                record_owner(&mut object["metadata"]["managedFields"], &manager, &call.body["status"]);
                self.applied.insert((target.clone(), manager), call.body["status"].clone());
            }
            other => panic!("patch of type {other} on {:?}", call.target),
        }
        Ok((200, self.write(&target, Some(&old), object)))
    }

    pub(super) fn delete(&mut self, call: &Call) -> Reply {
        let (target, mut object) = (call.target.object(), self.found(&call.target.object())?);
        let wanted = &call.body["preconditions"]["uid"];
        if !wanted.is_null() && wanted != &object["metadata"]["uid"] {
            return Err((409, "Conflict", format!("uid is {}, not {wanted}", object["metadata"]["uid"])));
        }
        if object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty) {
            self.erase(&target);
        } else {
            let old = object.clone();
            object["metadata"]["deletionTimestamp"] = json!("2025-06-01T00:00:00Z");
            self.write(&target, Some(&old), object);
        }
        Ok((200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"})))
    }
}

fn at_version(old: &Value, new: &Value) -> Result<(), (u16, &'static str, String)> {
    let (is, wanted) = (&old["metadata"]["resourceVersion"], &new["metadata"]["resourceVersion"]);
    let uid = &new["metadata"]["uid"];
    if (!wanted.is_null() && is != wanted) || (!uid.is_null() && uid != &old["metadata"]["uid"]) {
        return Err((409, "Conflict", format!("the version is {is}, not {wanted}")));
    }
    Ok(())
}

/// Label and field selectors, as far as they are used.
fn selected(object: &Value, query: &BTreeMap<String, String>) -> bool {
    let labels = &object["metadata"]["labels"];
    let by_label = query.get("labelSelector").is_none_or(|selector| {
        selector.split(',').all(|part| match part.split_once('=') {
            Some((key, value)) => labels[key] == json!(value),
            None => !labels[part].is_null(),
        })
    });
    let by_field = query.get("fieldSelector").is_none_or(|selector| {
        selector.split(',').all(|part| {
            let (field, value) = part.split_once('=').unwrap();
            let (field, is_wanted) = field.strip_suffix('!').map_or((field, true), |field| (field, false));
            (object.pointer(&format!("/{}", field.replace('.', "/"))) == Some(&json!(value))) == is_wanted
        })
    });
    by_label && by_field
}

fn query(text: &str) -> BTreeMap<String, String> {
    text.split('&').filter_map(|pair| pair.split_once('=')).map(|(k, v)| (k.to_owned(), unescape(v))).collect()
}

fn unescape(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let hex: String = rest.by_ref().take(2).map(char::from).collect();
                bytes.push(u8::from_str_radix(&hex, 16).unwrap());
            }
            other => bytes.push(other),
        }
    }
    String::from_utf8(bytes).unwrap()
}

fn json_answer(code: u16, value: &Value) -> Response<Answer> {
    Response::builder().status(code).header("content-type", "application/json").body(value.to_string().into()).unwrap()
}

fn status(code: u16, reason: &str, message: &str) -> Response<Answer> {
    let mut answer = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code});
    // As the API server tells of a budget: the sentence is that of the cause.
    if message.starts_with("The disruption budget") {
        answer["message"] = json!("Cannot evict pod as it would violate the pod's disruption budget.");
        answer["details"] = json!({"causes": [{"reason": "DisruptionBudget", "message": message}]});
    }
    if message.starts_with("metadata.uid") {
        let cause = json!({"reason": "FieldValueInvalid", "field": "metadata.uid", "message": message});
        answer["details"] = json!({"causes": [cause]});
    }
    json_answer(code, &answer)
}

fn busy(seconds: u32) -> Response<Answer> {
    json_answer(
        429,
        &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 429,
            "message": "too many requests, please try again later", "reason": "TooManyRequests",
            "details": {"retryAfterSeconds": seconds}}),
    )
}
