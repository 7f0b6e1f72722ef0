"""Which programs the test cluster is made of, and from which Go modules they are built.

Each tool has a folder `tests/cluster/tools/<name>/` with a go.mod and a go.sum: they say which version, and bind every
byte of it. Here stands what they cannot say. A new version is `go get` and `go mod tidy` in that folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

MODULES = Path(__file__).parents[1] / "tools"


@dataclass(frozen=True)
class Tool:
    """What one Go module gives.

    Attributes:
        name: the folder below `tests/cluster/tools/`.
        module: the path of the module that the programs and files come from.
        programs: the package of each program; a program's name is its own among all tools.
        stamps: variables that the linker sets; `{version}` stands for the module's version, such as `v1.36.2`.
        files: files and folders of the module that are kept beside the programs.
        is_on_demand: only what is tried now and then wants it, and builds it.
    """

    name: str
    module: str
    programs: Mapping[str, str]
    stamps: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    is_on_demand: bool = False


_KUBERNETES = "k8s.io/kubernetes/cmd"
_VOLCANO = "volcano.sh/volcano"
_ARMADA = "github.com/armadaproject/armada"

_ALL = (
    Tool(
        "kubernetes",
        "k8s.io/kubernetes",
        {
            name: f"{_KUBERNETES}/{name}"
            for name in (
                "kube-apiserver",
                "kube-controller-manager",
                "kube-scheduler",
                "kubelet",
                "kube-proxy",
                "kubectl",
            )
        },
        # What charts, clients and other components ask the API server for; client-go has a copy for User-Agent headers.
        {
            f"{package}.{variable}": value
            for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
            for variable, value in (
                ("gitVersion", "{version}"),
                ("gitMajor", "{major}"),
                ("gitMinor", "{minor}"),
                ("gitTreeState", "clean"),
            )
        },
    ),
    Tool("etcd", "go.etcd.io/etcd/server/v3", {"etcd": "go.etcd.io/etcd/server/v3"}),
    Tool("coredns", "github.com/coredns/coredns", {"coredns": "github.com/coredns/coredns"}),
    Tool(
        "helm",
        "helm.sh/helm/v4",
        {"helm": "helm.sh/helm/v4/cmd/helm"},
        {"helm.sh/helm/v4/internal/version.version": "{version}"},
    ),
    Tool(
        "kueue",
        "sigs.k8s.io/kueue",
        {"kueue": "sigs.k8s.io/kueue/cmd/kueue"},
        {"sigs.k8s.io/kueue/pkg/version.GitVersion": "{version}"},
        ("charts/kueue", "config/components/crd"),
    ),
    Tool(
        "kwok",
        "sigs.k8s.io/kwok",
        {"kwok": "sigs.k8s.io/kwok/cmd/kwok"},
        {"sigs.k8s.io/kwok/pkg/consts.Version": "{version}"},
        ("charts", "kustomize"),
    ),
    Tool(
        "versitygw",
        "github.com/versity/versitygw",
        {"versitygw": "github.com/versity/versitygw/cmd/versitygw"},
        {"main.Version": "{version}"},
    ),
    Tool(
        "seaweedfs",
        "github.com/seaweedfs/seaweedfs",
        {"weed": "github.com/seaweedfs/seaweedfs/weed"},
        is_on_demand=True,
    ),
    Tool(
        "volcano",
        _VOLCANO,
        {
            "vc-scheduler": f"{_VOLCANO}/cmd/scheduler",
            "vc-controller-manager": f"{_VOLCANO}/cmd/controller-manager",
            "vc-webhook-manager": f"{_VOLCANO}/cmd/webhook-manager",
        },
        {f"{_VOLCANO}/pkg/version.Version": "{version}"},
        ("installer/helm/chart/volcano", "installer/volcano-development.yaml"),
    ),
    Tool(
        "jobset",
        "sigs.k8s.io/jobset",
        {"jobset": "sigs.k8s.io/jobset"},
        {"sigs.k8s.io/jobset/pkg/version.GitVersion": "{version}"},
        ("charts/jobset", "config/components"),
    ),
    Tool(
        "mpi-operator",
        "github.com/kubeflow/mpi-operator",
        {"mpi-operator": "github.com/kubeflow/mpi-operator/cmd/mpi-operator"},
        files=("deploy/v2beta1/mpi-operator.yaml",),
    ),
    Tool(
        "training-operator",
        "github.com/kubeflow/training-operator",
        {"training-operator": "github.com/kubeflow/training-operator/cmd/training-operator.v1"},
        files=("manifests",),
        is_on_demand=True,
    ),
    Tool(
        "lws",
        "sigs.k8s.io/lws",
        {"lws": "sigs.k8s.io/lws/cmd"},
        {"sigs.k8s.io/lws/pkg/version.GitVersion": "{version}"},
        ("charts/lws",),
        is_on_demand=True,
    ),
    Tool(
        "armada",
        _ARMADA,
        {
            f"armada-{name}": f"{_ARMADA}/cmd/{name}"
            for name in (
                "server",
                "scheduler",
                "scheduleringester",
                "eventingester",
                "lookoutingester",
                "lookout",
                "executor",
            )
        }
        | {"armadactl": f"{_ARMADA}/cmd/armadactl"},
        # what the programs read before their own configuration, and what an executor needs in its cluster
        files=(
            "config",
            "_local/kind/priorityclasses.yaml",
            "deployment/executor/templates/clusterrole.yaml",
        ),
    ),
)

TOOLS: Mapping[str, Tool] = {tool.name: tool for tool in _ALL}
