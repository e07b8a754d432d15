//! The form in which benchmarks speak: a ratio against a baseline of the same run, on the screen and as JSON.

use std::fmt;
use std::fs;
use std::path::Path;

use serde::Serialize;

/// One measured value.
#[derive(Debug, Serialize)]
pub struct Line {
    name: String,
    /// What was measured.
    pub value: f64,
    unit: &'static str,
    baseline: f64,
    ratio: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'static str>,
}

impl Line {
    /// A value and what it is compared with; both in `unit`.
    pub fn new(name: impl Into<String>, value: f64, unit: &'static str, baseline: f64) -> Self {
        let ratio = if baseline == 0.0 { 0.0 } else { value / baseline };
        Self { name: name.into(), value, unit, baseline, ratio, target: None }
    }
}

#[allow(dead_code, reason = "each benchmark is a program of its own")]
impl Line {
    /// What the value should be, for people to read; nothing fails where it is not.
    pub fn target(self, target: &'static str) -> Self {
        Self { target: Some(target).filter(|target| !target.is_empty()), ..self }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<76} {:>12.2} {:>12.2} {:>8.2}  {}", self.name, self.value, self.baseline, self.ratio, self.unit)?;
        self.target.map_or(Ok(()), |target| write!(f, "  (target {target})"))
    }
}

/// Prints the lines and writes `target/bench/NAME.json`.
pub fn write(name: &str, lines: &[Line]) -> std::io::Result<()> {
    println!("{:<76} {:>12} {:>12} {:>8}", name, "value", "baseline", "ratio");
    for line in lines {
        println!("{line}");
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench");
    fs::create_dir_all(&folder)?;
    let json = serde_json::to_string_pretty(lines).map_err(std::io::Error::other)?;
    fs::write(folder.join(format!("{name}.json")), json)
}
