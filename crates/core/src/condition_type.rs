//! The types of the conditions of our objects: a closed set, all positive (True = good).

crate::named! {
    /// The condition types we write. All are positive: False only on confirmed evidence, True only on a clean
    /// check, Unknown whenever nobody could check.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum ConditionType {
        /// The probe keeps its promised heartbeats (written by the controller).
        ProbeReporting,
        /// The runtime can be reached and answers its lists.
        RuntimeReady,
        /// Every container that was asked answers.
        ContainersResponsive,
        /// Every container has its sandbox, and no shim and no container is left over.
        SandboxesConsistent,
        /// No CNI plugin process is older than its bound.
        NetworkPluginResponsive,
        /// The runtime says that it has a network for pods.
        NetworkReady,
        /// A kubelet has completed its start, and goes on running.
        KubeletReady,
        /// The kubelet's sync loop goes round.
        SyncLoopRunning,
        /// The kubelet relists its pods quickly.
        PlegHealthy,
        /// The node's kernel gives its runtime and its kubelet what they need.
        HostHealthy,
        /// The file systems of runtime and kubelet have room and take writes.
        StorageReady,
        /// systemd answers over the node's system bus, or does not run the node.
        SystemdResponsive,
        /// The kubelet's client certificate is renewed in time.
        ClientCertificateValid,
        /// The node's clock is near the API server's.
        ClockSynchronised,
        /// Every collector of the probe can check.
        ProbeCoverageComplete,
        /// No DaemonSet pod of the node is stuck, and its kubelet gets on with its pods (controller).
        PodsProgressing,
        /// The node does not flap (controller).
        NodeStable,
        /// Kubelet and runtime can be restarted without harm.
        RestartSafe,
        /// The tool can resolve what it found; False = a person is needed (controller).
        SelfHealing,
        /// The controller applies the object as it stands.
        Ready,
        /// The object cannot be applied, or has ended without success, until a person changes it (kstatus).
        Stalled,
        /// The controller is at work on the object (kstatus).
        Reconciling,
        /// New remediations may start under the policy.
        RemediationAllowed,
        /// The remediation is under way (medik8s contract).
        Processing,
        /// The remediation has ended with (True) or without (False) a cure (medik8s contract).
        Succeeded,
    }
}
