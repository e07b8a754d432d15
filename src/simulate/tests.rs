//! Timelines with policies as they are written: what reads these is not in the crate that plays.

mod files;
mod lacks;
mod record;
