//! What a process costs, read from outside of it.

#![allow(dead_code, reason = "each benchmark is a program of its own")]

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nrh_testbed::{Bed, Node, node_config, view};
use rustix::process::{Pid, Signal, kill_process};

/// The process of a program.
pub fn pid(node: &Node, comm: &str) -> Result<i32> {
    let found = view::processes(node.init_pid())?.into_iter().find(|process| process.comm == comm);
    Ok(found.with_context(|| format!("no {comm} on {}", node.name))?.host_pid)
}

/// CPU time in milliseconds, in steps of 10.
pub fn cpu(pid: i32) -> Result<u64> {
    cpu_in(&fs::read_to_string(format!("/proc/{pid}/stat"))?)
}

/// The same of the bed's own process of that name, such as its API server.
pub fn cpu_of(bed: &Bed, comm: &str) -> Result<u64> {
    let script = r#"cat "$(dirname "$(grep -lx "$1" /proc/[0-9]*/comm 2>/dev/null | head -n 1)")/stat""#;
    cpu_in(&bed.realm().script(script, &[comm]).with_context(|| format!("CPU time of {comm}"))?)
}

/// The same of the calling thread.
pub fn cpu_of_thread() -> Result<u64> {
    cpu_in(&fs::read_to_string("/proc/thread-self/stat")?)
}

fn cpu_in(stat: &str) -> Result<u64> {
    let (_, rest) = stat.rsplit_once(')').context("a line of /proc/PID/stat")?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let mut next = || fields.next().and_then(|field| field.parse::<u64>().ok()).context("user and system time");
    Ok((next()? + next()?) * 10)
}

/// A line of `/proc/PID/status` that is an amount of memory, in MiB.
pub fn memory(pid: i32, field: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .context("a line of /proc/PID/status")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok((kib / 102.4).round() / 10.0)
}

/// System calls of all threads of some processes, by name, side by side within `window`.
pub fn system_calls<const N: usize>(pids: [i32; N], window: Duration) -> Result<[BTreeMap<String, u64>; N]> {
    let traces = pids.map(|pid| {
        let mut strace = Command::new("strace");
        strace.args(["--follow-forks", "--summary-only", "--attach", &pid.to_string()]);
        strace.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().context("start strace")
    });
    std::thread::sleep(window);
    let mut counts = Vec::with_capacity(N);
    for trace in traces {
        let trace = trace?;
        kill_process(Pid::from_child(&trace), Signal::INT)?;
        counts.push(summary(&String::from_utf8_lossy(&trace.wait_with_output()?.stderr))?);
    }
    counts.try_into().map_err(|_| anyhow::anyhow!("a trace per process"))
}

/// Reads the table that strace ends with: time, seconds, each, calls, (errors,) name.
fn summary(text: &str) -> Result<BTreeMap<String, u64>> {
    let rows = text.lines().skip_while(|line| !line.starts_with("---")).skip(1).take_while(|l| !l.starts_with("---"));
    let counts: BTreeMap<String, u64> = rows
        .filter_map(|row| {
            let words: Vec<&str> = row.split_whitespace().collect();
            Some(((*words.last()?).to_owned(), words.get(3)?.parse().ok()?))
        })
        .collect();
    ensure!(!counts.is_empty(), "strace gave no table: {text}");
    Ok(counts)
}

/// Requests that containerd was sent since its start, by service and method, as it counts them itself.
pub fn runtime_calls(bed: &Bed, node: &Node) -> Result<BTreeMap<String, u64>> {
    let ask = format!(
        "exec 3<>/dev/tcp/{}/{}; printf 'GET /v1/metrics HTTP/1.0\\r\\n\\r\\n' >&3; timeout 10 cat <&3",
        node.ip,
        node_config::CONTAINERD_METRICS
    );
    let output = bed.command("bash").args(["-c", &ask]).output().context("ask containerd for its metrics")?;
    let text = String::from_utf8(output.stdout).context("containerd's metrics")?;
    let counts: BTreeMap<String, u64> = text.lines().filter_map(started).collect();
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(!counts.is_empty(), "containerd has counted no requests: {error}");
    Ok(counts)
}

/// `grpc_server_started_total{grpc_method="M",grpc_service="S",…} 3`
fn started(line: &str) -> Option<(String, u64)> {
    let rest = line.strip_prefix("grpc_server_started_total{")?;
    let label = |name: &str| rest.split_once(&format!("{name}=\""))?.1.split('"').next();
    let count: f64 = rest.rsplit_once(' ')?.1.parse().ok()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
    Some((format!("{}/{}", label("grpc_service")?, label("grpc_method")?), count as u64))
}

/// How much more the later counts are, over the names that `of` takes.
pub fn more(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>, of: &str) -> u64 {
    let sum = |counts: &BTreeMap<String, u64>| -> u64 {
        counts.iter().filter(|(name, _)| name.contains(of)).map(|(_, count)| count).sum()
    };
    sum(after) - sum(before)
}
