from pathlib import Path

import pytest

from tests.cluster.errors import ClusterError
from tests.cluster.kind_config.reading import parse, read
from tests.cluster.kind_config.refusal import RefusedFieldError

HEADER = "kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\n"
TWO = "nodes: [{role: control-plane}, {role: worker, %s}]"


def refusal(text: str) -> RefusedFieldError:
    with pytest.raises(RefusedFieldError) as caught:
        parse(text)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(f"{caught.value.field}: " if caught.value.field else "")
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("nodes: [{}, {}]", "nodes[1].role", "control-plane"),
        ("nodes: [{role: worker}]", "nodes", ["worker"]),
        ("nodes: [{role: master}]", "nodes[0].role", "master"),
        ("nodes: [{image: 'kindest/node:v1.35.0'}]", "nodes[0].image", "kindest/node:v1.35.0"),
        ("nodes: [{image: 'kindest/node:v1.360.1'}]", "nodes[0].image", "kindest/node:v1.360.1"),
        ("nodes: [{image: 'kindest/node:latest'}]", "nodes[0].image", "kindest/node:latest"),
        ("nodes: [{image: 'mine/node:v1.36.2'}]", "nodes[0].image", "mine/node:v1.36.2"),
        (
            TWO % "extraPortMappings: [{containerPort: 80}]",
            "nodes[1].extraPortMappings",
            [{"containerPort": "80"}],
        ),
        (TWO % "gpus: all", "nodes[1].gpus", "all"),
        (TWO % "kubeadmConfigPatchesJSON6902: [{}]", "nodes[1].kubeadmConfigPatchesJSON6902", [{}]),
        ("kubeadmConfigPatchesJSON6902: [{}]", "kubeadmConfigPatchesJSON6902", [{}]),
        ("containerdConfigPatchesJSON6902: ['[]']", "containerdConfigPatchesJSON6902", ["[]"]),
        ("networking: {ipFamily: ipv6}", "networking.ipFamily", "ipv6"),
        ("networking: {ipFamily: dual}", "networking.ipFamily", "dual"),
        ("networking: {disableDefaultCNI: true}", "networking.disableDefaultCNI", "true"),
        ("networking: {kubeProxyMode: iptables}", "networking.kubeProxyMode", "iptables"),
        ("networking: {kubeProxyMode: ipvs}", "networking.kubeProxyMode", "ipvs"),
        ("networking: {kubeProxyMode: none}", "networking.kubeProxyMode", "none"),
        ("networking: {kubeProxyMode: NFTables}", "networking.kubeProxyMode", "NFTables"),
        ("networking: {dnsSearch: [example.com]}", "networking.dnsSearch", ["example.com"]),
        ("networking: {apiServerAddress: 192.0.2.1}", "networking.apiServerAddress", "192.0.2.1"),
        ("networking: {apiServerPort: 65536}", "networking.apiServerPort", "65536"),
        ("networking: {apiServerPort: http}", "networking.apiServerPort", "http"),
        ("networking: {podSubnet: 10.0.0.0/33}", "networking.podSubnet", "10.0.0.0/33"),
        ("networking: {podSubnet: 'fd00::/56'}", "networking.podSubnet", "fd00::/56"),
        ("networking: {podSubnet: '10.0.0.0/16,fd00::/56'}", "networking.podSubnet", "10.0.0.0/16,fd00::/56"),
        ("networking: {serviceSubnet: [a]}", "networking.serviceSubnet", ["a"]),
        ("networking: {podSubnet: 10.96.7.0/24}", "networking.podSubnet", "10.96.7.0/24"),
        ("networking: {pod_subnet: 10.0.0.0/16}", "networking.pod_subnet", "10.0.0.0/16"),
        ("networking: [a]", "networking", ["a"]),
        ("name: Upper", "name", "Upper"),
        ("names: typo", "names", "typo"),
        ("featureGates: {A: maybe}", "featureGates.A", "maybe"),
        ("runtimeConfig: {a: {b: c}}", "runtimeConfig.a", {"b": "c"}),
    ],
)
def test_fields_of_kind(text: str, field: str, value: object) -> None:
    error = refusal(HEADER + text)
    assert (error.field, error.value) == (field, value)


@pytest.mark.parametrize(
    ("mount", "field", "value"),
    [
        ("hostPath: /a, containerPath: /b, propagation: Shared", ".propagation", "Shared"),
        ("hostPath: /a, containerPath: /b, propagation: HostToContainer", ".propagation", "HostToContainer"),
        ("hostPath: /a, containerPath: /b, propagation: Bidirectional", ".propagation", "Bidirectional"),
        ("hostPath: /a, containerPath: /b, selinuxRelabel: true", ".selinuxRelabel", "true"),
        ("hostPath: /a, containerPath: /b, readonly: true", ".readonly", "true"),
        ("hostPath: /a, containerPath: b", ".containerPath", "b"),
        ("hostPath: '', containerPath: /b", ".hostPath", ""),
        ("hostPath: /a", "", "containerPath"),
    ],
)
def test_mounts(mount: str, field: str, value: object) -> None:
    error = refusal(HEADER + TWO % f"extraMounts: [{{hostPath: /x, containerPath: /y}}, {{{mount}}}]")
    assert (error.field, error.value) == (f"nodes[1].extraMounts[1]{field}", value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("-a", "b"),
        ("a/b/c", "d"),
        ("UPPER.example/a", "b"),
        ("a" * 64, "b"),
        ("a", "b" * 64),
        ("a", "b c"),
        ("a", "b-"),
        ("node-role.kubernetes.io/worker", "b"),
        ("kubernetes.io/mine", "b"),
        ("mine.k8s.io/a", "b"),
        ("test-cluster/cpu", "0"),
        ("test-cluster/cpu", "1.5"),
        ("test-cluster/cpu", "500m"),
        ("test-cluster/memory", "lots"),
        ("test-cluster/memory", "0"),
        ("test-cluster/memory", "32GB"),
        ("test-cluster/nvidia.com_gpu", "four"),
        ("test-cluster/nvidia.com_gpu", "-1"),
        ("test-cluster/gpu", "1"),
        ("test-cluster/mem_ory.a", "1"),
    ],
)
def test_labels_and_capacity(key: str, value: str) -> None:
    error = refusal(HEADER + TWO % f"labels: {{good: label, '{key}': '{value}'}}")
    assert (error.field, error.value) == (f"nodes[1].labels.{key}", value)


def patched(patch: str, node: str = "") -> str:
    indented = "".join(f"    {line}\n" for line in patch.splitlines())
    if not node:
        return f"{HEADER}kubeadmConfigPatches:\n  - 'kind: KubeletConfiguration'\n  - |\n{indented}"
    nodes = (
        "nodes:\n- role: worker\n- role: control-plane\n"
        if node == "control-plane"
        else "nodes:\n- {}\n- role: worker\n"
    )
    return f"{HEADER}{nodes}  kubeadmConfigPatches:\n  - ''\n  - |\n{indented}"


@pytest.mark.parametrize(
    ("patch", "field", "value"),
    [
        ("apiServer: {}", ".kind", None),
        ("kind: ResetConfiguration", ".kind", "ResetConfiguration"),
        ("kind: [a]", ".kind", ["a"]),
        ("kind: InitConfiguration\napiVersion: kubeadm.k8s.io/v1beta3", ".apiVersion", "kubeadm.k8s.io/v1beta3"),
        ("kind: KubeletConfiguration\napiVersion: {}", ".apiVersion", {}),
        ("kind: ClusterConfiguration\nmetadata: {name: other}", ".metadata", {"name": "other"}),
        ("kind: ClusterConfiguration\nnetworking: {}", ".networking", {}),
        ("kind: ClusterConfiguration\netcd: {local: {}}", ".etcd", {"local": {}}),
        ("kind: ClusterConfiguration\napiServer: {certSANs: [a]}", ".apiServer.certSANs", ["a"]),
        ("kind: ClusterConfiguration\napiServer: {extraVolumes: []}", ".apiServer.extraVolumes", []),
        ("kind: ClusterConfiguration\nscheduler: {extraEnvs: []}", ".scheduler.extraEnvs", []),
        ("kind: ClusterConfiguration\nscheduler: {extraArgs: {v: 4}}", ".scheduler.extraArgs.v", 4),
        ("kind: ClusterConfiguration\nscheduler: {extraArgs: {--v: '4'}}", ".scheduler.extraArgs.--v", "4"),
        ("kind: ClusterConfiguration\nscheduler: {extraArgs: [v]}", ".scheduler.extraArgs", "v"),
        ("kind: ClusterConfiguration\nscheduler: {extraArgs: [{value: a}]}", ".scheduler.extraArgs", {"value": "a"}),
        ("kind: ClusterConfiguration\nscheduler: {extraArgs: v=4}", ".scheduler.extraArgs", "v=4"),
        (
            "kind: ClusterConfiguration\napiVersion: kubeadm.k8s.io/v1beta4\nscheduler: {extraArgs: {v: '4'}}",
            ".scheduler.extraArgs",
            {"v": "4"},
        ),
        ("kind: InitConfiguration\nskipPhases: []", ".skipPhases", []),
        ("kind: InitConfiguration\nlocalAPIEndpoint: {}", ".localAPIEndpoint", {}),
        ("kind: InitConfiguration\npatches: {directory: /patches}", ".patches", {"directory": "/patches"}),
        ("kind: JoinConfiguration\ndiscovery: {}", ".discovery", {}),
        ("kind: JoinConfiguration\nnodeRegistration: {name: a}", ".nodeRegistration.name", "a"),
        ("kind: JoinConfiguration\nnodeRegistration: {taints: a}", ".nodeRegistration.taints", "a"),
        ("kind: JoinConfiguration\nnodeRegistration: {taints: [{key: a}]}", ".nodeRegistration.taints[0]", "effect"),
        (
            "kind: JoinConfiguration\nnodeRegistration: {taints: [{key: a, effect: noSchedule}]}",
            ".nodeRegistration.taints[0].effect",
            "noSchedule",
        ),
        (
            "kind: JoinConfiguration\nnodeRegistration: {taints: [{key: a=b, effect: NoSchedule}]}",
            ".nodeRegistration.taints[0].key",
            "a=b",
        ),
        (
            "kind: JoinConfiguration\nnodeRegistration: {taints: [{key: a, value: b c, effect: NoSchedule}]}",
            ".nodeRegistration.taints[0].value",
            "b c",
        ),
        (
            "kind: JoinConfiguration\nnodeRegistration: {kubeletExtraArgs: {register-with-taints: 'a=b'}}",
            ".nodeRegistration.kubeletExtraArgs.register-with-taints",
            "a=b",
        ),
        (
            "kind: JoinConfiguration\nnodeRegistration: {kubeletExtraArgs: {node-labels: 'a=b,c'}}",
            ".nodeRegistration.kubeletExtraArgs.node-labels",
            "c",
        ),
        (
            "kind: JoinConfiguration\nnodeRegistration: {kubeletExtraArgs: {node-labels: 'test-cluster/cpu=many'}}",
            ".nodeRegistration.kubeletExtraArgs.test-cluster/cpu",
            "many",
        ),
        ("kind: KubeletConfiguration\nmaxpods: 3", ".maxpods", 3),
        ("kind: KubeletConfiguration\ncgroupRoot: /a", ".cgroupRoot", "/a"),
        ("kind: KubeletConfiguration\nregisterWithTaints: []", ".registerWithTaints", []),
        ("kind: KubeProxyConfiguration\nmode: iptables", ".mode", "iptables"),
        ("kind: KubeProxyConfiguration\nmode: [nftables]", ".mode", ["nftables"]),
        ("kind: KubeProxyConfiguration\nclusterCIDR: a", ".clusterCIDR", "a"),
        ("- a", "", ["a"]),
    ],
)
def test_kubeadm_patches(patch: str, field: str, value: object) -> None:
    error = refusal(patched(patch))
    assert (error.field, error.value) == (f"kubeadmConfigPatches[1]{field}", value)


@pytest.mark.parametrize(
    "argument",
    ["advertise-address", "audit-log-path", "client-ca-file", "config", "etcd-servers", "feature-gates", "kubeconfig",
     "runtime-config", "secure-port", "service-cluster-ip-range", "cluster-cidr", "cert-dir", "authorization-config"],
)  # fmt: skip
def test_arguments_that_the_cluster_sets(argument: str) -> None:
    error = refusal(patched(f"kind: ClusterConfiguration\napiServer: {{extraArgs: {{v: '4', {argument}: a}}}}"))
    assert (error.field, error.value) == (f"kubeadmConfigPatches[1].apiServer.extraArgs.{argument}", "a")


@pytest.mark.parametrize(
    ("node", "kind", "remedy"),
    [
        ("control-plane", "JoinConfiguration", "an InitConfiguration"),
        ("worker", "InitConfiguration", "a JoinConfiguration"),
        ("worker", "ClusterConfiguration", "the cluster's own"),
        ("worker", "KubeletConfiguration", "the cluster's own"),
        ("worker", "KubeProxyConfiguration", "the cluster's own"),
    ],
)
def test_a_patch_that_kind_would_pass_over(node: str, kind: str, remedy: str) -> None:
    error = refusal(patched(f"kind: {kind}", node))
    assert (error.field, error.value) == ("nodes[1].kubeadmConfigPatches[1].kind", kind)
    assert remedy in error.remedy


def test_labels_that_kind_would_lose() -> None:
    argument = "{kind: InitConfiguration, nodeRegistration: {kubeletExtraArgs: {node-labels: a=b}}}"
    error = refusal(f"{HEADER}nodes: [{{labels: {{c: d}}}}]\nkubeadmConfigPatches: ['{argument}']")
    assert (error.field, error.value) == ("nodes[0].labels", {"c": "d"})


def test_taints_that_would_replace_each_other() -> None:
    taints = "taints: [{key: a, effect: NoExecute}], kubeletExtraArgs: {register-with-taints: b:NoExecute}"
    error = refusal(patched(f"kind: JoinConfiguration\nnodeRegistration: {{{taints}}}", "worker"))
    assert (error.field, error.value) == ("nodes[1]: register-with-taints", "b:NoExecute")


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("", "", 0),
        ("[]", "", []),
        (f"{HEADER}---\n{HEADER}", "", 2),
        ("kind: Cluster", "", "apiVersion"),
        ("kind: Pod\napiVersion: kind.x-k8s.io/v1alpha4", "kind", "Pod"),
        ("kind: Cluster\napiVersion: kind.sigs.k8s.io/v1alpha3", "apiVersion", "kind.sigs.k8s.io/v1alpha3"),
        (f"{HEADER}name: a\nname: b", "", "line 4"),
        (f"{HEADER}name: [a", "", "line 3"),
        (f"{HEADER}nodes: [{{labels: {{[a]: b}}}}]", "", "line 3"),
        (f"{HEADER}name: '\x07'", "", f"{HEADER}name: '\x07'"),
        (f"{HEADER}kubeadmConfigPatches: ['a: [b']", "kubeadmConfigPatches[0]", "line 1"),
        (f"{HEADER}kubeadmConfigPatches: ['kind: A\n\n\n  kind: B']", "kubeadmConfigPatches[0]", "line 3"),
    ],
)
def test_what_is_no_cluster(text: str, field: str, value: object) -> None:
    error = refusal(text)
    assert (error.field, error.value) == (field, value)


def test_the_whole_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"{HEADER}nodes: [{{extraPortMappings: [{{hostPort: 80}}]}}]")
    with pytest.raises(ClusterError) as caught:
        read(file)
    assert str(caught.value) == (
        f"{file}: nodes[0].extraPortMappings: [{{'hostPort': '80'}}] is not honoured by the test cluster; "
        "remove them: this machine reaches nodes, pods and Services at their addresses"
    )


def test_a_long_value_is_cut() -> None:
    assert len(str(refusal(f"{HEADER}name: {'A' * 1000}"))) < 200


@pytest.mark.parametrize("content", [None, b"\xff"])
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "absent.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ClusterError, match=r"absent\.yaml: cannot be read: .*; name a kind file"):
        read(file)
