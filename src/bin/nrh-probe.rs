//! `nrh-probe`: the probe, a program of its own.
//!
//! It runs on every node, and most of what is resident of it is its code: with the controller and the other parts of
//! `nrh` in the same file it would be half as large again.

use std::process::ExitCode;

use clap::Parser;
use nrh::cli::ProbeCli;

fn main() -> ExitCode {
    let cli = ProbeCli::parse();
    match nrh::process::run(&cli.log, nrh::process::SERVICE, nrh::node::run::run(cli.probe)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            nrh::terminal::complain(&format!("Error: {error:?}"));
            ExitCode::FAILURE
        }
    }
}
