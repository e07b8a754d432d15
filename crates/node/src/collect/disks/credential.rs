//! The kubelet's client certificate: found through its own kubeconfig, and read only as far as its two dates.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use der::asn1::{AnyRef, GeneralizedTime, UtcTime};
use der::{Decode, Reader, SliceReader, Tag, Tagged};
use k8s_openapi::ByteString;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde::Deserialize;

use crate::collect::kubelet::settings::flag;
use crate::proc::bounded::existing;
use crate::proc::rooted;
use crate::yaml;
use nrh_core::observation::Credential;
use nrh_core::text::bounded;

/// Largest kubeconfig, and largest file of certificates, that is read.
const MAX_FILE: usize = 256 << 10;

/// The part of a kubeconfig that says where the certificate is. Keys and tokens are not kept.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Kubeconfig {
    current_context: String,
    contexts: Vec<NamedContext>,
    users: Vec<NamedUser>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Context {
    user: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NamedUser {
    name: String,
    user: User,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(crate) struct User {
    pub(crate) client_certificate: Option<String>,
    pub(crate) client_certificate_data: Option<ByteString>,
}

/// Reads the certificate of the kubelet with these flags, as the kubelet sees its own files, at this time of the wall clock.
pub(super) fn check(root: &OwnedFd, args: &[String], now: SystemTime) -> Credential {
    let program = args.first().and_then(|program| Path::new(program).file_name()?.to_str());
    if program != Some("kubelet") {
        return Credential::Unknown("where a kubelet of this kind keeps its certificate is not known".to_owned());
    }
    let Some(kubeconfig) = flag(args, "kubeconfig").filter(|path| !path.is_empty()) else { return Credential::Other };
    let found = find(root, Path::new(kubeconfig)).and_then(|found| {
        let Some((place, pem)) = found else { return Ok(Credential::Other) };
        let (begin, end) = dates(&pem).ok_or_else(|| format!("no certificate can be read in {place}"))?;
        // A certificate in the kubeconfig may only be the initial one. The kubelet keeps a renewed one in its own file, and it
        // uses the one that ends later.
        let (place, begin, end) = match renewed(root, args)? {
            Some(newer) if newer.2 > end => newer,
            _ => (place, begin, end),
        };
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Credential::Certificate { place, lifetime: end.saturating_sub(begin), left: end.saturating_sub(now) })
    });
    found.unwrap_or_else(|why| Credential::Unknown(bounded(&format!("the kubelet's certificate: {why}"), 300)))
}

/// The default folder in which the kubelet keeps its renewed certificates.
const CERT_DIR: &str = "/var/lib/kubelet/pki";
/// The newest of them.
const CURRENT: &str = "kubelet-client-current.pem";

/// The certificate that the kubelet has renewed, with its path and its dates; `None` where there is none.
fn renewed(root: &OwnedFd, args: &[String]) -> Result<Option<(String, Duration, Duration)>, String> {
    let folder = flag(args, "cert-dir").filter(|path| path.starts_with('/')).unwrap_or(CERT_DIR);
    let file = Path::new(folder).join(CURRENT);
    let place = file.display().to_string();
    let read = existing(rooted::read(root, &file, MAX_FILE)).map_err(|error| format!("{place}: {error}"))?;
    let Some(pem) = read else { return Ok(None) };
    let (begin, end) = dates(pem.as_bytes()).ok_or_else(|| format!("no certificate can be read in {place}"))?;
    Ok(Some((place, begin, end)))
}

/// The certificate and its path; `None` where the kubelet uses another kind of credential.
fn find(root: &OwnedFd, path: &Path) -> Result<Option<(String, Vec<u8>)>, String> {
    let describe = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    if !path.is_absolute() {
        return Err(format!("{} is not an absolute path", path.display()));
    }
    let config = rooted::read(root, path, MAX_FILE).map_err(|error| describe(path, error))?;
    let user = user(&config).map_err(|why| format!("{} {why}", path.display()))?;
    if let Some(ByteString(pem)) = user.client_certificate_data {
        return Ok(Some((path.display().to_string(), pem)));
    }
    let Some(file) = user.client_certificate.filter(|file| !file.is_empty()) else { return Ok(None) };
    let file = path.parent().unwrap_or(path).join(file);
    let pem = rooted::read(root, &file, MAX_FILE).map_err(|error| describe(&file, error))?;
    Ok(Some((file.display().to_string(), pem.into_bytes())))
}

/// The user of the current context in a kubeconfig.
pub(crate) fn user(text: &str) -> Result<User, String> {
    let config: Kubeconfig = yaml::read(text).map_err(|error| format!("is no kubeconfig: {error}"))?;
    let context = config.contexts.into_iter().find(|context| context.name == config.current_context);
    let user = context.and_then(|one| config.users.into_iter().find(|user| user.name == one.context.user));
    Ok(user.ok_or("names no user")?.user)
}

/// The first and the last second of the first certificate, since 1970.
pub(crate) fn dates(pem: &[u8]) -> Option<(Duration, Duration)> {
    let certificate = CertificateDer::from_pem_slice(pem).ok()?;
    validity(&certificate).ok()
}

/// Finds the validity of an X.509 certificate. The version (where there is one), the serial number, the algorithm and the
/// issuer come before it.
pub(crate) fn validity(certificate: &[u8]) -> der::Result<(Duration, Duration)> {
    let outer = AnyRef::from_der(certificate)?;
    let mut outer = SliceReader::new(outer.value())?;
    let inner: AnyRef<'_> = outer.decode()?;
    let mut inner = SliceReader::new(inner.value())?;
    let mut field: AnyRef<'_> = inner.decode()?;
    if field.tag() != Tag::Integer {
        field = inner.decode()?;
    }
    field.tag().assert_eq(Tag::Integer)?;
    for _ in 0..2 {
        inner.decode::<AnyRef<'_>>()?.tag().assert_eq(Tag::Sequence)?;
    }
    let field: AnyRef<'_> = inner.decode()?;
    field.tag().assert_eq(Tag::Sequence)?;
    let mut dates = SliceReader::new(field.value())?;
    Ok((moment(&mut dates)?, moment(&mut dates)?))
}

fn moment(reader: &mut SliceReader<'_>) -> der::Result<Duration> {
    let any: AnyRef<'_> = reader.decode()?;
    match any.tag() {
        Tag::UtcTime => Ok(any.decode_as::<UtcTime>()?.to_unix_duration()),
        _ => Ok(any.decode_as::<GeneralizedTime>()?.to_unix_duration()),
    }
}

#[cfg(test)]
mod tests;
