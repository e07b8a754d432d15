//! `nrh evidence`: the evidence that a node keeps of its confirmed faults, read on the node or through its probe's pod.
//!
//! Data from a node may be hostile: its size is limited, and control characters that a terminal would obey are not printed.

mod fetch;
#[cfg(target_os = "linux")]
mod local;
mod text;

use anyhow::Context;
use serde_json::Value;

use crate::args::EvidenceArgs;
use nrh_api::evidence::Bundle;
use nrh_api::plain::plain;
use nrh_caller as caller;
use nrh_terminal::{OutputFormat, complain};

/// Longest printed text of a bundle.
const MAX_TEXT: usize = 4096;

/// Runs `nrh evidence`.
///
/// # Errors
/// A sentence that says why there is nothing to print, and what to do instead.
pub async fn run(args: EvidenceArgs) -> anyhow::Result<()> {
    let out = &mut nrh_terminal::print;
    match &args.node {
        Some(node) => {
            let client = caller::client(&args.cluster).await?;
            let bundles = fetch::fetch(client, node, args.fault.as_deref()).await?;
            print(out, bundles.into_iter(), args.print.output)?;
        }
        #[cfg(target_os = "linux")]
        None => local::local(out, &args)?,
        #[cfg(not(target_os = "linux"))]
        None => anyhow::bail!("--local reads the folder of a node: run it there, or name a node"),
    }
    Ok(())
}

/// Prints bundles one by one. One that cannot be read is reported on standard error, and the others follow; in the end that is an
/// error.
fn print(
    out: &mut impl FnMut(&str) -> anyhow::Result<()>,
    bundles: impl Iterator<Item = anyhow::Result<Value>>,
    format: OutputFormat,
) -> anyhow::Result<()> {
    let (mut between, mut failed) = ("[\n", 0);
    for bundle in bundles {
        let printed = bundle.map(|bundle| plain(bundle, MAX_TEXT)).and_then(|bundle| match format {
            OutputFormat::Json => Ok(format!("{between}{bundle}")),
            OutputFormat::Yaml => Ok(format!("---\n{}", nrh_terminal::yaml(&bundle)?)),
            OutputFormat::Table => {
                let bundle =
                    serde_json::from_value::<Bundle>(bundle).context("a bundle of another form: use -o json")?;
                Ok(text::text(&bundle))
            }
        });
        match printed {
            Ok(printed) => {
                out(&printed)?;
                between = ",\n";
            }
            Err(error) => {
                failed += 1;
                complain(&format!("{error:#}"));
            }
        }
    }
    anyhow::ensure!(failed == 0 || between != "[\n", "none of the {failed} bundle(s) can be read");
    if format == OutputFormat::Json {
        out(if between == "[\n" { "[]\n" } else { "\n]\n" })?;
    }
    anyhow::ensure!(failed == 0, "{failed} bundle(s) could not be read; the others are printed");
    Ok(())
}

#[cfg(test)]
mod tests;
