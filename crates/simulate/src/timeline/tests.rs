use super::*;

fn refused(events: &str, expect: &str) -> String {
    let text = format!("nodes: [{{name: w, count: 3}}]\nevents: [{events}]\nexpect: [{expect}]\n");
    let error = Timeline::parse(&text).unwrap_err();
    format!("{error:#}")
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    for (events, expect, said) in [
        ("{at: 1m}", "", "event 1 (at 0h01m00s): nothing happens in it"),
        ("{at: 1m, nodes: [w-9], cordoned: true}", "", "there is no node \"w-9\""),
        ("{at: 1m, cordoned: true}", "", "needs `nodes`"),
        ("{at: 1d, nodes: [w-1], cordoned: true}", "", "\"1d\" is not a time"),
        ("{at: 500ms, nodes: [w-1], cordoned: true}", "", "\"500ms\" is not a time"),
        ("{at: PT1M, nodes: [w-1], cordoned: true}", "", "\"PT1M\" is not a time"),
        (
            "{at: 1m, nodes: [w-1], fault: {type: DiskFull}, clears: DiskFull}",
            "",
            "fault and clears: expected one of them",
        ),
        ("{at: -1m, nodes: [w-1], cordoned: true}", "", "\"-1m\" is not a time"),
        ("{at: 900000h, nodes: [w-1], cordoned: true}", "", "is not a time"),
        ("{at: 1m, nodes: [w-1], fault: {type: ProbeNotReporting}}", "", "expected `probe: Silent`"),
        ("{at: 1m, nodes: [w-1], fault: {type: NodeCondition}}", "", "expected `condition: {type, status}`"),
        ("{at: 1m, nodes: [w-1], condition: {type: HostUnhealthy, status: True}}", "", "that another tool writes"),
        ("{at: 1m, nodes: [w-1], pods: {name: web}}", "", "expected namespace/name, found \"web\""),
        ("{at: 1m, nodes: [w-1], pods: {name: a/web, count: 501}}", "", "expected at most 500, found 501"),
        ("{at: 1m, nodes: [w-1], condition: {type: A, reason: B}}", "", "go with a status"),
        ("{at: 1m, nodes: [w-1], condition: {type: A, clearedBy: [Reboot]}}", "", "clearedBy goes with a status"),
        (
            "{at: 1m, nodes: [w-1], condition: {type: A, status: 'True', clearedBy: [SIGCONT]}}",
            "",
            "clearedBy: expected Reboot or HandOff, found SIGCONT",
        ),
        ("{at: 1m, nodes: [w-1], condition: {type: A, status: Maybe}}", "", "Maybe"),
        ("{at: 1m, nodes: [w-1], fault: {type: HungContainer, pod: a}}", "", "expected namespace/name, found \"a\""),
        ("{at: 1m, nodes: [w-1], fault: {type: DiskFull, pod: a/b}}", "", "pod: a DiskFull is about none"),
        ("{at: 1m, nodes: [w-1], fault: {type: DiskFull, podOwner: Job}}", "", "a DiskFull is about no pod"),
        ("{at: 1m, nodes: [w-1], fault: {type: Hung}}", "", "Hung"),
        ("{at: 1m, nodes: [w-1], falt: {type: DiskFull}}", "", "falt"),
        ("{at: 1m, nodes: [w-1], first: 0, cordoned: true}", "", "first: expected at least 1, found 0"),
        ("{at: 1m, nodes: [w-1], approved: ''}", "", "approved: expected a person's name"),
        ("{at: 1m, nodes: [w-1], cancel: {cancelledBy: ''}}", "", "cancel.cancelledBy: expected a person's name"),
        (
            "{at: 1m, nodes: [w-1], manual: {requestedBy: '', fault: DiskFull, action: Notify}}",
            "",
            "manual.requestedBy: expected a person's name",
        ),
        (
            "{at: 1m, nodes: [w-1], manual: {requestedBy: a, fault: DiskFull, action: Notify, startTimeout: 5s}}",
            "",
            "manual.startTimeout: expected 1m to 24h",
        ),
        ("{at: 1m, manual: {requestedBy: a, fault: DiskFull, action: Notify}}", "", "needs `nodes`"),
        (
            "",
            "{node: w-1}",
            "expectation 1: expected one of does, would, blocked, ends, uncordons, untaints and openAtMost, found 0",
        ),
        ("", "{does: Cordon, after: 5m, by: 1m}", "expected after <= by"),
        ("", "{does: Cordon, atLeast: 2, atMost: 1}", "expected atLeast <= atMost"),
        ("", "{blocked: InProgress}", "is not in the account"),
        ("", "{node: x, does: Cordon}", "there is no node \"x\""),
        ("", "{openAtMost: 1, by: 1m}", "openAtMost goes with `node` alone"),
    ] {
        let error = refused(events, expect);
        assert!(error.contains(said), "{events}{expect}: {error}");
    }
    let late = "nodes: [{name: a}]\nevents: []\nuntil: 1h\nexpect: [{does: Cordon, by: 2h}]\n";
    let late = format!("{:#}", Timeline::parse(late).unwrap_err());
    assert!(late.contains("by: expected a time until the end at 1h00m00s, found 2h00m00s"), "{late}");
    let twice = Timeline::parse("nodes: [{name: a}, {name: a}]\nevents: []\n").unwrap_err();
    assert!(format!("{twice:#}").contains("two of the name a"), "{twice:#}");
    let start = format!("{:#}", Timeline::parse("start: yesterday\nnodes: []\nevents: []\n").unwrap_err());
    assert!(
        start.contains("start: expected a time such as 2026-01-05T19:30:00Z, found \"yesterday\" at line 1"),
        "{start}"
    );
    let many = Timeline::parse("nodes: [{name: a, count: 4000000000}]\nevents: []\n").unwrap_err();
    assert!(format!("{many:#}").contains("at most 10000, found 4000000000"), "{many:#}");
    assert!(Timeline::parse("nodes: []\nevents: []\n").is_err() && Timeline::parse("- 1").is_err());
}

#[test]
fn times_are_written_as_they_are_read() {
    for (text, written) in [("0s", "0h00m00s"), ("90s", "0h01m30s"), ("36h10m", "36h10m00s"), ("1h2m3s", "1h02m03s")] {
        let offset = Offset::try_from(text.to_owned()).unwrap();
        assert_eq!(offset.to_string(), written);
        assert_eq!(Offset::try_from(written.to_owned()), Ok(offset));
    }
}
