//! A node that systemd runs, as it runs nearly every real one: it is the node's process 1, `containerd.service` and
//! `kubelet.service` are its units, and it answers on the node's system bus.
//!
//! It is the distribution's own program in a container's manner, with units of the bed's and none of the machine's:
//!
//! ```text
//! node's namespaces (tini) └─ pids and mounts once more: systemd ─┬─ dbus.service        /run/dbus/system_bus_socket
//!                                                                 ├─ containerd.service  shims fall to process 1
//!                                                                 └─ kubelet.service
//! ```
//! What it lacks: a journal (units print to [`Node::log`]), udev, logind. What an administrator does (a mask, a drop-in) is
//! in the node's own `/etc/systemd`.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    assets,
    node::{CONTAINERD_COMMAND, Node, Place, kubelet_command},
    packages,
    process::{Identity, wait_until},
    wait::SOON,
};

/// Where nodes have the system bus.
pub const BUS: &str = "/run/dbus/system_bus_socket";
/// The programs of a node that are units of it.
const PROGRAMS: [&str; 2] = ["containerd", "kubelet"];
/// Not in any folder where programs are searched, on most distributions.
const SYSTEMD: [&str; 2] = ["/usr/lib/systemd/systemd", "/lib/systemd/systemd"];

/// How a unit stands, in systemd's own words.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnitState {
    /// `loaded`, `masked`, `not-found`, …
    pub load: String,
    /// `active`, `inactive`, `failed`, `activating`, …
    pub active: String,
    /// `running`, `dead`, `auto-restart`, …
    pub sub: String,
    /// `enabled`, `disabled`, `masked`, …
    pub file: String,
    /// How it ended the last time: `success`, `signal`, `exit-code`, `start-limit-hit`, …
    pub result: String,
    /// How often systemd itself has started it again.
    pub restarts: u32,
}

impl Node {
    /// Whether systemd runs the node.
    pub const fn has_units(&self) -> bool {
        self.units
    }

    /// Starts a unit and waits until it is started.
    pub fn unit_start(&self, unit: &str) -> Result<()> {
        self.systemctl(&["start", unit]).map(drop)
    }

    /// Stops a unit and waits until it is stopped.
    pub fn unit_stop(&self, unit: &str) -> Result<()> {
        self.systemctl(&["stop", unit]).map(drop)
    }

    /// Writes a unit, or a drop-in (`kubelet.service.d/50-test.conf`), as an administrator does; a running one stays as it is.
    pub fn unit_write(&self, file: &str, text: &str) -> Result<()> {
        ensure!(self.units, "{} has no units", self.name);
        self.write(Path::new("/etc/systemd/system").join(file), text)?;
        self.systemctl(&["daemon-reload"]).map(drop)
    }

    /// How a unit stands.
    pub fn unit_state(&self, unit: &str) -> Result<UnitState> {
        let wanted = "LoadState,ActiveState,SubState,UnitFileState,Result,NRestarts";
        let text = self.systemctl(&["show", "--property", wanted, unit])?;
        let values: BTreeMap<_, _> = text.lines().filter_map(|line| line.split_once('=')).collect();
        // What a unit of its kind does not have is left out.
        let value = |name| values.get(name).copied().unwrap_or_default().to_owned();
        Ok(UnitState {
            load: value("LoadState"),
            active: value("ActiveState"),
            sub: value("SubState"),
            file: value("UnitFileState"),
            result: value("Result"),
            restarts: value("NRestarts").parse().unwrap_or_default(),
        })
    }

    /// The main process of a unit, if it runs.
    pub fn unit_process(&self, unit: &str) -> Option<Identity> {
        let pid = self.systemctl(&["show", "--property", "MainPID", "--value", unit]).ok()?.trim().parse().ok()?;
        self.identity(pid).ok().filter(|_| pid > 1)
    }

    /// Runs a program as a unit of its own, which prints to this file.
    pub(crate) fn unit_run(&self, name: &str, log: &Path, argv: &[String]) -> Result<Identity> {
        let unit = format!("{name}.service");
        let (name, output) = (format!("--unit={name}"), format!("StandardOutput=append:{}", log.display()));
        let options = ["--quiet", "--collect", &name, "-p", &output, "--"];
        let argv: Vec<_> = options.into_iter().chain(argv.iter().map(String::as_str)).collect();
        self.run("systemd-run", &argv)?;
        self.unit_process(&unit).with_context(|| format!("{unit} of {} ended at once", self.name))
    }

    /// Puts the stand-in for the start of kubelets ≤ 1.23 in front of the kubelet's unit, or takes it away.
    pub(crate) fn set_start_check(&self, wanted: bool) -> Result<()> {
        let check =
            if wanted { format!("ExecStartPre={} start-check\n", self.testbed.display()) } else { String::new() };
        let unit = self.unit_of("kubelet").with_context(|| format!("{} has no units", self.name))?;
        self.unit_write(&format!("{unit}.d/start-check.conf"), &format!("[Service]\n{check}"))
    }

    /// The unit of a program that the bed starts, on a node that has units.
    pub(crate) fn unit_of(&self, program: &str) -> Option<String> {
        let is_unit = self.is_machine() || self.units && PROGRAMS.contains(&program);
        is_unit.then(|| format!("{}.service", self.layout.unit(program)))
    }

    /// Runs `systemctl` on the node.
    pub fn systemctl(&self, args: &[&str]) -> Result<String> {
        ensure!(self.units, "{} has no units", self.name);
        self.run("systemctl", args)
    }

    /// Puts systemd in the place of the node's init process; from then on the node is what lives below it.
    pub(crate) fn boot(&mut self) -> Result<()> {
        let Some(systemd) = SYSTEMD.iter().find(|path| Path::new(path).is_file()) else {
            bail!("no systemd at {}", SYSTEMD.join(" or "));
        };
        self.write_units()?;
        let folder = self.dir.display().to_string();
        let log = self.dir.join("init.log");
        let realm = self.realm()?.nest_as("systemd", ENTER, &[&folder, SET_UP, systemd], &log);
        self.place = Place::Realm(realm.context("systemd of a node")?);
        self.units = true;
        let ping = ["call", "org.freedesktop.systemd1", "/", "org.freedesktop.DBus.Peer", "Ping"];
        ensure!(wait_until(SOON, || self.run("busctl", &ping).is_ok()), "systemd of {} does not answer", self.name);
        let units = PROGRAMS.map(|program| format!("{program}.service"));
        self.systemctl(&["enable", &units[0], &units[1]]).map(drop)
    }

    /// The units that come with the node, in the bed's folder: there is none of the machine's on it.
    fn write_units(&self) -> Result<()> {
        for folder in ["systemd/system", "units"] {
            fs::create_dir_all(self.dir.join(folder))?;
        }
        let bus = self.dir.join("bus.conf");
        fs::write(&bus, BUS_CONFIG.replace("{BUS}", BUS))?;
        let config = format!("--config-file={}", bus.display());
        let daemon = ["dbus-daemon", &config, "--address=systemd:", "--nofork", "--nopidfile"].map(str::to_owned);
        let containerd = CONTAINERD_COMMAND.map(str::to_owned);
        let target = |wants: &str| format!("[Unit]\nDefaultDependencies=no\n{wants}");
        let units = [
            ("sysinit.target", target("")),
            ("basic.target", target("")),
            ("multi-user.target", target("")),
            // What starts the runtime and the kubelet is the bed, each at its time.
            ("default.target", target("Wants=dbus.service\n")),
            ("dbus.socket", format!("[Unit]\nDefaultDependencies=no\n[Socket]\nListenStream={BUS}\n")),
            ("dbus.service", self.service("dbus", &daemon, DBUS)?),
            ("containerd.service", self.service("containerd", &containerd, CONTAINERD)?),
            ("kubelet.service", self.service("kubelet", &kubelet_command(&self.name, self.ip), KUBELET)?),
        ];
        units.iter().try_for_each(|(name, text)| {
            fs::write(self.dir.join("units").join(name), text).with_context(|| format!("unit {name}"))
        })
    }

    /// A service that prints to [`Node::log`] and finds the bed's programs.
    pub(crate) fn service(&self, name: &str, command: &[String], settings: &str) -> Result<String> {
        let (program, arguments) = command.split_first().context("no program")?;
        // systemd itself does not search the bed's folders.
        let realm = self.realm()?;
        let own = assets::find(&realm.path, program).ok();
        let program = own.or_else(|| packages::find(program)).with_context(|| format!("no {program}"))?;
        // Folders may have spaces, and it takes a percent sign for the start of a specifier.
        let quoted = |word: &str| format!("\"{}\"", word.replace('%', "%%"));
        let mut line = quoted(&program.display().to_string());
        for argument in arguments {
            line = format!("{line} {}", quoted(argument));
        }
        let path = quoted(&format!("PATH={}", realm.search_path()));
        Ok(format!(
            "{settings}\n[Service]\nEnvironment={path}\nExecStart={line}\nStandardOutput=append:/var/log/{name}.log\n"
        ))
    }
}

/// The system bus, as distributions have it: systemd listens and hands the socket on.
const DBUS: &str = "\
[Unit]
Description=D-Bus System Message Bus
DefaultDependencies=no
Requires=dbus.socket
After=dbus.socket
[Service]
Type=notify
NotifyAccess=main
";
/// As Debian and containerd's own packages ship it: shims survive its end.
pub(crate) const CONTAINERD: &str = "\
[Unit]
Description=containerd container runtime
After=dbus.socket
[Service]
Type=notify
Delegate=yes
KillMode=process
Restart=always
RestartSec=5
TasksMax=infinity
[Install]
WantedBy=multi-user.target
";
/// As kubeadm's packages ship it: it is started again for ever.
pub(crate) const KUBELET: &str = "\
[Unit]
Description=kubelet: The Kubernetes Node Agent
StartLimitIntervalSec=0
[Service]
Restart=always
RestartSec=10
[Install]
WantedBy=multi-user.target
";

/// Who may do what on the bus: the rules of the system bus of distributions, and systemd's own as its package brings them.
const BUS_CONFIG: &str = r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path={BUS}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <deny own="*"/>
    <deny send_type="method_call"/>
    <allow send_type="signal"/>
    <allow send_requested_reply="true" send_type="method_return"/>
    <allow send_requested_reply="true" send_type="error"/>
    <allow receive_type="method_call"/>
    <allow receive_type="method_return"/>
    <allow receive_type="error"/>
    <allow receive_type="signal"/>
    <allow send_destination="org.freedesktop.DBus" send_interface="org.freedesktop.DBus"/>
    <allow send_destination="org.freedesktop.DBus" send_interface="org.freedesktop.DBus.Introspectable"/>
    <allow send_destination="org.freedesktop.DBus" send_interface="org.freedesktop.DBus.Properties"/>
  </policy>
  <policy user="root">
    <allow send_destination="org.freedesktop.DBus" send_interface="org.freedesktop.DBus.Monitoring"/>
  </policy>
  <include>/usr/share/dbus-1/system.d/org.freedesktop.systemd1.conf</include>
</busconfig>
"#;

/// From the node into pids and mounts of systemd's own: folder of the node, the script that goes on there, systemd.
///
/// It starts in the node's topmost control group, which is the one that it takes for the machine's.
const ENTER: &str = r#"
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then procs=/sys/fs/cgroup/cgroup.procs; else procs="/sys/fs/cgroup/*/cgroup.procs"; fi
for p in $procs; do echo 0 >"$p"; done
exec unshare --mount --pid --fork --kill-child --mount-proc sh -ec "$2" sh "$1" "$3"
"#;

/// What systemd finds, and what it must not: it makes the file system around version 1's hierarchies read-only (the node
/// gets one of its own), mounts every hierarchy that is missing there (it cannot in one that is read-only already), raises
/// the kernel's limits of open files, and runs the generators and units of the machine.
const SET_UP: &str = r#"
dir=$1
if [ ! -e /sys/fs/cgroup/cgroup.controllers ]; then
  groups=/run/systemd-groups; mkdir "$groups"; mount -t tmpfs -o mode=755 nrh-groups "$groups"
  awk '$3 == "cgroup" || $3 == "cgroup2" { print $2 }' /proc/mounts | while read -r path; do
    mkdir -p "$groups/${path##*/}"; mount --bind "$path" "$groups/${path##*/}"
  done
  mount -o remount,ro "$groups"; mount --rbind "$groups" /sys/fs/cgroup; umount -R "$groups"; rmdir "$groups"
fi
for limit in nr_open file-max; do
  mount --bind "/proc/sys/fs/$limit" "/proc/sys/fs/$limit"; mount -o remount,bind,ro "/proc/sys/fs/$limit"
done
mkdir -p /etc/systemd; mount --bind "$dir/systemd" /etc/systemd
mount --bind "$dir/units" /usr/lib/systemd/system
mount --make-rshared /
exec env -i container=bed "PATH=$PATH" SYSTEMD_GENERATOR_PATH=/nonexistent "$2" --system --log-target=null --show-status=no
"#;
