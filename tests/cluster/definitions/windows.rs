//! Schedules and time zones that the API server takes or refuses, beside what the controller reads: what is refused when a policy
//! is applied must not be narrower than what a controller could go by, and little wider.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use nrh::core::window::{Window, WindowType};
use nrh_testbed::Bed;
use nrh_testbed::process::wait_until;
use nrh_testbed::wait::SOON;
use serde_json::{Value, json};

use crate::objects::policy;

/// From this minor version of Kubernetes on, rules about the spec do not refuse a status.
const STATUS_IS_LET_BE: u32 = 33;
/// As many windows as a policy may have.
const AT_ONCE: usize = 16;

/// What may stand in a field, and what may not, in one field or another.
const FIELDS: [&str; 93] = [
    "*", "?", "**", "*?", "0", "00", "1", "01", "5", "7", "8", "007", "12", "13", "23", "24", "31", "32", "59", "60",
    "0060", "99", "-1", "1-", "-", "1-5", "5-1", "5-5", "05-1", "1-05", "0-7", "1-8", "0-12", "1-13", "0-23", "22-6",
    "20-31", "31-20", "30-59", "59-30", "59-60", "1-2-3", "1-5-3", "*/5", "?/5", "*/0", "*/05", "*/100", "*/", "/5",
    "0/10", "5/10", "1-5/2", "5-1/2", "1-5/0", "1-5/2/2", "*-5", "1,2", "1,,2", ",1", "1,", ",", "1,*", "1,60",
    "1-3,5-7", "5-7,3-1", "1;2", "a", "MON", "mon", "Fri", "FRI-SUN", "SUN-FRI", "FRI-MON", "SAT-SUN", "MONDAY", "JAN",
    "jan-Mar", "NOV-FEB", "DEC,1", "L", "LW", "15W", "32W", "W", "5L", "8L", "5#3", "5#6", "1-5#2", "#2", "5#L",
    "*/2#2",
];

/// The same for whole schedules: fields that count together.
const SCHEDULES: [&str; 18] = [
    "0 22 * * 1-5",
    "0   22 *  * 1-5",
    "*/15 0-6,22-23 1-7 JAN-MAR,DEC MON-FRI",
    "0 0 29 2 *",
    "0 0 31 2 *",
    "0 0 1 * +MON",
    "0 0 1 * ++MON",
    "0 0 1 * +",
    "0 0 1 * 1+",
    "0 22-6 * * *",
    "0 0 * 11-2 *",
    "0 0 28-3 * *",
    "0 0 * * 6-1",
    "50-10 0 * * *",
    "60 24 32 13 8",
    "10 22 * *",
    "0 0 22 * * *",
    "@daily 0 0 0 0",
];

/// What the parser passes over, and nobody means.
const ACCIDENTS: [&str; 2] = ["0 0 15W9 * *", "0 0 * * 5#2L"];

/// No zones, some of which are one to either side.
const NO_ZONES: [&str; 7] = ["Mars/Olympus", "Europe/Berln", "Local", "+01:00", "01:00", "UTC+1", "../etc/localtime"];

fn read(schedule: &str, zone: &str) -> Result<(), String> {
    Window::new(WindowType::Allow, schedule, Duration::from_hours(1), zone, BTreeSet::new()).map(|_| ())
}

/// Whether the controller takes it; `None` = it is well formed and never comes, which the API server need not find out.
fn is_taken(schedule: &str) -> Option<bool> {
    match read(schedule, "UTC") {
        Ok(()) => Some(!ACCIDENTS.contains(&schedule)),
        Err(error) if error.contains("never comes") => None,
        Err(_) => Some(false),
    }
}

fn created(bed: &Bed, windows: &[Value]) -> String {
    let said = bed.kubectl_input(&["create", "--dry-run=server", "-f", "-"], &with("windows", windows).to_string());
    said.unwrap_or_else(|error| format!("{error:#}"))
}

fn with(name: &str, windows: &[Value]) -> Value {
    let mut policy = policy(name, "DiskFull", &json!([{"action": "Notify"}]));
    policy["spec"]["windows"] = json!(windows);
    policy
}

fn at(schedule: &str, zone: &str) -> Value {
    json!({"type": "Allow", "schedule": schedule, "duration": "1h", "timeZone": zone})
}

/// What the server says of each of these schedules, if anything.
fn refused(bed: &Bed, schedules: &[String]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for some in schedules.chunks(AT_ONCE) {
        let windows: Vec<Value> = some.iter().map(|schedule| at(schedule, "UTC")).collect();
        let said = created(bed, &windows);
        let before = found.len();
        for (place, schedule) in some.iter().enumerate() {
            let path = format!("spec.windows[{place}].schedule:");
            if let Some(line) = said.lines().find(|line| line.contains(&path)) {
                found.insert(schedule.clone(), line.to_owned());
            }
        }
        assert!(found.len() > before || said.contains("created"), "refused for another reason: {said}");
    }
    found
}

/// The server takes the schedules that the controller reads.
pub fn schedules_like_the_parser(bed: &Bed) {
    let mut all: Vec<String> = SCHEDULES.iter().chain(&ACCIDENTS).map(|&text| text.to_owned()).collect();
    for place in 0..5 {
        all.extend(FIELDS.iter().map(|field| {
            let mut fields = ["*"; 5];
            fields[place] = field;
            fields.join(" ")
        }));
    }
    let refused = refused(bed, &all);
    let is_wrong = |text: &&String| is_taken(text) == Some(refused.contains_key(*text));
    let wrong: Vec<_> = all.iter().filter(is_wrong).map(|text| (text, read(text, "UTC"), refused.get(text))).collect();
    assert!(wrong.is_empty(), "{} of {}: {wrong:#?}", wrong.len(), all.len());
}

/// The server knows the zones that the controller knows.
pub fn zones_like_the_parser(bed: &Bed) {
    const SENTENCE: &str = "timeZone: expected the name of an IANA time zone, such as UTC or Europe/Berlin";
    let known: Vec<String> = jiff::tz::db().available().map(|name| name.to_string()).collect();
    assert!(known.len() > 300 && known.iter().any(|name| name == "Europe/Berlin"), "expected the zones of the world");
    for some in known.chunks(AT_ONCE) {
        let windows: Vec<Value> = some.iter().map(|zone| at("0 22 * * *", zone)).collect();
        let said = created(bed, &windows);
        assert!(said.contains("created"), "{some:?}: {said}");
    }
    for zone in NO_ZONES {
        assert!(read("0 22 * * *", zone).is_err(), "{zone}: the controller reads it");
        let said = created(bed, &[at("0 22 * * *", zone)]);
        assert!(said.contains(SENTENCE), "{zone}: {said}");
    }
}

/// A policy with windows that were never checked can be suspended and labelled, and told about in its status; no such window can be
/// added.
pub fn that_stand_are_let_be(bed: &Bed, crds: &str) {
    let name = "crd/remediationpolicies.runtimehealth.io";
    let mut old = bed.get(&[name]).unwrap();
    let spec = &mut old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let windows = &mut spec["properties"]["windows"];
    for part in ["/x-kubernetes-validations", "/items/properties/schedule/x-kubernetes-validations"] {
        *windows.pointer_mut(part).unwrap() = json!([]);
    }
    bed.kubectl_input(&["replace", "-f", "-"], &old.to_string()).unwrap();
    let bad = [at("0 22-6 * * *", "europe/berlin")];
    let policy = with("stands", &bad);
    assert!(wait_until(SOON, || bed.kubectl_input(&["create", "-f", "-"], &policy.to_string()).is_ok()));
    bed.kubectl(&["apply", "--server-side", "--force-conflicts", "-k", crds]).unwrap();
    assert!(wait_until(SOON, || !created(bed, &bad).contains("created")));

    let patch = |more: &[&str], change: &Value| {
        let text = change.to_string();
        bed.kubectl(&[&["patch", "rmp", "stands", "--type=merge", "-p", &text], more].concat())
    };
    patch(&[], &json!({"metadata": {"labels": {"a": "b"}}})).unwrap();
    patch(&[], &json!({"spec": {"suspend": true}})).unwrap();
    let status = patch(&["--subresource=status"], &json!({"status": {"selected": 3}}));
    let version: Value = serde_json::from_str(&bed.kubectl(&["get", "--raw", "/version"]).unwrap()).unwrap();
    let minor: u32 = version["minor"].as_str().unwrap().parse().unwrap();
    match status {
        Ok(_) => assert!(minor >= STATUS_IS_LET_BE),
        Err(error) => assert!(
            minor < STATUS_IS_LET_BE && format!("{error:#}").contains("unknown time zone europe/berlin"),
            "{error:#}"
        ),
    }
    let mut more = bad.clone();
    more[0]["duration"] = json!("2h");
    let error = format!("{:#}", patch(&[], &json!({"spec": {"windows": more}})).unwrap_err());
    assert!(error.contains("a range goes from the lower to the higher"), "{error}");
    assert!(error.contains("unknown time zone europe/berlin"), "{error}");
    bed.kubectl(&["delete", "rmp", "stands"]).unwrap();
}
