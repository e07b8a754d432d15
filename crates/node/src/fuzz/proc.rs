//! `/proc` and control groups: the kernel's form, with names, arguments and environments that processes choose.

use std::path::{Component, Path};

use super::checks::{beginnings, is_bounded};
use crate::collect::host;
use crate::kmsg::Record;
use crate::proc::bounded::Bytes;
use crate::proc::role::{self, Proof};
use crate::proc::{Groups, age, clock, daemon, handle, locks as table, stat as line};
use nrh_core::text::is_full_id;

pub fn stat(data: &[u8]) -> bool {
    let Some(stat) = line::parse(data) else { return false };
    assert!(stat.state.is_ascii_alphabetic() && is_bounded(&stat.command, 64), "{stat:?}");
    let close = data.iter().rposition(|byte| *byte == b')').unwrap_or_default();
    let fields = String::from_utf8_lossy(data.get(close + 1..).unwrap_or_default()).into_owned();
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).copied().unwrap_or_default();
    assert_eq!(field(3), stat.state.to_string());
    assert_eq!((field(4).parse(), field(22).parse()), (Ok(stat.parent), Ok(stat.start_ticks)));
    for cut in beginnings(data).filter(|cut| cut.len() > close) {
        let cut_off = line::parse(cut);
        assert!(cut_off.is_none() || cut_off.as_ref() == Some(&stat), "cut at {}: {cut_off:?}", cut.len());
    }
    true
}

/// `status` and `limits`.
pub fn status(data: &[u8]) -> bool {
    let read = |data: &[u8]| {
        let text = String::from_utf8_lossy(data);
        let depth = handle::parse_depth(&text).and_then(|depth| u64::try_from(depth).ok());
        let room = daemon::number_of(&text, "FDSize:");
        [depth, daemon::parse_switches(&text), room, daemon::parse_limit(&text, "Max open files")]
    };
    let whole = read(data);
    assert_ne!(whole[0], Some(0), "a process is in no namespace");
    for cut in beginnings(data) {
        for (cut_off, whole) in read(cut).into_iter().zip(whole) {
            assert!(cut_off.is_none() || cut_off == whole, "cut at {}: {cut_off:?}, not {whole:?}", cut.len());
        }
    }
    whole.iter().any(Option::is_some)
}

pub fn environ(data: &[u8]) -> bool {
    let read = |bytes: &[u8]| {
        let truncated = bytes.len() < data.len();
        let read = Bytes { bytes: bytes.to_vec(), truncated };
        ["CNI_COMMAND", "CNI_CONTAINERID", "CNI_ARGS"].map(|name| handle::variable(handle::whole_entries(&read), name))
    };
    let whole = read(data);
    assert!(whole.iter().flatten().all(|value| is_bounded(value, 4096)));
    for cut in beginnings(data) {
        for (cut_off, whole) in read(cut).iter().zip(&whole) {
            assert!(cut_off.is_none() || cut_off == whole, "cut at {}: {cut_off:?}, not {whole:?}", cut.len());
        }
    }
    let [command, _, args] = whole;
    let uid = args.as_deref().and_then(role::pod_uid);
    assert!(uid.is_none_or(|uid| !uid.is_empty() && !uid.contains(';')));
    let name = args.as_deref().and_then(role::pod_name);
    assert!(name.is_none_or(|name| is_bounded(&name, 507) && name.split('/').count() == 2));
    command.is_some()
}

/// Arguments, and the roles they prove.
pub fn cmdline(data: &[u8]) -> bool {
    let args: Vec<String> = handle::split(data).map(|arg| String::from_utf8_lossy(arg).into_owned()).collect();
    let mut joined = args.join("\0");
    if data.last() == Some(&0) {
        joined.push('\0');
    }
    assert_eq!(joined, String::from_utf8_lossy(data));
    let shim = role::shim(&args);
    if let Some(Proof::Shim { id, namespace, .. }) = &shim {
        assert!(!id.is_empty() && !namespace.is_empty());
        assert!(args.iter().skip(1).all(|arg| arg != "start" && arg != "delete"), "a call that ends by itself");
        for value in [id, namespace] {
            assert!(args.iter().skip(1).any(|arg| arg.ends_with(value.as_str())), "{value:?} is nowhere");
        }
    }
    let client = role::client(&args);
    if let Some(Proof::RuntimeClient { verb, container_id }) = &client {
        assert!(args.iter().skip(1).any(|arg| arg == verb));
        assert!(container_id.as_ref().is_none_or(|id| args.contains(id) && !id.starts_with('-')));
    }
    let monitor = role::monitor(&args);
    if let Some(Proof::Monitor { id, .. }) = &monitor {
        assert!(is_full_id(id) && args.iter().skip(1).any(|arg| arg.ends_with(id.as_str())));
    }
    shim.is_some() || client.is_some() || monitor.is_some()
}

/// `/proc/locks`, and the same lines in `fdinfo`.
pub fn locks(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    let whole = table::parse(&text);
    let waiters: usize = whole.iter().map(|lock| lock.waiters.len()).sum();
    assert!(whole.len() + waiters <= text.lines().count());
    assert!(whole.iter().flat_map(|lock| &lock.waiters).all(|pid| *pid > 0));
    let held: Vec<_> = handle::held(&text).collect();
    for cut in beginnings(data).map(String::from_utf8_lossy) {
        for (cut_off, whole) in table::parse(&cut).iter().zip(&whole) {
            assert_eq!((cut_off.kind, cut_off.file), (whole.kind, whole.file));
            assert!(whole.waiters.starts_with(&cut_off.waiters), "cut at {}", cut.len());
        }
        assert!(held.starts_with(&handle::held(&cut).collect::<Vec<_>>()), "cut at {}", cut.len());
    }
    !whole.is_empty() || !held.is_empty()
}

/// The groups of a process: folders below the usual mount, whatever stands there.
pub fn cgroup(data: &[u8]) -> bool {
    let groups = Groups(String::from_utf8_lossy(data).into_owned());
    let mut found = 0;
    for folder in ["pids", "freezer"].iter().flat_map(|controller| groups.folders(controller)) {
        assert!(folder.starts_with(Path::new("sys/fs/cgroup")), "{}", folder.display());
        assert!(folder.components().all(|part| matches!(part, Component::Normal(_))), "{}", folder.display());
        found += 1;
    }
    assert!(found <= 6, "{found} folders");
    found > 0
}

/// The small files of numbers: `uptime`, `loadavg`, `file-nr`, `pids.*`, and what says that a group is frozen.
pub fn host_numbers(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    let uptime = clock::parse_uptime(&text);
    if let Some(uptime) = uptime {
        assert!([0, 1, 12_345, u64::MAX].into_iter().all(|start| age(start, uptime) <= uptime));
    }
    let usages =
        [host::files_of(&text), host::usage(&text, "7").ok().flatten(), host::usage("7", &text).ok().flatten()];
    for usage in usages.into_iter().flatten() {
        assert!(usage.is_at_least(100) == (usage.used >= usage.limit), "{usage:?}");
    }
    let frozen = host::is_frozen(Some(&text), None) || host::is_frozen(None, Some(&text));
    assert!(!frozen || text.contains("FROZEN") || text.contains("FREEZING") || text.contains("frozen 1"));
    uptime.is_some() || host::threads_of(&text).is_some() || usages.iter().any(Option::is_some) || frozen
}

/// A read of the kernel's log: anybody on the node may have written what stands behind the head.
pub fn kernel_record(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    let records: Vec<Record<'_>> = text.lines().filter_map(Record::of).collect();
    for record in &records {
        assert!(!record.text.contains('\n') && text.contains(record.text), "{record:?}");
        assert!(record.facility <= u64::MAX >> 3, "{record:?}");
    }
    !records.is_empty()
}
