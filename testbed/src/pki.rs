//! Certificates and kubeconfigs of one bed: one authority, one certificate per user.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};

use crate::network::{CONTROL_PLANE_IP, SERVICE_IP};

/// Names under which clients reach the API server.
const NAMES: [&str; 5] =
    ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"];

/// The authority of a bed and the folder that holds all its files.
#[derive(Debug)]
pub(crate) struct Pki {
    dir: PathBuf,
    ca: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    /// A new authority with the API server's certificate and the key that signs service account tokens.
    pub(crate) fn create(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let mut params = params("nrh-testbed", None)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let pki = Self { dir: dir.to_owned(), ca: CertifiedIssuer::self_signed(params, KeyPair::generate()?)? };
        pki.write("ca.crt", &pki.ca.pem())?;
        pki.write("ca.key", &pki.ca.key().serialize_pem())?;
        let signer = KeyPair::generate()?;
        pki.write("sa.key", &signer.serialize_pem())?;
        pki.write("sa.pub", &signer.public_key_pem())?;
        pki.serving("apiserver")?;
        pki.client("apiserver-kubelet", "kube-apiserver", None)?;
        Ok(pki)
    }

    /// A file of the authority.
    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        write_private(&self.dir.join(name), text)
    }

    fn serving(&self, file: &str) -> Result<()> {
        let mut params = params("kube-apiserver", None)?;
        for name in NAMES {
            params.subject_alt_names.push(SanType::DnsName(name.try_into()?));
        }
        for ip in [Ipv4Addr::LOCALHOST, SERVICE_IP, CONTROL_PLANE_IP] {
            params.subject_alt_names.push(SanType::IpAddress(IpAddr::V4(ip)));
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(file, &params).map(drop)
    }

    /// A client certificate for a user; returns certificate and key.
    fn client(&self, file: &str, user: &str, group: Option<&str>) -> Result<(String, String)> {
        let mut params = params(user, group)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(file, &params)
    }

    fn sign(&self, file: &str, params: &CertificateParams) -> Result<(String, String)> {
        let key = KeyPair::generate()?;
        let pair = (params.signed_by(&key, &self.ca)?.pem(), key.serialize_pem());
        self.write(&format!("{file}.crt"), &pair.0)?;
        self.write(&format!("{file}.key"), &pair.1)?;
        Ok(pair)
    }

    /// A kubeconfig that holds all it needs, so that it can be copied to wherever it is read.
    pub(crate) fn kubeconfig(&self, file: &str, user: &str, group: Option<&str>) -> Result<PathBuf> {
        let (certificate, key) = self.client(file, user, group)?;
        let config = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "bed",
            "clusters": [{"name": "bed", "cluster": {
                "server": format!("https://{SERVICE_IP}:443"),
                "certificate-authority-data": ByteString(self.ca.pem().into_bytes()),
            }}],
            "users": [{"name": user, "user": {
                "client-certificate-data": ByteString(certificate.into_bytes()),
                "client-key-data": ByteString(key.into_bytes()),
            }}],
            "contexts": [{"name": "bed", "context": {"cluster": "bed", "user": user}}],
        });
        // JSON is YAML, and every reader of kubeconfigs takes it.
        let path = self.dir.join(format!("{file}.kubeconfig"));
        write_private(&path, &serde_json::to_string_pretty(&config)?)?;
        Ok(path)
    }

    /// A kubelet's kubeconfig.
    pub(crate) fn node_kubeconfig(&self, name: &str) -> Result<PathBuf> {
        self.kubeconfig(name, &format!("system:node:{name}"), Some("system:nodes"))
    }
}

/// A certificate of a user that has long expired, in the form in which kubeconfigs hold it.
pub(crate) fn expired_certificate(user: &str) -> Result<serde_json::Value> {
    let mut params = params(user, None)?;
    params.not_after = date_time_ymd(2021, 1, 1);
    let certificate = params.self_signed(&KeyPair::generate()?)?.pem();
    Ok(serde_json::to_value(ByteString(certificate.into_bytes()))?)
}

fn params(user: &str, group: Option<&str>) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, user);
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2120, 1, 1);
    Ok(params)
}

fn write_private(path: &Path, text: &str) -> Result<()> {
    use std::{io::Write, os::unix::fs::OpenOptionsExt};
    let mut options = fs::OpenOptions::new();
    let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(path);
    let file = file.as_mut().map_err(|e| anyhow::anyhow!("{}: {e}", path.display()))?;
    file.write_all(text.as_bytes()).with_context(|| path.display().to_string())
}
