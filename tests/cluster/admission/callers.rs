//! The identities, each with a credential as the cluster gives it out.

use anyhow::{Context, Result, ensure};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use kube::api::{Api, ObjectMeta, PostParams};
use kube::config::AuthInfo;
use kube::{Client, Config};
use nrh_testbed::{Bed, operator};

use crate::admission::requests::Caller;
use crate::plane;

pub struct Callers {
    pub admin: Caller,
    /// The controller's account, bound to a pod.
    pub controller: Caller,
    /// The controller's account, bound to a pod of [`NEXT_IMAGE`], as in the middle of an upgrade.
    pub next: Caller,
    /// The controller's account, bound to the pod [`GONE`], which is deleted.
    pub gone: Caller,
    /// The controller's account with a token that is bound to no pod.
    pub loose: Caller,
    /// The probe's account, bound to the pod on worker-1.
    pub pod: Caller,
    /// The same on worker-2.
    pub neighbour: Caller,
    /// The kubelet's certificate of worker-1.
    pub unit: Caller,
    /// The probe's account with a token that is bound to no pod.
    pub unbound: Caller,
    /// The default account of the probe's namespace, bound to nothing.
    pub other_account: Caller,
    pub sets: Caller,
    pub jobs: Caller,
    /// Somebody with the role that approves steps.
    pub approver: Caller,
    /// Somebody with the role that writes policies.
    pub operator: Caller,
    /// Somebody with the role that starts steps by hand.
    pub requester: Caller,
    /// Somebody who may make and change remediations, and neither approve, nor start, nor cancel.
    pub patcher: Caller,
    /// The account of Jobs on nodes.
    pub act: Caller,
    /// Somebody with the cluster's own role `view`, in the whole cluster.
    pub viewer: Caller,
    /// Somebody with the cluster's own role `edit` in nrh-system.
    pub edit_system: Caller,
    /// Somebody with the cluster's own role `admin` in nrh-system.
    pub admin_system: Caller,
    /// Somebody with the cluster's own role `edit` in nrh-node.
    pub edit_node: Caller,
    /// Somebody with the cluster's own role `admin` in nrh-node.
    pub admin_node: Caller,
    /// Somebody with the role [`UNLIMITED`].
    pub unlimited: Caller,
}

/// The pod to which the controller's token is bound.
pub const CONTROLLER: &str = "the-controller";
/// A controller's pod that is deleted.
pub const GONE: &str = "the-gone";
pub const NEXT_IMAGE: &str = "runtimehealth.io/nrh:next";
/// Name of the role with the usual verbs on everything, and none of this project's own.
pub const UNLIMITED: &str = "unlimited";

impl Callers {
    pub async fn new(admin: Client, bed: &Bed) -> Result<Self> {
        let config = bed.client_config().await?;
        let by = |name, token| by_token(name, &config, token);
        let with_token = |name: &'static str, arguments: &[&str]| -> Result<Caller> {
            let token = bed.kubectl(&[&["create", "token"], arguments].concat())?;
            by(name, token.trim().to_owned())
        };
        let bound = |name, node: &str| {
            let pod = pod_on(bed, node)?;
            with_token(name, &["nrh-probe", "-n", "nrh-node", "--bound-object-kind=Pod", "--bound-object-name", &pod])
        };
        let bound_to = |name: &'static str, role: &str, binding: &[&str]| {
            bed.kubectl(&["create", "serviceaccount", name, "-n", "default"])?;
            let (role, account) = (format!("--clusterrole={role}"), format!("--serviceaccount=default:{name}"));
            bed.kubectl(&[binding, &[name, &role, &account]].concat())?;
            with_token(name, &[name, "-n", "default"])
        };
        let person = |name, role: &str| bound_to(name, role, &["create", "clusterrolebinding"]);
        let member = |name, role: &str, place: &str| bound_to(name, role, &["create", "rolebinding", "-n", place]);
        let everything = format!(
            "{{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {{name: {UNLIMITED}}}, rules: [{{apiGroups: ['*'],
              resources: ['*'], verbs: [get, list, watch, create, update, patch, delete, deletecollection]}}]}}"
        );
        bed.kubectl_input(&["create", "-f", "-"], &everything)?;
        let may_patch = [
            "create",
            "clusterrole",
            "patcher",
            "--verb=get,patch,create",
            "--resource=noderemediations.runtimehealth.io",
        ];
        bed.kubectl(&may_patch)?;
        let kube_system = |name, account: &str| with_token(name, &[account, "-n", "kube-system"]);
        Ok(Self {
            controller: by("controller", operator::controllers_token(bed, CONTROLLER, operator::IMAGE)?)?,
            next: by("controller of the next version", operator::controllers_token(bed, "the-next", NEXT_IMAGE)?)?,
            gone: by("controller whose pod is deleted", operator::controllers_token(bed, GONE, operator::IMAGE)?)?,
            loose: with_token("controller without a pod", &["nrh-controller", "-n", "nrh-system"])?,
            sets: kube_system("controller of DaemonSets", "daemon-set-controller")?,
            approver: person("ann", "nrh:approver")?,
            operator: person("olga", "nrh:operator")?,
            requester: person("stan", "nrh:manual-remediation")?,
            patcher: person("patcher", "patcher")?,
            act: with_token("account of Jobs", &["nrh-act", "-n", "nrh-node"])?,
            viewer: person("vera", "view")?,
            edit_system: member("edit-system", "edit", "nrh-system")?,
            admin_system: member("admin-system", "admin", "nrh-system")?,
            edit_node: member("edit-node", "edit", "nrh-node")?,
            admin_node: member("admin-node", "admin", "nrh-node")?,
            unlimited: person("una", UNLIMITED)?,
            jobs: kube_system("controller of Jobs", "job-controller")?,
            pod: bound("probe pod", "worker-1")?,
            neighbour: bound("probe pod of worker-2", "worker-2")?,
            unbound: with_token("token without a node", &["nrh-probe", "-n", "nrh-node"])?,
            other_account: with_token("other account of nrh-node", &["default", "-n", "nrh-node"])?,
            unit: kubelet(&admin, &config, bed, "worker-1").await?,
            admin: Caller::new("admin", &config)?,
        })
    }
}

fn pod_on(bed: &Bed, node: &str) -> Result<String> {
    let field = format!("spec.nodeName={node}");
    let names = bed.kubectl(&["get", "pod", "-n", "nrh-node", "--field-selector", &field, "-o", "name"])?;
    let mut names = names.lines();
    let name = names.next().with_context(|| format!("no pod of the probe on {node}"))?;
    ensure!(names.next().is_none(), "more than one pod of the probe on {node}");
    Ok(name.trim_start_matches("pod/").to_owned())
}

/// With a certificate as a kubelet gets it: asked for, approved, signed by the cluster.
async fn kubelet(admin: &Client, config: &Config, bed: &Bed, node: &str) -> Result<Caller> {
    let key = rcgen::KeyPair::generate()?;
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(rcgen::DnType::CommonName, format!("system:node:{node}"));
    let request = CertificateSigningRequest {
        metadata: ObjectMeta { name: Some(node.to_owned()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(params.serialize_request(&key)?.pem()?.into_bytes()),
            signer_name: "kubernetes.io/kube-apiserver-client-kubelet".to_owned(),
            usages: Some(vec!["digital signature".to_owned(), "client auth".to_owned()]),
            ..CertificateSigningRequestSpec::default()
        },
        ..CertificateSigningRequest::default()
    };
    let api: Api<CertificateSigningRequest> = Api::all(admin.clone());
    api.create(&PostParams::default(), &request).await?;
    bed.kubectl(&["certificate", "approve", node])?;
    let certificate = plane::soon(async || {
        let signed = api.get(node).await?.status.and_then(|status| status.certificate);
        signed.with_context(|| format!("the certificate of {node} is not signed"))
    });
    let certificate = certificate.await?.0;
    let folder = tempfile::tempdir()?;
    let (certificate_path, key_path) = (folder.path().join("crt"), folder.path().join("key"));
    std::fs::write(&certificate_path, certificate)?;
    std::fs::write(&key_path, key.serialize_pem())?;
    let auth = AuthInfo {
        client_certificate: Some(certificate_path.display().to_string()),
        client_key: Some(key_path.display().to_string()),
        ..AuthInfo::default()
    };
    Caller::new("kubelet's certificate", &with_auth(config, auth))
}

/// With this token, and no other credential.
pub fn by_token(name: &'static str, config: &Config, token: String) -> Result<Caller> {
    Caller::new(name, &with_auth(config, AuthInfo { token: Some(token.into()), ..AuthInfo::default() }))
}

fn with_auth(config: &Config, auth: AuthInfo) -> Config {
    let mut config = config.clone();
    config.auth_info = auth;
    config
}
