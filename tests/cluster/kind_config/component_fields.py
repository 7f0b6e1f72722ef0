"""Fields and arguments of Kubernetes' components that a kind file may set here.

A kubelet and a kube-proxy only warn about a field that they do not know, and start without it: so their fields are
listed (k8s.io/kubelet and k8s.io/kube-proxy 0.36, `types.go`), less those that the test cluster sets itself.
"""

from __future__ import annotations

from fnmatch import fnmatchcase


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


KUBELET_FIELDS = _names("""
    allowedUnsafeSysctls configMapAndSecretChangeDetectionStrategy containerLogMaxFiles containerLogMaxSize
    containerLogMaxWorkers containerLogMonitorInterval contentType cpuCFSQuota cpuCFSQuotaPeriod cpuManagerPolicy
    cpuManagerPolicyOptions cpuManagerReconcilePeriod crashLoopBackOff enableContentionProfiling
    enableControllerAttachDetach enableDebugFlagsHandler enableDebuggingHandlers enableProfilingHandler
    enableSystemLogHandler enableSystemLogQuery eventBurst eventRecordQPS evictionHard evictionMaxPodGracePeriod
    evictionMinimumReclaim evictionPressureTransitionPeriod evictionSoft evictionSoftGracePeriod failSwapOn featureGates
    fileCheckFrequency httpCheckFrequency imageGCHighThresholdPercent imageGCLowThresholdPercent imageMaximumGCAge
    imageMinimumGCAge imagePullCredentialsVerificationPolicy kubeAPIBurst kubeAPIQPS kubeReserved logging maxOpenFiles
    maxParallelImagePulls maxPods memoryManagerPolicy memoryReservationPolicy memorySwap memoryThrottlingFactor
    mergeDefaultEvictionSettings nodeLeaseDurationSeconds nodeStatusMaxImages nodeStatusReportFrequency
    nodeStatusUpdateFrequency podPidsLimit podsPerCore preloadedImagesVerificationAllowlist registryBurst
    registryPullQPS reservedMemory reservedSystemCPUs runtimeRequestTimeout seccompDefault serializeImagePulls
    showHiddenMetricsForVersion shutdownGracePeriod shutdownGracePeriodByPodPriority shutdownGracePeriodCriticalPods
    singleProcessOOMKill streamingConnectionIdleTimeout syncFrequency systemReserved topologyManagerPolicy
    topologyManagerPolicyOptions topologyManagerScope tracing userNamespaces volumeStatsAggPeriod
""")

KUBE_PROXY_FIELDS = _names("""
    clientConnection configSyncPeriod conntrack enableProfiling featureGates logging mode nftables nodePortAddresses
    showHiddenMetricsForVersion
""")

_SET_BY_THE_CLUSTER = (
    "*-address", "*-cidr", "*-config", "*-dir", "*-file", "*-ip-range", "*kubeconfig", "address", "audit-*", "cgroup-*",
    "cluster-dns", "cluster-domain", "config", "container-runtime-endpoint", "enable-aggregator-routing", "etcd-*",
    "feature-gates", "hostname-override", "kubelet-preferred-address-types", "node-ip", "port", "provider-id",
    "resolv-conf", "secure-port", "service-account-*",
)  # fmt: skip


def is_set_by_the_cluster(argument: str) -> bool:
    """Whether an argument of a component is not for kind files: addresses, files, audit, and what has its own field."""
    return any(fnmatchcase(argument, pattern) for pattern in _SET_BY_THE_CLUSTER)
