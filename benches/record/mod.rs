//! The form in which benchmarks speak: a ratio against a baseline of the same run, on the screen and as JSON.

use std::fs;
use std::path::Path;

use serde::Serialize;

/// One measured value.
#[derive(Debug, Serialize)]
pub struct Line {
    name: String,
    value: f64,
    unit: &'static str,
    baseline: f64,
    ratio: f64,
}

impl Line {
    /// A value and what it is compared with; both in `unit`.
    pub fn new(name: impl Into<String>, value: f64, unit: &'static str, baseline: f64) -> Self {
        Self { name: name.into(), value, unit, baseline, ratio: if baseline == 0.0 { 0.0 } else { value / baseline } }
    }
}

#[allow(dead_code, reason = "each benchmark is a program of its own")]
impl Line {
    /// What was measured.
    pub const fn value(&self) -> f64 {
        self.value
    }
}

/// Prints the lines and writes `target/bench/NAME.json`.
pub fn write(name: &str, lines: &[Line]) -> std::io::Result<()> {
    println!("{:<52} {:>12} {:>12} {:>8}", name, "value", "baseline", "ratio");
    for line in lines {
        println!("{:<52} {:>12.2} {:>12.2} {:>8.2}  {}", line.name, line.value, line.baseline, line.ratio, line.unit);
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench");
    fs::create_dir_all(&folder)?;
    let json = serde_json::to_string_pretty(lines).map_err(std::io::Error::other)?;
    fs::write(folder.join(format!("{name}.json")), json)
}
