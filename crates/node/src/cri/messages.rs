//! The fields that are read from the items of the runtime's lists.

use std::collections::HashMap;

use k8s_cri::v1::{ContainerMetadata, PodSandboxMetadata};

/// A container of `ListContainersResponse`, without its image and its annotations. Its labels are the kubelet's.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Container {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "2")]
    pub pod_sandbox_id: String,
    #[prost(message, optional, tag = "3")]
    pub metadata: Option<ContainerMetadata>,
    #[prost(int32, tag = "6")]
    pub state: i32,
    #[prost(int64, tag = "7")]
    pub created_at: i64,
    #[prost(map = "string, string", tag = "8")]
    pub labels: HashMap<String, String>,
}

/// A sandbox of `ListPodSandboxResponse`, without its labels and its annotations.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Sandbox {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(message, optional, tag = "2")]
    pub metadata: Option<PodSandboxMetadata>,
    #[prost(int32, tag = "3")]
    pub state: i32,
    #[prost(int64, tag = "4")]
    pub created_at: i64,
}
