//! A node that is a whole machine: a stock Debian under qemu with its own kernel, systemd, clock, disk and boot id.
//!
//! ```text
//! bed's network ── tap ── machine: systemd ─┬─ bed.service         name and address, at each boot
//!   └─ ssh, one connection for all commands ├─ containerd.service
//!      and for the runtime's socket         └─ kubelet.service
//! ```
//! qemu and ssh live in the bed's realm and end with it. Without KVM the processor is emulated: slower, and as real.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::network::{self, CONTROL_PLANE_IP};
use crate::process::{Identity, wait_until};
use crate::realm::{Realm, output};
use crate::wait::SOON;

mod accelerator;
mod files;
mod image;
mod node;
mod runtime;

use accelerator::Accelerator;
use files::Files;
pub use image::Debian;
use image::Image;
pub(crate) use node::Model;

/// The test bed's own program on a machine.
pub(crate) const TESTBED: &str = "/usr/local/bin/testbed";

/// A line for each boot of a machine, on it.
pub const BOOTS: &str = "/var/log/boots";
/// The longest that a command on a machine takes; an image takes half a minute.
const COMMAND: Duration = Duration::from_mins(5);
/// How long qemu may take to end.
const POWER: Duration = Duration::from_secs(20);
/// The longest path of a socket is 107 bytes; ssh adds 17 while it makes one.
const LONGEST_PATH: usize = 90;

/// A running machine.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// In whose network it is, and with which it ends.
    outer: Realm,
    /// qemu.
    pub(crate) process: Identity,
    /// How ssh reaches it, and the socket of the one connection.
    ssh: PathBuf,
    connection: PathBuf,
    /// Its runtime's socket, on this side.
    pub(crate) runtime: PathBuf,
}

/// What a machine is made of.
#[derive(Debug)]
struct Hardware<'a> {
    outer: &'a Realm,
    image: &'a Image,
    accelerator: Accelerator,
    number: u8,
    ip: Ipv4Addr,
    /// Folder of the node, in the bed's.
    dir: &'a Path,
    /// What makes it a node of its bed.
    files: &'a Files,
    /// For the kernel, beside what all get.
    kernel: &'a str,
    /// The runtime's socket on the machine.
    runtime: &'a str,
}

impl Machine {
    /// Boots it and waits until it takes commands.
    fn boot(hardware: &Hardware<'_>) -> Result<Self> {
        let Hardware { outer, image, number, ip, dir, .. } = *hardware;
        let tap = tap(number);
        outer.script(r#"ip tuntap add dev "$1" mode tap"#, &[&tap]).context("a tap device")?;
        plug(outer, number, ip)?;
        let disk = dir.join("root.img");
        output(Command::new("cp").args(["--sparse=always", "--reflink=auto"]).arg(image.disk()).arg(&disk))?;
        hardware.files.finish(&disk)?;
        let logs = dir.join("var-log");
        let process = outer.daemon(&logs.join("qemu.log"), &qemu(hardware, &tap, &disk, &logs))?;
        // Beside the folders of nodes: paths of sockets have to be short.
        let beside = |kind: &str| dir.with_file_name(format!("{number}.{kind}"));
        let (ssh, connection, runtime) = (dir.join("ssh"), beside("ssh"), beside("cri"));
        let machine = Self { outer: outer.clone(), process, ssh, connection, runtime };
        machine.connect(ip, &image.key(), hardware.runtime, &logs)?;
        machine.await_boot(&logs)?;
        Ok(machine)
    }

    fn await_boot(&self, logs: &Path) -> Result<()> {
        // Only by the one connection: each further attempt would make a slow machine slower.
        let answers =
            || self.connection.exists() && self.command("true").output().is_ok_and(|result| result.status.success());
        let process = self.process;
        let console = logs.join("console.log");
        let boots = wait_until(SOON, || answers() || !process.alive()) && process.alive();
        ensure!(boots, "the machine does not boot, see {}", console.display());
        Ok(())
    }

    /// Takes its power away and gives it back: what it has not written to its disk is lost. Waits until it takes commands.
    pub(crate) fn cut_power(&mut self, logs: &Path) -> Result<()> {
        let words = fs::read_to_string(format!("/proc/{}/cmdline", self.process.pid))?;
        let words: Vec<String> = words.split_terminator('\0').map(str::to_owned).collect();
        self.process.signal(Signal::KILL)?;
        ensure!(self.process.wait_gone(POWER), "qemu ({}) does not end", self.process.pid);
        self.process = self.outer.daemon(&logs.join("qemu.log"), &words)?;
        self.await_boot(logs)
    }

    /// Stops qemu, or lets it go on.
    pub(crate) fn set_paused(&self, paused: bool) -> Result<()> {
        let signal = if paused { Signal::STOP } else { Signal::CONT };
        ensure!(self.process.signal(signal)?, "qemu ({}) has ended", self.process.pid);
        Ok(())
    }

    /// Takes it off the network, or puts it back.
    pub(crate) fn set_plugged(&self, number: u8, ip: Ipv4Addr, plugged: bool) -> Result<()> {
        if plugged {
            return plug(&self.outer, number, ip);
        }
        self.outer.script(r#"ip link set "$1" down"#, &[&tap(number)]).map(drop)
    }

    /// Keeps one connection for all commands and for the runtime's socket; it is made anew after each boot.
    fn connect(&self, ip: Ipv4Addr, key: &Path, runtime: &str, logs: &Path) -> Result<()> {
        let path = self.connection.display().to_string();
        ensure!(path.len() <= LONGEST_PATH, "{path} is too long for a socket: set NRH_TESTBED_DIR to a short path");
        let config = format!(
            "Host machine\n HostName {ip}\n User root\n IdentityFile {}\n IdentitiesOnly yes\n \
             StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n LogLevel ERROR\n ControlPath {path}\n \
             ConnectTimeout 30\n ServerAliveInterval 3\n ServerAliveCountMax 5\n StreamLocalBindUnlink yes\n",
            key.display()
        );
        fs::write(&self.ssh, config)?;
        let script =
            r#"while :; do rm -f "$2"; ssh -F "$1" -M -N -L "$3:$4" machine </dev/null || true; sleep 1; done"#;
        let ssh = self.ssh.display().to_string();
        let argv = ["sh", "-c", script, "sh", &ssh, &path, &self.runtime.display().to_string(), runtime];
        self.outer.daemon(&logs.join("ssh.log"), &argv.map(str::to_owned)).map(drop)
    }

    /// A command on the machine, with a clean environment. Its end here, after [`COMMAND`] at most, is not its end there.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = self.outer.network_command("bash");
        // The machine's shell takes the words apart again.
        let script =
            r#"printf -v line '%q ' "${@:3}"; exec timeout --foreground "$1" ssh -F "$2" machine "exec $line""#;
        command.args(["-c", script, "bash", &COMMAND.as_secs().to_string()]);
        command.arg(&self.ssh).args(["env", "-i", PATH, "HOME=/root", "LANG=C.UTF-8"]).arg(program);
        command
    }
}

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Name of a machine's network device on this side.
fn tap(number: u8) -> String {
    format!("machine{number}")
}

/// Sets that device up. Its routes end whenever it is down.
fn plug(outer: &Realm, number: u8, ip: Ipv4Addr) -> Result<()> {
    let (ip, subnet, bed) = (ip.to_string(), network::pod_subnet(number), CONTROL_PLANE_IP.to_string());
    outer.script(PLUG, &[&tap(number), &ip, &subnet, &bed]).map(drop)
}

/// Device, address of the machine, subnet of its pods, address of the bed.
const PLUG: &str = r#"
ip link set "$1" up
ip route add "$2/32" dev "$1" src "$4"
ip route add "$3" via "$2" dev "$1" src "$4" onlink"#;

fn qemu(hardware: &Hardware<'_>, tap: &str, disk: &Path, logs: &Path) -> Vec<String> {
    let Hardware { image, accelerator, .. } = *hardware;
    let drive = format!("file={},format=raw,if=virtio,cache=unsafe", disk.display());
    let kernel = format!(
        "root=/dev/vda rw console=ttyS0 net.ifnames=0 quiet edd=off mitigations=off panic=10 {}",
        hardware.kernel
    );
    // An address that stays: a number of the bed's own range.
    let mac = format!("52:54:00:99:00:{:02x}", hardware.number);
    let machine =
        ["qemu-system-x86_64", "-nodefaults", "-display", "none", "-M", "q35", "-accel", accelerator.argument()];
    let processor = ["-cpu", "max", "-smp", accelerator.processors(), "-m", "2048"];
    let (vmlinuz, initrd) = (image.kernel().display().to_string(), image.initrd().display().to_string());
    let boot = ["-kernel", &vmlinuz, "-initrd", &initrd, "-append", kernel.trim_end(), "-drive", &drive];
    let network = format!("tap,id=net,ifname={tap},script=no,downscript=no");
    let card = format!("virtio-net-pci,netdev=net,mac={mac},romfile=");
    let console = format!("file,id=console,append=on,path={}", logs.join("console.log").display());
    let devices = ["-netdev", &network, "-device", &card, "-device", "virtio-rng-pci", "-chardev", &console];
    let words = [&machine[..], &processor, &boot, &devices, &["-serial", "chardev:console"]].concat();
    words.into_iter().map(str::to_owned).collect()
}
