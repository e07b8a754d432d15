//! The bed's own view of nodes and cluster: what the demo's judge believes.
