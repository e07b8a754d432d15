//! Logs: one line per change of decision, as JSON for machines or compact for people.

use clap::ValueEnum;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::terminal::Harmless;

/// Log format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Human,
    /// For machines: one JSON object a line.
    Json,
}

/// Starts logging to standard error.
pub fn start(format: LogFormat, filter: &str) {
    let filter = filter.parse().unwrap_or_else(|_| Targets::new().with_default(tracing::Level::INFO));
    let lines = tracing_subscriber::fmt::layer().with_writer(|| Harmless(std::io::stderr())).with_target(false);
    let lines = match format {
        LogFormat::Human => lines.compact().boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    tracing_subscriber::registry().with(lines.with_filter(filter)).init();
}
