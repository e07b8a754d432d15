//! The bundles of this node, read from its folder.

use std::io::ErrorKind;

use anyhow::{Context, bail};
use serde_json::Value;

use super::print;
use crate::args::EvidenceArgs;
use nrh_api::local::Folder;
use nrh_core::text::bounded;
use nrh_terminal::OutputFormat;

/// Prints the bundles of this node, one in memory at a time: memory in the probe's pod is scarce.
pub(super) fn local(out: &mut impl FnMut(&str) -> anyhow::Result<()>, args: &EvidenceArgs) -> anyhow::Result<()> {
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
    if names.is_empty() && args.print.output == OutputFormat::Table {
        match &args.fault {
            Some(fault) => bail!("none of the {all} bundles in {shown} is of {:?}", bounded(fault, 120)),
            None => bail!("no bundle is in {shown}: nothing was confirmed since this node booted, or no probe has run"),
        }
    }
    let read = |name: &String| -> anyhow::Result<Value> {
        let text = folder.read(name).with_context(|| format!("cannot read bundle {name}"))?;
        serde_json::from_slice(&text).with_context(|| format!("bundle {name} is not JSON"))
    };
    print(out, names.iter().map(read), args.print.output)
}

/// Whether a bundle of this name belongs to the requested fault.
fn is_of(name: &str, fault: &str) -> bool {
    let wanted = fault.to_ascii_lowercase();
    name.strip_prefix(&wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}
