//! Processes that cannot go, and what a probe knows of those that it has not seen before.

use std::cell::Cell;

use super::*;

/// How a process is shown whose first thread has ended. Of the others, `threads` names id, state and how often each was switched
/// away.
fn without_first_thread(root: &Proc, entry: &Entry<'_>, threads: &[(i32, char, u64)]) {
    let folder = root.file(&entry.pid.to_string());
    let _ = fs::remove_dir_all(&folder);
    // With the first thread.
    let count = |folder: &Path| set_field(&folder.join("stat"), 20, &(threads.len() + 1).to_string());
    Entry { state: 'Z', args: "", ..*entry }.write(&folder);
    fs::remove_file(folder.join("exe")).unwrap();
    for name in ["cmdline", "wchan"] {
        fs::write(folder.join(name), "").unwrap();
    }
    count(&folder);
    let own = folder.join(format!("task/{}", entry.pid));
    Entry { state: 'Z', ..*entry }.write(&own);
    count(&own);
    for (thread, state, switches) in threads {
        let own = folder.join(format!("task/{thread}"));
        Entry { pid: *thread, state: *state, ..*entry }.write(&own);
        count(&own);
        let status = fs::read_to_string(own.join("status")).unwrap();
        let counts = format!("voluntary_ctxt_switches:\t{switches}\nnonvoluntary_ctxt_switches:\t0\n");
        fs::write(own.join("status"), status + &counts).unwrap();
    }
}

#[test]
fn a_process_whose_first_thread_has_ended_is_not_gone_while_another_one_waits() {
    let root = Proc::new().with(&SHIM);
    let mut scanner = root.scanner();
    assert_eq!(scanner.check(false, None).unwrap().processes.len(), 1);
    let mut waited = |uptime: u32, threads: &[(i32, char, u64)]| {
        without_first_thread(&root, &SHIM, threads);
        root.write("uptime", format!("{uptime}.00 1.0\n"));
        let seen = scanner.check(false, None).unwrap().processes;
        let [seen] = seen.as_slice() else { panic!("{seen:?}") };
        assert_eq!(seen.role, ProcessRole::Shim { id: "abc".to_owned(), living_children: 0 });
        (seen.state, seen.waited.map(|waited| waited.as_secs()))
    };
    let stuck = (78, 'D', 7);
    assert_eq!(waited(1010, &[(77, 'S', 3), stuck, (79, 'T', 3)]), ('D', Some(0)));
    assert_eq!(waited(1080, &[(77, 'S', 4), stuck, (79, 'T', 3)]), ('D', Some(70)));
    assert_eq!(waited(1090, &[(78, 'D', 8)]), ('D', Some(0)), "it has run");
    assert_eq!(waited(1095, &[(79, 'D', 8)]), ('D', Some(0)), "another thread");
    assert_eq!(waited(1100, &[(77, 'S', 3), (79, 'T', 3)]), ('T', None));
    assert_eq!(waited(1110, &[(77, 'S', 3)]), ('S', None));
    // The next probe has proven nothing, and the arguments of what waits cannot be read.
    let anew = || root.scanner().check(false, None).unwrap();
    assert_eq!(anew().processes.len(), 1);
    without_first_thread(&root, &SHIM, &[(77, 'S', 3), stuck]);
    let [seen] = anew().unproven.try_into().unwrap();
    assert_eq!((seen.pid, seen.state, seen.possible_role), (50, 'D', PossibleRole::Shim));
    assert_eq!(seen.waited, Some(Duration::ZERO));
    // It is judged by its living threads where it looks as if it were the node's.
    without_first_thread(&root, &SHIM, &[stuck]);
    root.write("50/task/78/cgroup", "0::/kubepods/pod1/x\n");
    assert_eq!((anew().processes.len(), anew().unproven.len()), (0, 0));
}

#[test]
fn a_process_of_which_no_thread_lives_is_gone() {
    let root = Proc::new().with(&SHIM);
    for threads in [&[][..], &[(77, 'Z', 1), (78, 'X', 1)]] {
        let mut scanner = root.scanner();
        SHIM.write(&root.file("50"));
        assert_eq!(scanner.check(false, None).unwrap().processes.len(), 1);
        without_first_thread(&root, &SHIM, threads);
        for scanner in [&mut scanner, &mut root.scanner()] {
            let table = scanner.check(false, None).unwrap();
            assert_eq!((table.processes, table.unproven), (Vec::new(), Vec::new()), "{threads:?}");
        }
    }
}

#[test]
fn of_too_many_threads_nothing_is_concluded() {
    let root = Proc::new().with(&SHIM);
    let mut scanner = root.scanner();
    scanner.check(false, None).unwrap();
    let threads: Vec<_> = (100..700).map(|thread| (thread, 'Z', 1)).collect();
    without_first_thread(&root, &SHIM, &threads);
    assert_eq!(scanner.check(false, None).unwrap().processes.len(), 1);
}

/// What `CNI_ARGS` says is in the memory of the plugin.
#[test]
fn a_plugin_that_waits_uninterruptibly_stays_one_for_the_next_probe() {
    let plugin = Entry { command: b"ptp", exe: "/opt/cni/bin/ptp", args: "ptp", parent: 40, ..SHIM };
    let root = Proc::new().with(&CONTAINERD).with(&plugin);
    root.write("50/environ", "CNI_COMMAND=ADD\0CNI_CONTAINERID=s1\0");
    let mut scanner = root.scanner();
    let sandboxes = |table: &ProcessTable| {
        let of = |seen: &ProcessSeen| match &seen.role {
            ProcessRole::NetworkPlugin { sandbox_id, .. } => Some(sandbox_id.clone()),
            _ => None,
        };
        table.processes.iter().filter_map(of).collect::<Vec<_>>()
    };
    assert_eq!(sandboxes(&scanner.check(false, None).unwrap()), [Some("s1".to_owned())]);
    let root = root.with(&Entry { state: 'D', ..plugin });
    assert_eq!(sandboxes(&scanner.check(false, None).unwrap()), [Some("s1".to_owned())]);
    assert_eq!(sandboxes(&root.scanner().check(false, None).unwrap()), [None]);
    // Its caller has ended too.
    let root = root.with(&Entry { state: 'D', parent: 1, ..plugin });
    for scanner in [&mut scanner, &mut root.scanner()] {
        let table = scanner.check(false, None).unwrap();
        assert_eq!(sandboxes(&table), []);
        let [seen] = table.unproven.try_into().unwrap();
        assert_eq!((seen.pid, seen.possible_role), (50, PossibleRole::NetworkPlugin));
    }
}

#[test]
fn a_suspension_of_the_node_is_no_time_in_which_something_waited() {
    thread_local!(static SUSPENDED: Cell<u64> = const { Cell::new(0) });
    let root = Proc::new().with(&Entry { state: 'D', ..SHIM });
    let mut scanner = root.scanner();
    scanner.clock = AwakeClock::with(|| Duration::from_secs(SUSPENDED.get()));
    let status = fs::read_to_string(root.file("50/status")).unwrap();
    root.write("50/status", status + "voluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t0\n");
    let mut check = |uptime: u32, suspended: u64| {
        root.write("uptime", format!("{uptime}.00 1.0\n"));
        SUSPENDED.set(suspended);
        let [seen] = scanner.check(false, None).unwrap().unproven.try_into().unwrap();
        (seen.age.as_secs(), seen.waited.map(|waited| waited.as_secs()))
    };
    assert_eq!(check(1000, 0), (100, Some(0)));
    assert_eq!(check(1015, 0), (115, Some(15)));
    assert_eq!(check(1630, 600), (130, Some(30)));
}
