//! `nrh evidence`: what a node keeps of its confirmed faults, from the node itself or out of its probe's pod.
//!
//! What comes from a node is data, and may be hostile: its size has a ceiling, and nothing of it that a terminal would
//! obey is printed.

mod fetch;
mod text;

use std::io::{ErrorKind, Write};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::api::plain::plain;
use crate::caller;
use crate::cli::EvidenceArgs;
use crate::core::text::bounded;
use crate::node::evidence::{Bundle, Folder};
use crate::terminal::{self, complain};

/// Longest text of a bundle that is printed.
const MAX_TEXT: usize = 4096;

/// Runs `nrh evidence`.
///
/// # Errors
/// A sentence that says why there is nothing to print, and what to do instead.
pub async fn run(args: EvidenceArgs) -> anyhow::Result<()> {
    let out = &mut terminal::out();
    match &args.node {
        Some(node) => {
            let client = caller::client(&args.cluster).await?;
            let bundles = fetch::fetch(client, node, args.fault.as_deref()).await?;
            print(out, bundles.into_iter().map(Ok), args.json)?;
        }
        None => local(out, &args)?,
    }
    Ok(())
}

/// The bundles of this node, one in memory at a time: in the probe's pod there is not much of that.
fn local(out: &mut impl Write, args: &EvidenceArgs) -> anyhow::Result<()> {
    let folder = Folder::below(&args.state_dir);
    let shown = folder.path().display();
    let mut names = folder.names().map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => anyhow::anyhow!("may not open {shown}: only root may read it"),
        _ => anyhow::Error::new(error).context(format!("cannot read {shown}")),
    })?;
    let all = names.len();
    if let Some(fault) = &args.fault {
        names.retain(|name| is_of(name, fault));
    }
    if names.is_empty() && !args.json {
        match &args.fault {
            Some(fault) => bail!("none of the {all} bundles in {shown} is of {:?}", bounded(fault, 120)),
            None => bail!("no bundle is in {shown}: nothing was confirmed since this node booted, or no probe has run"),
        }
    }
    let read = |name: &String| -> anyhow::Result<Value> {
        let text = folder.read(name).with_context(|| format!("cannot read bundle {name}"))?;
        serde_json::from_slice(&text).with_context(|| format!("bundle {name} is not JSON"))
    };
    print(out, names.iter().map(read), args.json)
}

/// Whether a bundle of this name is one of what was asked for.
fn is_of(name: &str, fault: &str) -> bool {
    let wanted = fault.to_ascii_lowercase();
    name.strip_prefix(&wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// Prints bundles one by one; one that cannot be read is told on standard error, and the others follow.
fn print(out: &mut impl Write, bundles: impl Iterator<Item = anyhow::Result<Value>>, json: bool) -> anyhow::Result<()> {
    let mut between = "[\n";
    for bundle in bundles {
        let printed = bundle.map(|bundle| plain(bundle, MAX_TEXT)).and_then(|bundle| {
            if json {
                return Ok(format!("{between}{bundle}"));
            }
            Ok(text::text(&serde_json::from_value::<Bundle>(bundle).context("a bundle of another form: use --json")?))
        });
        match printed {
            Ok(printed) => {
                out.write_all(printed.as_bytes())?;
                between = ",\n";
            }
            Err(error) => complain(&format!("{error:#}")),
        }
    }
    if json {
        out.write_all(if between == "[\n" { b"[]\n" } else { b"\n]\n" })?;
    }
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests;
