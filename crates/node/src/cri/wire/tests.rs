//! Lists as large as they may be.

use std::time::Duration;

use k8s_cri::v1;
use prost::encoding::encode_varint;

use super::*;
use crate::cri::fake::{Fake, Say, labels, pod};
use crate::cri::{Cri, CriError};
use crate::proc::fake::{memory, peak_of};

const MIB: usize = 1 << 20;

/// So many items, as they are in both lists, made without a copy of their own each.
fn list(item: &impl Message, number: usize) -> Vec<u8> {
    let one = item.encode_to_vec();
    let mut all = Vec::with_capacity((one.len() + 5) * number);
    for _ in 0..number {
        all.push(0x0a);
        encode_varint(one.len() as u64, &mut all);
        all.extend_from_slice(&one);
    }
    all
}

/// A container as a kubelet has it made, with annotations of this size.
fn container(annotations: usize) -> v1::Container {
    v1::Container {
        id: "c".repeat(64),
        pod_sandbox_id: "5".repeat(64),
        metadata: Some(v1::ContainerMetadata { name: "work".to_owned(), attempt: 3 }),
        state: 1,
        created_at: 7,
        labels: labels("import-28412345-abcde", "11111111-2222-4333-8444-555555555555", "import", "work"),
        annotations: [("note".to_owned(), "x".repeat(annotations))].into(),
        ..v1::Container::default()
    }
}

/// A sandbox of a pod whose author has written as much as the API takes: 256 KiB of annotations, and labels.
fn sandbox(labels: usize) -> v1::PodSandbox {
    v1::PodSandbox {
        id: "5".repeat(64),
        metadata: Some(pod("web-0", "u1", "shop", 1)),
        labels: (0..labels).map(|number| (format!("l{number}"), String::new())).collect(),
        annotations: [("note".to_owned(), "x".repeat(256 << 10))].into(),
        ..v1::PodSandbox::default()
    }
}

#[test]
fn what_is_used_of_an_item_is_what_the_runtime_has_sent() {
    let sent = v1::ListContainersResponse { containers: vec![container(10), v1::Container::default()] };
    let bytes = sent.encode_to_vec();
    let list = read::<ContainerSeen>(&bytes[..]).unwrap();
    assert_eq!((list.items.len(), list.bytes), (2, bytes.len()));
    let first = &list.items[0];
    assert_eq!((first.name.as_str(), first.attempt, first.sandbox_id.len()), ("work", 3, 64));
    assert_eq!(first.pod.as_ref().unwrap().name, "import-28412345-abcde");

    let sent = v1::ListPodSandboxResponse { items: vec![sandbox(5)] };
    let list = read::<SandboxSeen>(&sent.encode_to_vec()[..]).unwrap();
    assert_eq!((list.items[0].pod.uid.as_str(), list.items[0].attempt, list.items[0].ready), ("u1", 1, true));
    assert!(read::<SandboxSeen>(&b""[..]).unwrap().items.is_empty());
}

#[test]
fn a_field_of_a_later_version_is_skipped_and_what_is_no_list_is_an_error() {
    let mut later = list(&container(0), 1);
    later.splice(0..0, [0x10, 0x07, 0x1a, 0x02, 0xff, 0xff]);
    assert_eq!(read::<ContainerSeen>(&later[..]).unwrap().items.len(), 1);
    for bad in [&[0xff; 6][..], &[0x0a, 0x7f, 1], &[0x08, 0x01], &[0x0a]] {
        assert!(matches!(read::<ContainerSeen>(bad), Err(ListError::Malformed(_))), "{bad:?}");
    }
}

#[tokio::test]
async fn a_list_of_which_too_much_would_be_kept_is_refused_by_its_name() {
    let fake = Fake::start();
    fake.say("ListContainers", Say::Answer(list(&container(0), 20_000)));
    fake.say("ListPodSandbox", Say::Answer(list(&sandbox(0), 60)));
    let cri = Cri::connect(&fake.socket()).await.unwrap();
    let refused = cri.containers(Duration::from_mins(1)).await.unwrap_err();
    assert!(matches!(&refused, CriError::NotKept(text) if text.contains("KiB that are kept")), "{refused:?}");
    // Most of what makes a list long is not kept.
    let Listed { items: sandboxes, bytes } = cri.sandboxes(Duration::from_mins(1)).await.unwrap();
    assert_eq!(sandboxes.len(), 60);
    assert!(bytes > 15 * MIB, "{bytes}");
    let newest = cri.last_created("11111111-2222-4333-8444-555555555555", Duration::from_mins(1)).await.unwrap();
    assert_eq!(newest.map(jiff::Timestamp::as_nanosecond), Some(7));
}

/// What reading takes at its peak beside the answer itself.
fn peak<T: Item>(answer: &[u8], items: Result<usize, usize>) -> usize {
    assert!(answer.len() <= 16 * MIB);
    let before = memory("VmRSS:");
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let list = read::<T>(answer);
    let peak = memory("VmHWM:").saturating_sub(before);
    match list {
        Ok(list) => assert_eq!(Ok(list.items.len()), items),
        Err(ListError::TooMany(read)) => assert!(items.is_err_and(|most| read < most), "{read}"),
        Err(error) => panic!("{error}"),
    }
    peak
}

/// No test: the process whose memory is measured below.
#[test]
#[ignore = "run by another test, as a process of its own"]
fn measured() {
    // What is read for the first time of this program counts as well.
    read::<SandboxSeen>(&list(&sandbox(1), 1)[..]).unwrap();
    read::<ContainerSeen>(&list(&container(1), 1)[..]).unwrap();
    let peak = match std::env::var("NRH_TEST_LIST").unwrap().as_str() {
        "annotations" => peak::<SandboxSeen>(&list(&sandbox(0), 63), Ok(63)),
        "labels" => peak::<SandboxSeen>(&list(&sandbox(120_000), 10), Ok(10)),
        "containers" => peak::<ContainerSeen>(&list(&container(2200), 5_000), Ok(5_000)),
        _ => peak::<ContainerSeen>(&list(&container(0), 40_000), Err(8_000)),
    };
    println!("peak: {} KiB", peak >> 10);
}

/// The probe may use 64 MiB. The answer itself takes up to 16 of them while it is read.
#[test]
fn the_largest_answers_are_read_in_little_memory() {
    for (what, most) in [("annotations", MIB), ("labels", MIB), ("containers", 5 * MIB), ("refused", 5 * MIB)] {
        let (said, peak) = peak_of(module_path!(), &[("NRH_TEST_LIST", what.into())]);
        println!("{what}: {} KiB", peak >> 10);
        assert!(peak <= most, "{what}: {said}");
    }
}
