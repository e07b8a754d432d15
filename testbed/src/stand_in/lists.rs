//! What the stand-in of containerd answers from its table alone, whatever the shims do.

use k8s_cri::v1 as cri;
use tonic::Status;

use super::runtime::{Answer, Runtime, internal};
use super::table::{Config, Object, Standing};

impl Runtime {
    pub(super) fn list_sandboxes(&self, _: &cri::ListPodSandboxRequest) -> Answer<cri::ListPodSandboxResponse> {
        let item = |object: Object| {
            let state = i32::from(!self.runs(&object)?);
            let Config::Sandbox(config) = object.config else { return Err(internal("not a sandbox")) };
            Ok(cri::PodSandbox {
                id: object.id,
                metadata: config.metadata,
                state,
                created_at: object.created,
                labels: config.labels,
                annotations: config.annotations,
                ..Default::default()
            })
        };
        let items = self.table.sandboxes().into_iter().map(item).collect::<Answer<_>>()?;
        Ok(cri::ListPodSandboxResponse { items })
    }

    pub(super) fn list_containers(&self, _: &cri::ListContainersRequest) -> Answer<cri::ListContainersResponse> {
        let item = |object: Object| {
            let state = state(self.standing(&object)?) as i32;
            let Config::Container(config) = object.config else { return Err(internal("not a container")) };
            Ok(cri::Container {
                id: object.id,
                pod_sandbox_id: object.sandbox,
                metadata: config.metadata,
                image_ref: config.image.as_ref().map(|image| image.image.clone()).unwrap_or_default(),
                image: config.image,
                state,
                created_at: object.created,
                labels: config.labels,
                annotations: config.annotations,
                ..Default::default()
            })
        };
        let shown = self.table.containers().into_iter().filter(|object| self.lens.shows(&self.table, object));
        Ok(cri::ListContainersResponse { containers: shown.map(item).collect::<Answer<_>>()? })
    }

    pub(super) fn sandbox_status(&self, asked: &cri::PodSandboxStatusRequest) -> Answer<cri::PodSandboxStatusResponse> {
        let object = self.find(&asked.pod_sandbox_id)?;
        let state = i32::from(!self.runs(&object)?);
        let Config::Sandbox(config) = object.config else { return Err(Status::not_found("no sandbox")) };
        let status = cri::PodSandboxStatus {
            id: object.id,
            metadata: config.metadata,
            state,
            created_at: object.created,
            network: Some(cri::PodSandboxNetworkStatus { ip: object.ip, ..Default::default() }),
            labels: config.labels,
            ..Default::default()
        };
        Ok(cri::PodSandboxStatusResponse { status: Some(status), ..Default::default() })
    }

    pub(super) fn container_status(&self, asked: &cri::ContainerStatusRequest) -> Answer<cri::ContainerStatusResponse> {
        let object = self.find(&asked.container_id)?;
        if !self.lens.shows(&self.table, &object) {
            return Err(Status::not_found(format!("{} is not known", object.id)));
        }
        let standing = self.standing(&object)?;
        let Config::Container(config) = object.config else { return Err(Status::not_found("no container")) };
        let (exit_code, finished_at) = match standing {
            Standing::Exited(exit) => (exit.code, exit.at),
            Standing::Created | Standing::Running(_) => (0, 0),
        };
        let status = cri::ContainerStatus {
            id: object.id,
            metadata: config.metadata,
            state: state(standing) as i32,
            created_at: object.created,
            started_at: object.created,
            finished_at,
            exit_code,
            image: config.image,
            labels: config.labels,
            log_path: config.log_path,
            ..Default::default()
        };
        Ok(cri::ContainerStatusResponse { status: Some(status), ..Default::default() })
    }
}

fn state(standing: Standing) -> cri::ContainerState {
    match standing {
        Standing::Created => cri::ContainerState::ContainerCreated,
        Standing::Running(_) => cri::ContainerState::ContainerRunning,
        Standing::Exited(_) => cri::ContainerState::ContainerExited,
    }
}
