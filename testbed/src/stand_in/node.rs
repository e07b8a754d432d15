//! A node of stand-ins: namespaces of its own like a real one's, without what only root of the machine could give it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::settings::{self, Image, Settings};
use crate::images::WORK_IMAGE;
use crate::node::{Node, Parts, Place};
use crate::{network, stand_in};

/// Files of the machine's `/etc` that programs want to find.
const ETC: [&str; 5] = ["passwd", "group", "hosts", "nsswitch.conf", "ld.so.cache"];

impl Node {
    /// Name of the node of stand-ins with this number.
    pub(crate) fn stand_in_name(number: u8) -> String {
        format!("fake-{number}")
    }

    /// Makes a node of stand-ins; nothing runs in it yet.
    pub(crate) fn create_stand_in(parts: &Parts<'_>) -> Result<Self> {
        let name = Self::stand_in_name(parts.number);
        let dir = parts.dir.join(&name);
        for folder in ["run", "var-lib", "var-log", "etc"] {
            fs::create_dir_all(dir.join(folder))?;
        }
        for file in ETC {
            // Not every machine has them all.
            let _ = fs::copy(Path::new("/etc").join(file), dir.join("etc").join(file));
        }
        let mut realm = parts.outer.nest("", &[], &dir.join("init.log"))?;
        stand_in::install(parts.testbed, &dir.join("bin")).context("the stand-ins")?;
        realm.path.insert(0, dir.join("bin"));
        let node = Self { stand_in: true, ..parts.node(name, Place::Realm(realm), dir) };
        let subnet = network::pod_subnet(parts.number);
        let folder = node.dir.display().to_string();
        node.script(MOUNTS, &[&folder, &node.name, &subnet]).context("mounts of a node")?;
        node.write_kubelet_files(parts)?;
        fs::create_dir_all(node.root_path(settings::PATH).parent().context("a file has a folder")?)?;
        let settings = Settings {
            addresses: format!("{}.", subnet.trim_end_matches(".0/24")),
            pause: Image { args: vec!["pause".into()], ..Image::program(parts.workload) },
            images: [(WORK_IMAGE.to_owned(), Image { args: vec!["work".into()], ..Image::program(parts.workload) })]
                .into(),
        };
        settings.write(&node.root_path(settings::PATH))?;
        Ok(node)
    }

    /// Lets something stand in for an image.
    pub(crate) fn set_image(&self, reference: &str, image: Image) -> Result<()> {
        let path = self.root_path(settings::PATH);
        let mut settings = Settings::read(&path)?;
        settings.images.insert(reference.to_owned(), image);
        settings.write(&path)
    }
}

/// Folders of its own at the usual paths. Pods have addresses on the loopback device, which all nodes of a bed share.
const MOUNTS: &str = r#"
dir=$1; hostname "$2"
ip route replace local "$3" dev lo
mount --bind "$dir/etc" /etc
mount --bind "$dir/run" /run
mount --bind "$dir/var-log" /var/log
mount --bind "$dir/var-lib" /var/lib
mount --make-rshared /
mkdir -p /run/lock /run/containerd /var/lib/kubelet
echo "$2" >/etc/hostname
"#;
