//! Node Runtime Health.
