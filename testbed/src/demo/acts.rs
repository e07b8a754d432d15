//! The five incidents.

mod back_off;
mod hung_container;
mod leaked_shim;
mod network_plugin;
mod orphan;

pub(super) use back_off::BackOff;
pub(super) use hung_container::HungContainer;
pub(super) use leaked_shim::LeakedShim;
pub(super) use network_plugin::NetworkPlugin;
pub(super) use orphan::Orphan;
