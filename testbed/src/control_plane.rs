//! etcd, API server, controller manager and scheduler, as real processes inside a bed.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::api::{Api, PostParams};
use serde_json::json;

use crate::{
    audit,
    client::on_network,
    network::{CONTROL_PLANE_IP, SERVICE_IP},
    pki::Pki,
    process::Identity,
    realm::Realm,
    wait::SOON,
};

/// Everything that differs between control planes.
#[derive(Debug)]
pub(crate) struct ControlPlane<'a> {
    pub(crate) realm: &'a Realm,
    pub(crate) dir: &'a Path,
    pub(crate) pki: &'a Pki,
    /// How long a node may be silent before it counts as gone; `None` is Kubernetes' default.
    pub(crate) node_monitor_grace: Option<Duration>,
}

impl ControlPlane<'_> {
    /// Starts it and returns the admin's kubeconfig once the API server is ready.
    pub(crate) fn start(&self) -> Result<PathBuf> {
        let admin = self.pki.kubeconfig("admin", "admin", Some("system:masters"))?;
        std::fs::write(self.dir.join("audit-policy.yaml"), audit::POLICY)?;
        let etcd = self.daemon("etcd", self.etcd())?;
        let api = self.daemon("kube-apiserver", self.api_server())?;
        self.wait_ready(&admin, &[("etcd", etcd), ("kube-apiserver", api)])?;
        self.daemon("kube-controller-manager", self.controller_manager()?)?;
        self.daemon("kube-scheduler", self.client("scheduler")?)?;
        Ok(admin)
    }

    fn daemon(&self, name: &str, flags: Vec<String>) -> Result<Identity> {
        // A fifth of what an API server computes is the collection of garbage at Go's default of 100.
        let argv: Vec<String> = ["env", "GOGC=400", name].map(str::to_owned).into_iter().chain(flags).collect();
        self.realm.daemon(&self.dir.join("logs").join(format!("{name}.log")), &argv)
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn etcd(&self) -> Vec<String> {
        let client = "http://127.0.0.1:2379";
        let peer = "http://127.0.0.1:2380";
        flags(&[
            ("data-dir", &self.path("etcd")),
            // A bed's data need not survive the machine.
            ("unsafe-no-fsync", "true"),
            ("listen-client-urls", client),
            ("advertise-client-urls", client),
            ("listen-peer-urls", peer),
            ("initial-advertise-peer-urls", peer),
            ("initial-cluster", &format!("default={peer}")),
        ])
    }

    fn api_server(&self) -> Vec<String> {
        let pki = |name| self.pki.path(name);
        flags(&[
            ("etcd-servers", "http://127.0.0.1:2379"),
            // The port of the service, on all addresses: so the service address works without kube-proxy.
            ("secure-port", "443"),
            ("bind-address", "0.0.0.0"),
            ("advertise-address", &CONTROL_PLANE_IP.to_string()),
            ("service-cluster-ip-range", "10.0.0.0/24"),
            ("tls-cert-file", &pki("apiserver.crt")),
            ("tls-private-key-file", &pki("apiserver.key")),
            ("client-ca-file", &pki("ca.crt")),
            ("kubelet-client-certificate", &pki("apiserver-kubelet.crt")),
            ("kubelet-client-key", &pki("apiserver-kubelet.key")),
            // Node names do not resolve here.
            ("kubelet-preferred-address-types", "InternalIP"),
            ("service-account-issuer", "https://kubernetes.default.svc.cluster.local"),
            ("service-account-key-file", &pki("sa.pub")),
            ("service-account-signing-key-file", &pki("sa.key")),
            ("authorization-mode", "Node,RBAC"),
            ("enable-admission-plugins", "NodeRestriction"),
            ("allow-privileged", "true"),
            ("audit-policy-file", &self.path("audit-policy.yaml")),
            ("audit-log-path", &self.path("audit.log")),
            // Megabytes; the default would begin a new file in the midst of a benchmark.
            ("audit-log-maxsize", "100000"),
        ])
    }

    fn controller_manager(&self) -> Result<Vec<String>> {
        let mut all = self.client("controller-manager")?;
        let grace = self.node_monitor_grace.map(|g| format!("{}s", g.as_secs()));
        let (key, ca, ca_key) = (self.pki.path("sa.key"), self.pki.path("ca.crt"), self.pki.path("ca.key"));
        all.extend(flags(&[
            ("use-service-account-credentials", "true"),
            // The default of 20 would make the controller manager the bottleneck of thousands of simulated nodes.
            ("kube-api-qps", "500"),
            ("kube-api-burst", "1000"),
            ("service-account-private-key-file", &key),
            ("root-ca-file", &ca),
            ("cluster-signing-cert-file", &ca),
            ("cluster-signing-key-file", &ca_key),
        ]));
        all.extend(grace.map(|grace| format!("--node-monitor-grace-period={grace}")));
        Ok(all)
    }

    /// What a program of Kubernetes needs that is a client of the API server, by the user of its name.
    fn client(&self, name: &str) -> Result<Vec<String>> {
        let config = self.pki.kubeconfig(name, &format!("system:kube-{name}"), None)?.display().to_string();
        Ok(flags(&[
            ("kubeconfig", &config),
            ("authentication-kubeconfig", &config),
            ("authorization-kubeconfig", &config),
            ("bind-address", "127.0.0.1"),
            ("leader-elect", "false"),
        ]))
    }

    /// Waits until the API server says that it is ready and knows who may talk to kubelets.
    fn wait_ready(&self, admin: &Path, needed: &[(&str, Identity)]) -> Result<()> {
        on_network(self.realm.init.pid, admin, async |client| {
            let end = Instant::now() + SOON;
            loop {
                let request = http::Request::get("/readyz").body(Vec::new())?;
                let Err(error) = client.request_text(request).await else { break };
                if let Some((name, _)) = needed.iter().find(|(_, process)| !process.alive()) {
                    bail!("{name} has ended, see {}", self.path(&format!("logs/{name}.log")));
                }
                if Instant::now() > end {
                    return Err(error).context(format!("API server at {SERVICE_IP} not ready after {SOON:?}"));
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            let binding = serde_json::from_value(json!({
                "metadata": {"name": "kube-apiserver-kubelet"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:kubelet-api-admin"},
                "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "kube-apiserver"}],
            }))?;
            Api::<ClusterRoleBinding>::all(client).create(&PostParams::default(), &binding).await?;
            Ok(())
        })
    }
}

/// `--name=value` for each pair.
pub(crate) fn flags(pairs: &[(&str, &str)]) -> Vec<String> {
    pairs.iter().map(|(name, value)| format!("--{name}={value}")).collect()
}
