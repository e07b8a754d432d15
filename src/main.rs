//! Node Runtime Health.
fn main() {}
