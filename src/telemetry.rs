//! Logs: one line per change of decision, as JSON for machines or compact for people.

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// Form of the log lines.
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
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match format {
        LogFormat::Human => builder.compact().init(),
        LogFormat::Json => builder.json().init(),
    }
}
