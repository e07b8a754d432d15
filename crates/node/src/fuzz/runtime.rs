//! Answers of container runtimes, and the names of their sockets.

use std::path::{Path, PathBuf};
use std::time::Duration;

use containerd_client::services::v1::GetResponse;
use http::StatusCode;
use k8s_cri::v1::{StatusResponse, VersionResponse};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::{Code, Status};

use super::checks::{beginnings, is_bounded};
use crate::collect::HostPaths;
use crate::cri::endpoint::socket_path;
use crate::cri::{CriError, seen as cri, wire};
use crate::docker::{converse, seen as docker, understood};
use nrh_core::fault::PodRef;
use nrh_core::observation::{ContainerSeen, SandboxSeen};

const ID: &str = "cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc";
/// Largest body that is read here, in bytes.
const MOST: usize = 4096;

fn check_pod(pod: &PodRef) {
    assert!(is_bounded(&pod.namespace, 63) && is_bounded(&pod.name, 253) && is_bounded(&pod.uid, 64), "{pod:?}");
}

fn check_sandbox(seen: &SandboxSeen) {
    assert!(is_bounded(&seen.id, 128));
    check_pod(&seen.pod);
}

fn check_container(seen: &ContainerSeen) {
    assert!(is_bounded(&seen.id, 128) && is_bounded(&seen.sandbox_id, 128) && is_bounded(&seen.name, 253));
    assert!(seen.pod.as_ref().is_none_or(|pod| !pod.uid.is_empty()), "a pod without a uid");
    seen.pod.iter().for_each(check_pod);
}

/// The same bytes as each message that is read.
pub fn cri_answers(data: &[u8]) -> bool {
    let mut taken = false;
    if let Ok(list) = wire::read::<SandboxSeen>(data) {
        taken |= !list.items.is_empty();
        list.items.iter().for_each(check_sandbox);
    }
    if let Ok(list) = wire::read::<ContainerSeen>(data) {
        taken |= !list.items.is_empty();
        list.items.iter().for_each(check_container);
    }
    if let Ok(answer) = VersionResponse::decode(data) {
        taken |= !answer.runtime_name.is_empty();
        let seen = cri::runtime(&answer);
        assert!(is_bounded(&seen.name, 64) && is_bounded(&seen.version, 64));
    }
    if let Some(network) = StatusResponse::decode(data).ok().and_then(|answer| cri::status(answer).network) {
        taken = true;
        assert!(is_bounded(&network.reason, 64) && is_bounded(&network.message, 256));
    }
    taken | GetResponse::decode(data).is_ok_and(|answer| answer.process.is_some())
}

/// An error that came over the wire: its code, and what it says. Taken = the object is not there.
pub fn cri_error(data: &[u8]) -> bool {
    let Some((code, message)) = data.split_first() else { return false };
    let (code, message) = (Code::from(i32::from(*code)), String::from_utf8_lossy(message).into_owned());
    let error = CriError::of(&Status::new(code, message.clone()), ID);
    assert!(error.to_string().len() < 300);
    if error == CriError::NotFound {
        let named = message.contains("No such container") && message.contains(ID);
        assert!(code == Code::NotFound || (code == Code::Unknown && named), "{code:?}: {message:?}");
        assert_ne!(
            CriError::of(&Status::new(Code::Unknown, message), ""),
            CriError::NotFound,
            "nobody was asked about"
        );
    }
    error == CriError::NotFound
}

fn list(data: &[u8]) -> Result<Vec<docker::Listed>, CriError> {
    understood("/containers/json", None, StatusCode::OK, data)
}

pub fn docker_list(data: &[u8]) -> bool {
    let Ok(entries) = list(data) else { return false };
    let Ok(again) = list(data) else { return false };
    entries.into_iter().map(SandboxSeen::from).for_each(|seen| check_sandbox(&seen));
    again.into_iter().map(ContainerSeen::from).for_each(|seen| check_container(&seen));
    for cut in beginnings(data.trim_ascii_end()) {
        assert!(matches!(list(cut), Err(CriError::Cut(_))), "cut at {}", cut.len());
    }
    true
}

/// What Docker says of the container asked for, and of one that is not there.
pub fn docker_inspect(data: &[u8]) -> bool {
    let missing = understood::<docker::Inspection>("/x", Some(ID), StatusCode::NOT_FOUND, data).err();
    if missing == Some(CriError::NotFound) {
        assert!(String::from_utf8_lossy(data).to_ascii_lowercase().contains("container"), "it did not say so");
    }
    let other = understood::<docker::Inspection>("/x", Some(ID), StatusCode::INTERNAL_SERVER_ERROR, data).err();
    assert!(matches!(other, Some(CriError::Other(_))), "{other:?}");
    let answer = understood::<docker::Inspection>("/x", Some(ID), StatusCode::OK, data);
    let Ok(inspected) = answer.and_then(|answer| answer.into_inspected(ID)) else {
        return missing == Some(CriError::NotFound);
    };
    assert!(inspected.pid().is_none_or(|pid| pid > 1), "{inspected:?}");
    let removal = format!("{:?}", inspected.removal());
    assert!(removal.len() <= 3 * 256 + 32, "{} bytes", removal.len());
    true
}

/// A whole answer as it comes over the socket: chunked, cut off, too large, or something else.
pub fn docker_http(data: &[u8]) -> bool {
    let Some(whole) = asked(data) else { return false };
    for cut in beginnings(data) {
        let cut_off = asked(cut);
        assert!(cut_off.is_none() || cut_off.as_ref() == Some(&whole), "cut at {}: {cut_off:?}", cut.len());
    }
    true
}

/// The ids in a list that these bytes are an answer with.
fn asked(data: &[u8]) -> Option<Vec<String>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().ok()?;
    let answer = runtime.block_on(async {
        let (here, mut there) = tokio::io::duplex(64 << 10);
        // An answer that comes before the question is none.
        let serve = async move {
            let mut question = [0; 1024];
            if there.read(&mut question).await.is_ok() && there.write_all(data).await.is_ok() {
                let _ = there.shutdown().await;
            }
        };
        tokio::join!(tokio::time::timeout(Duration::from_secs(20), converse(here, "/x", MOST)), serve).0
    });
    assert!(answer.is_ok(), "it has not come to an end");
    let (status, body) = answer.ok()?.ok()?;
    assert!(body.len() <= if status == StatusCode::OK { MOST } else { 64 << 10 }, "{} bytes were read", body.len());
    let entries: Vec<docker::Listed> = understood("/x", None, status, &body).ok()?;
    Some(entries.into_iter().map(|entry| ContainerSeen::from(entry).id).collect())
}

/// What a kubelet's flag or file names as its runtime's socket.
pub fn socket_name(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    let Some(path) = socket_path(&text) else { return false };
    assert!(path.is_absolute() && path.as_os_str().len() <= text.len());
    let host = HostPaths { root: PathBuf::from("/host"), proc: PathBuf::from("/host/proc"), ..HostPaths::default() };
    let socket = host.socket(&path);
    assert!(socket.starts_with(Path::new("/host")), "{}", socket.display());
    true
}
