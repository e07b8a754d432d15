//! Rules that the repository keeps: its sources, definitions, manifests, documents and scenarios.

mod architecture;
mod circles;
mod contributing;
mod crds;
mod documents;
mod manifests;
mod page;
mod pages;
mod scenarios;
mod words;
