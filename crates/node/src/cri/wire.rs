//! Lists of the runtime, read item by item.
//!
//! An answer may be as large as the kubelet accepts (16 MiB). Most of it is annotations and labels that the authors of pods
//! have written. The parser skips them without a copy, and keeps of each item only what is used. So an answer costs its own
//! size while it is read, and at most [`MAX_KEPT`] afterwards. A list that needs more is refused as a whole: an item that is
//! missing in a list is evidence (of orphans, of leaked shims), so a partial list would be worse than none.

use std::marker::PhantomData;
use std::sync::Arc;

use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType, check_wire_type, decode_key, skip_field};
use prost::{DecodeError, Message};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use super::messages::{Container, Sandbox};
use super::seen;
use nrh_core::fault::PodRef;
use nrh_core::observation::{ContainerSeen, SandboxSeen};

/// Maximum number of bytes kept of one list: some 5,000 containers, or 7,500 sandboxes. Two rounds of lists are in memory while
/// the next one is read.
pub(crate) const MAX_KEPT: usize = 5 << 19;
/// Memory of a text beside its letters, in bytes.
const TEXT: usize = 16;
/// The field number of the items, in both lists.
const ITEMS: u32 = 1;

/// The part of one item of a list that is kept.
pub(crate) trait Item: Sized + Send + Sync + 'static {
    /// The item as the runtime sends it.
    type Raw: Message + Default;
    fn of(raw: Self::Raw) -> Self;
    /// Its approximate size in bytes.
    fn size(&self) -> usize;
}

impl Item for ContainerSeen {
    type Raw = Container;

    fn of(raw: Container) -> Self {
        seen::container(raw)
    }

    fn size(&self) -> usize {
        let texts = [&self.id, &self.sandbox_id, &self.name];
        size_of::<Self>()
            + texts.map(|text| size_of_text(text)).iter().sum::<usize>()
            + self.pod.as_ref().map_or(0, size_of_pod)
    }
}

/// Of a sandbox, only its id.
impl Item for String {
    type Raw = Sandbox;

    fn of(raw: Sandbox) -> Self {
        seen::sandbox(raw).id
    }

    fn size(&self) -> usize {
        size_of_text(self)
    }
}

impl Item for SandboxSeen {
    type Raw = Sandbox;

    fn of(raw: Sandbox) -> Self {
        seen::sandbox(raw)
    }

    fn size(&self) -> usize {
        size_of::<Self>() + size_of_text(&self.id) + size_of_pod(&self.pod)
    }
}

pub(super) const fn size_of_text(text: &str) -> usize {
    text.len() + TEXT
}

fn size_of_pod(pod: &PodRef) -> usize {
    [&pod.namespace, &pod.name, &pod.uid].map(|text| size_of_text(text)).iter().sum()
}

/// A list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed<T> {
    /// What the runtime has listed.
    pub items: Vec<T>,
    /// Size of the answer in bytes. It matters for gRPC, which limits it; for Docker it is 0.
    pub bytes: usize,
}

/// Reads the answer to a request for a whole list.
pub(super) struct ListCodec<T>(PhantomData<fn() -> T>);

impl<T> ListCodec<T> {
    pub(super) const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<T: Item> Codec for ListCodec<T> {
    type Encode = ();
    type Decode = Listed<T>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self::new()
    }

    fn decoder(&mut self) -> Self {
        Self::new()
    }
}

impl<T: Item> Encoder for ListCodec<T> {
    type Item = ();
    type Error = Status;

    /// A request without a filter is an empty message.
    fn encode(&mut self, (): (), _: &mut EncodeBuf<'_>) -> Result<(), Status> {
        Ok(())
    }
}

impl<T: Item> Decoder for ListCodec<T> {
    type Item = Listed<T>;
    type Error = Status;

    fn decode(&mut self, answer: &mut DecodeBuf<'_>) -> Result<Option<Listed<T>>, Status> {
        read(answer).map(Some).map_err(|error| {
            let mut status = Status::internal(error.to_string());
            if matches!(error, ListError::TooMany(_)) {
                status.set_source(Arc::new(error));
            }
            status
        })
    }
}

/// Why a list is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListError {
    /// The answer is not a list.
    #[error("{0}")]
    Malformed(DecodeError),
    /// The list needs more than [`MAX_KEPT`]; this many items were read.
    #[error("{0} items of the list take more than the {kept} KiB that are kept of one", kept = MAX_KEPT >> 10)]
    TooMany(usize),
}

impl From<DecodeError> for ListError {
    fn from(error: DecodeError) -> Self {
        Self::Malformed(error)
    }
}

/// Reads a list to its end.
pub(crate) fn read<T: Item>(mut answer: impl Buf) -> Result<Listed<T>, ListError> {
    let bytes = answer.remaining();
    let (mut items, mut kept) = (Vec::new(), 0_usize);
    while answer.has_remaining() {
        let (field, wire_type) = decode_key(&mut answer)?;
        if field != ITEMS {
            skip_field(wire_type, field, &mut answer, DecodeContext::default())?;
            continue;
        }
        check_wire_type(WireType::LengthDelimited, wire_type)?;
        let item = T::of(T::Raw::decode_length_delimited(&mut answer)?);
        kept = kept.saturating_add(item.size());
        items.push(item);
        if kept > MAX_KEPT {
            return Err(ListError::TooMany(items.len()));
        }
    }
    items.shrink_to_fit();
    Ok(Listed { items, bytes })
}

#[cfg(test)]
mod tests;
