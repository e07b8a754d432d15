//! How a bed comes up: what is missing is built, then control plane and runtimes start side by side, then the kubelets.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::{
    assets,
    bed::Bed,
    control_plane::ControlPlane,
    images,
    machine::Model,
    network,
    node::{KubeletStart, Node, Parts},
    packages,
    pki::Pki,
    platform::Platform,
    process, realm,
    state::{self, State},
    unprivileged,
};

/// What a bed shall have.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct BedOptions {
    /// Name; beds of different processes never meet unless they are kept, when the name must be free.
    pub name: String,
    /// Number of real nodes in namespaces of this machine.
    pub nodes: usize,
    /// Number of nodes that are whole machines.
    pub machines: usize,
    /// What machines run.
    pub platform: Platform,
    /// Nodes of stand-ins in place of real ones: no runtime, no images, and no rights beyond a user namespace.
    pub stand_ins: bool,
    /// systemd runs the real nodes: their containerd and kubelet are units of it.
    pub units: bool,
    /// No nodes, and none of what they need.
    pub control_plane_only: bool,
    /// Leave it running when its owner ends; end it with `testbed down`.
    pub keep: bool,
    /// How long a node may be silent before it counts as gone; `None` is Kubernetes' default. Thousands of simulated nodes
    /// on a small machine need minutes.
    pub node_monitor_grace: Option<Duration>,
}

impl Default for BedOptions {
    fn default() -> Self {
        Self {
            name: "bed".into(),
            nodes: 2,
            machines: 0,
            platform: Platform::default(),
            stand_ins: false,
            units: false,
            control_plane_only: false,
            keep: false,
            node_monitor_grace: None,
        }
    }
}

impl Bed {
    /// Brings a bed up: builds and installs what is missing, starts everything, waits until the nodes are Ready.
    pub fn up(options: BedOptions) -> Result<Self> {
        let count = |nodes: usize| u8::try_from(if options.control_plane_only { 0 } else { nodes });
        let (nodes, machines) = (count(options.nodes)?, count(options.machines)?);
        ensure!(nodes.checked_add(machines).is_some_and(|all| all < 200), "too many nodes");
        ensure!(
            rustix::process::geteuid().is_root(),
            "a bed needs root, of the machine or of a user namespace: it makes network, mount and pid namespaces"
        );
        let said = Progress::new();
        packages::ensure(packages::BED)?;
        let mut tools = vec![assets::CONTROL_PLANE];
        if nodes > 0 {
            ensure!(!options.units || !options.stand_ins, "systemd runs no stand-ins");
            if options.stand_ins {
                eprintln!("testbed: stand-ins play the runtime and the kubelet of all nodes");
            }
        }
        let is_real = machines > 0 || nodes > 0 && !options.stand_ins;
        if is_real {
            ensure!(
                unprivileged::is_root(),
                "a real node needs root of the machine: control groups, devices, and a container runtime"
            );
            tools.push(assets::NODE);
        }
        if nodes > 0 && !options.stand_ins {
            packages::ensure(packages::NODE)?;
            if options.units {
                packages::ensure(packages::UNITS)?;
            }
        }
        let path = options.platform.programs(&tools)?;
        // Made before anything runs: a compiler beside a starting control plane makes both slow.
        let programs = if nodes > 0 || machines > 0 {
            Some(Programs {
                workload: images::workload_binary()?,
                testbed: images::compiled()?.join("testbed"),
                stand_ins: options.stand_ins,
                units: options.units,
                model: (machines > 0).then(|| Model::ensure(options.platform, &path)).transpose()?,
            })
        } else {
            None
        };
        said.step("programs");

        let name = if options.keep { options.name } else { format!("{}-{}", options.name, std::process::id()) };
        let mark = state::claim(&name)?;
        let dir = state::folder(&name);
        let (realm, tether) = realm::launch(&name, options.keep, &dir.join("logs/init.log"), &path)?;
        let network = process::namespace(realm.init.pid, "net").context("the bed's network")?;
        let state = State { realm, network, keep: options.keep, nodes: Vec::new(), kubeconfig: PathBuf::new() };
        // From here on an error or a panic takes down what is there.
        let mut bed = Self { name, state, tether: Some(tether), mark: Some(mark), down: false };
        if let Err(error) = bed.start(options.node_monitor_grace, (nodes, machines), programs.as_ref(), &said) {
            let error = bed.failed(error);
            // Half a bed is of no use to anybody.
            bed.end()?;
            return Err(error);
        }
        Ok(bed)
    }

    fn start(
        &mut self,
        node_monitor_grace: Option<Duration>,
        (nodes, machines): (u8, u8),
        programs: Option<&Programs>,
        said: &Progress,
    ) -> Result<()> {
        let dir = self.dir();
        self.state.save(&self.name)?;
        network::set_up(&self.state.realm, nodes)?;
        let pki = Pki::create(&dir.join("pki"))?;
        pki.kubeconfig("kwok", "kwok", Some("system:masters"))?;
        let stand_ins = programs.is_some_and(|programs| programs.stand_ins);
        let name_of = |number| match number {
            number if number > nodes => Node::machine_name(number),
            number if stand_ins => Node::stand_in_name(number),
            number => Node::name_of(number),
        };
        let all = 1..=nodes + machines;
        let kubeconfigs: Vec<_> = all.map(|n| pki.node_kubeconfig(&name_of(n))).collect::<Result<_>>()?;
        let realm = &self.state.realm;
        let control_plane = ControlPlane { realm, dir: &dir, pki: &pki, node_monitor_grace };
        let make = |number: u8, kubeconfig: &Path, made: &Made<'_>| {
            let parts = Parts {
                bed: &self.name,
                outer: realm,
                dir: &dir,
                number,
                kubeconfig,
                ca: &made.ca,
                workload: &made.programs.workload,
                testbed: &made.testbed,
                units: made.programs.units,
            };
            let node = match made.programs.model.as_ref().filter(|_| number > nodes) {
                Some(model) => Node::create_machine(&parts, model),
                None if stand_ins => Node::create_stand_in(&parts),
                None => Node::create(&parts),
            };
            let node = node.with_context(|| name_of(number))?;
            node.start_containerd()?;
            made.archives.iter().try_for_each(|archive| node.import(archive))?;
            Ok::<_, anyhow::Error>(node)
        };
        let parts = programs.map(|programs| Made::new(programs, &dir, &pki)).transpose()?;
        // Runtimes start beside the control plane: it waits more than it works.
        let (control_plane, nodes) = std::thread::scope(|scope| {
            let nodes: Vec<_> = parts
                .iter()
                .flat_map(|parts| (1..).zip(&kubeconfigs).map(move |(n, k)| (n, k, parts)))
                .map(|(number, kubeconfig, parts)| scope.spawn(move || make(number, kubeconfig, parts)))
                .collect();
            let control_plane = control_plane.start();
            said.step("control plane");
            let nodes =
                nodes.into_iter().map(|node| node.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            (control_plane, nodes.collect::<Result<Vec<_>>>())
        });
        self.state.kubeconfig = control_plane?;
        self.state.nodes = nodes?;
        self.state.save(&self.name)?;
        self.nodes().iter().try_for_each(|node| node.start_kubelet(KubeletStart::default()))?;
        self.wait_ready(self.nodes().len())?;
        if !self.nodes().is_empty() {
            said.step("nodes");
        }
        Ok(())
    }

    /// Keeps the logs of a bed that did not come up and says where they are.
    fn failed(&self, error: anyhow::Error) -> anyhow::Error {
        match self.save_logs() {
            Ok(path) => error.context(format!("bed {} did not come up, its logs are in {}", self.name, path.display())),
            Err(_) => error,
        }
    }
}

/// The project's own programs that nodes need.
struct Programs {
    workload: PathBuf,
    testbed: PathBuf,
    stand_ins: bool,
    units: bool,
    /// What machines are made from, if there are any.
    model: Option<Model>,
}

/// What all nodes of a bed are made from.
struct Made<'a> {
    programs: &'a Programs,
    testbed: PathBuf,
    ca: String,
    archives: Vec<PathBuf>,
}

impl<'a> Made<'a> {
    fn new(programs: &'a Programs, dir: &Path, pki: &Pki) -> Result<Self> {
        let testbed = dir.join("testbed");
        // A copy: the original may be built anew while a kept bed runs.
        fs::copy(&programs.testbed, &testbed)?;
        let archives =
            if programs.stand_ins { Vec::new() } else { images::bed_images(&programs.workload, &dir.join("images"))? };
        let ca = fs::read_to_string(pki.path("ca.crt"))?;
        Ok(Self { programs, testbed, ca, archives })
    }
}

/// Says on stderr what took how long.
struct Progress(std::cell::Cell<Instant>);

impl Progress {
    fn new() -> Self {
        Self(std::cell::Cell::new(Instant::now()))
    }

    fn step(&self, what: &str) {
        eprintln!("testbed: {what} ready in {:.1?}", self.0.replace(Instant::now()).elapsed());
    }
}
