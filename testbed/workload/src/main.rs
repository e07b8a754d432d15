//! What runs inside the test bed's pods, and the CNI plugin that can be told to hang.
//!
//! One static binary with several personalities, so that an image needs one file and nothing else:
//!
//! | call | does |
//! |---|---|
//! | `pause` | PID 1 of a sandbox: reaps, ends on SIGTERM |
//! | `work [--ignore-term]` | a workload: runs until SIGTERM (or SIGKILL only) |
//! | `fail-while PATH` | exits 1 after a second while `PATH` exists, else works |
//! | `chatter LINES` | prints that many lines a second until SIGTERM |
//! | `reach` | exits 0 when the API server's port answers |
//! | named `runc` | `create` never comes back while `/run/nrh-hang-runc` is there, else it is `/run/nrh-real/runc` |
//! | named `kubelet` or `containerd-shim-runc-v2` | works, whatever its arguments: a forgery |
//! | named `containerd` | starts the program that its arguments name, and works: a forgery |
//! | named `nrh-gate`, or with `CNI_COMMAND` set | a CNI plugin in front of another one |

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod gate;
mod process;

use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage: pause | work [--ignore-term] | fail-while PATH | chatter LINES | reach";

fn main() -> ExitCode {
    let mut arguments = std::env::args();
    let own_name = arguments.next().unwrap_or_default();
    let arguments: Vec<String> = arguments.collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();

    let is_named = |name: &str| Path::new(&own_name).file_name().is_some_and(|own| own == name);
    if is_named("nrh-gate") {
        return gate::main();
    }
    let done = match arguments.as_slice() {
        arguments if is_named("runc") => process::runc(arguments),
        _ if is_named("kubelet") || is_named("containerd-shim-runc-v2") => process::work(process::OnTerm::Exit),
        [program, rest @ ..] if is_named("containerd") => process::start(program, rest),
        ["pause"] => process::pause(),
        ["work"] => process::work(process::OnTerm::Exit),
        ["work", "--ignore-term"] => process::work(process::OnTerm::Ignore),
        ["fail-while", path] => process::fail_while(Path::new(path)),
        ["chatter", lines] => process::chatter(lines),
        ["reach"] => process::reach(),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}", arguments.join(" "));
            ExitCode::FAILURE
        }
    }
}
