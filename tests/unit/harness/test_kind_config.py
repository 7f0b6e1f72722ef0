from ipaddress import IPv4Network
from pathlib import Path

import pytest

from tests.cluster.kind_config.merge_patch import merge
from tests.cluster.kind_config.reading import parse, read
from tests.cluster.kind_config.shape import Capacity, ClusterShape, Mount, NodeShape, Taint

KIND_CONFIGS = Path(__file__).resolve().parents[3] / "kind-configs"
HEADER = "kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\n"
ON_CONTROL_PLANES = {
    "node-role.kubernetes.io/control-plane": "",
    "node.kubernetes.io/exclude-from-external-load-balancers": "",
}
CONTROL_PLANE_TAINT = Taint("node-role.kubernetes.io/control-plane", "", "NoSchedule")
NO_CAPACITY = Capacity(None, None, {})


def shape(text: str) -> ClusterShape:
    return parse(HEADER + text)


def own_labels(node: NodeShape) -> dict[str, str]:
    return {key: value for key, value in node.labels.items() if key not in ON_CONTROL_PLANES}


def patch(text: str, *, where: str = "") -> str:
    """`kubeadmConfigPatches` with one patch; `where` is the indentation."""
    return f"{where}kubeadmConfigPatches:\n{where}- |\n" + "".join(f"{where}  {line}\n" for line in text.splitlines())


# kind's documentation: "Configuration"


def test_the_minimal_config_is_one_node_without_a_taint() -> None:
    one = shape("")
    assert one == ClusterShape(
        name=None,
        nodes=(
            NodeShape(
                name_suffix="control-plane",
                role="control-plane",
                labels={"node-role.kubernetes.io/control-plane": ""},
                taints=(),
                mounts=(),
                kubelet_configuration={},
                kubelet_arguments={},
                capacity=NO_CAPACITY,
            ),
        ),
        pod_subnet=IPv4Network("10.244.0.0/16"),
        service_subnet=IPv4Network("10.96.0.0/16"),
        api_server_port=None,
        feature_gates={},
        runtime_config={},
        api_server_arguments={},
        controller_manager_arguments={},
        scheduler_arguments={},
        kube_proxy_mode="nftables",
        kube_proxy_configuration={},
        containerd_patches=(),
    )


def test_names_gates_and_apis() -> None:
    found = shape("""
name: app-1-cluster
featureGates: {"CSIMigration": true, "Other": false}
runtimeConfig: {"api/alpha": "false", "apps/v1beta2": true}
""")
    assert found.name == "app-1-cluster"
    assert found.feature_gates == {"CSIMigration": True, "Other": False}
    assert found.runtime_config == {"api/alpha": "false", "apps/v1beta2": "true"}


def test_networking() -> None:
    found = shape("""
networking:
  ipFamily: ipv4
  apiServerAddress: "127.0.0.1"
  apiServerPort: 6443
  podSubnet: "10.10.0.0/16"
  serviceSubnet: "10.96.0.0/12"
  disableDefaultCNI: false
  kubeProxyMode: "nftables"
""")
    assert found.api_server_port == 6443
    assert (found.pod_subnet, found.service_subnet) == (IPv4Network("10.10.0.0/16"), IPv4Network("10.96.0.0/12"))


@pytest.mark.parametrize("port", [-1, 0])
def test_a_port_that_kind_chooses_is_chosen_here_as_well(port: int) -> None:
    assert shape(f"networking: {{apiServerPort: {port}}}").api_server_port is None


def test_one_control_plane_and_three_workers() -> None:
    nodes = shape("nodes: [{role: worker}, {role: control-plane}, {role: worker}, {role: worker}]").nodes
    assert [node.name_suffix for node in nodes] == ["worker", "control-plane", "worker2", "worker3"]
    assert [node.taints for node in nodes] == [(), (CONTROL_PLANE_TAINT,), (), ()]
    assert [dict(node.labels) for node in nodes] == [{}, ON_CONTROL_PLANES, {}, {}]


def test_an_image_of_the_same_kubernetes_is_honoured() -> None:
    assert shape(f"nodes: [{{image: 'kindest/node:v1.36.1@sha256:{'0a' * 32}'}}]") == shape("")


def test_extra_mounts() -> None:
    (node,) = shape("""
nodes:
- role: control-plane
  extraMounts:
  - hostPath: /path/to/my/files
    containerPath: /files
  - hostPath: other-files
    containerPath: /other-files
    readOnly: true
    selinuxRelabel: false
    propagation: None
""").nodes
    assert node.mounts == (
        Mount(Path("/path/to/my/files"), "/files", read_only=False),
        Mount(Path.cwd() / "other-files", "/other-files", read_only=True),
    )


def test_extra_labels() -> None:
    nodes = shape("nodes: [{}, {role: worker, labels: {tier: frontend, gpu: true, zone: 08}}]").nodes
    assert nodes[1].labels == {"tier": "frontend", "gpu": "true", "zone": "08"}


def test_an_init_configuration_labels_the_control_plane() -> None:
    (node,) = shape("""
nodes:
- role: control-plane
  kubeadmConfigPatches:
  - |
    kind: InitConfiguration
    nodeRegistration:
      kubeletExtraArgs:
        node-labels: "my-label=true"
""").nodes
    assert own_labels(node) == {"my-label": "true"}
    assert node.kubelet_arguments == {}


def test_a_cluster_configuration_sets_arguments_of_the_control_plane() -> None:
    found = shape("""
nodes:
- role: control-plane
  kubeadmConfigPatches:
  - |
    kind: ClusterConfiguration
    apiServer:
        extraArgs:
          enable-admission-plugins: NodeRestriction,MutatingAdmissionWebhook
    controllerManager: {extraArgs: [{name: v, value: "4"}]}
    scheduler: {extraArgs: {v: "5"}}
""")
    assert found.api_server_arguments == {"enable-admission-plugins": "NodeRestriction,MutatingAdmissionWebhook"}
    assert (found.controller_manager_arguments, found.scheduler_arguments) == ({"v": "4"}, {"v": "5"})


def test_a_join_configuration_taints_a_worker() -> None:
    nodes = shape("""
name: test
nodes:
- role: control-plane
- role: worker
  kubeadmConfigPatches:
    - |
      kind: JoinConfiguration
      nodeRegistration:
        kubeletExtraArgs:
          register-with-taints: "my-taint=presence:NoSchedule,bare:NoExecute"
""").nodes
    assert nodes[0].taints == (CONTROL_PLANE_TAINT,)
    assert nodes[1].taints == (Taint("my-taint", "presence", "NoSchedule"), Taint("bare", "", "NoExecute"))
    assert nodes[1].kubelet_arguments == {}


def test_a_kubelet_configuration_reaches_all_nodes() -> None:
    nodes = shape(
        patch('apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nevictionHard: {a: "0%", b: "1"}')
        + "nodes:\n- role: worker\n- role: control-plane\n"
        + patch("kind: KubeletConfiguration\nmaxPods: 7\nevictionHard: {b: null}", where="  ")
    ).nodes
    assert [node.kubelet_configuration for node in nodes] == [{"evictionHard": {"a": "0%"}, "maxPods": 7}] * 2


# what the documentation does not show


def test_patches_of_the_cluster_come_before_those_of_a_node_and_each_finds_its_nodes() -> None:
    nodes = shape("""
kubeadmConfigPatches:
- |
  kind: JoinConfiguration
  nodeRegistration: {kubeletExtraArgs: {v: "1", max-pods: "9"}, taints: [{key: all, effect: NoExecute}]}
  ---
  apiVersion: kubeadm.k8s.io/v1beta4
  kind: InitConfiguration
  metadata: {name: config}
  nodeRegistration: {kubeletExtraArgs: [{name: v, value: "2"}, {name: node-labels, value: "a=b,c="}]}
nodes:
- role: control-plane
- role: worker
- role: worker
  kubeadmConfigPatches:
  - '{kind: JoinConfiguration, nodeRegistration: {kubeletExtraArgs: {v: "3", max-pods: null}, taints: null}}'
""").nodes
    assert [node.kubelet_arguments for node in nodes] == [{"v": "2"}, {"v": "1", "max-pods": "9"}, {"v": "3"}]
    assert [node.taints for node in nodes] == [(CONTROL_PLANE_TAINT,), (Taint("all", "", "NoExecute"),), ()]
    assert own_labels(nodes[0]) == {"a": "b", "c": ""}


@pytest.mark.parametrize(
    ("registration", "taints"),
    [
        ("{taints: []}", ()),
        ("{taints: null}", (CONTROL_PLANE_TAINT,)),
        ("{taints: [{key: a.b/c, value: d, effect: PreferNoSchedule}]}", (Taint("a.b/c", "d", "PreferNoSchedule"),)),
        (
            "{kubeletExtraArgs: {register-with-taints: 'a:NoExecute'}}",
            (CONTROL_PLANE_TAINT, Taint("a", "", "NoExecute")),
        ),
    ],
)
def test_taints_of_a_control_plane_beside_a_worker(registration: str, taints: tuple[Taint, ...]) -> None:
    text = "nodes: [{role: control-plane}, {role: worker}]\n"
    assert shape(text + patch(f"kind: InitConfiguration\nnodeRegistration: {registration}")).nodes[0].taints == taints


def test_a_node_alone_loses_the_control_planes_taint_and_no_other() -> None:
    taints = "[{key: node-role.kubernetes.io/control-plane, effect: NoExecute}, {key: mine, effect: NoExecute}]"
    (node,) = shape(patch(f"kind: InitConfiguration\nnodeRegistration: {{taints: {taints}}}")).nodes
    assert node.taints == (Taint("mine", "", "NoExecute"),)


def test_a_kube_proxy_configuration_is_merged() -> None:
    first, second = "mode: nftables\nconntrack: {maxPerCore: 0}", "mode: null\nconntrack: {min: 1}"
    text = patch(f"kind: KubeProxyConfiguration\n{first}\n---\nkind: KubeProxyConfiguration\n{second}")
    assert shape(text).kube_proxy_configuration == {"conntrack": {"maxPerCore": 0, "min": 1}}


def test_labels_set_the_capacity_and_stay_labels() -> None:
    labels = {
        "test-cluster/cpu": "64",
        "test-cluster/memory": "1.5Gi",
        "test-cluster/nvidia.com_gpu": "4",
        "test-cluster/example.com_left_handed": "0",
    }
    (node,) = shape(f"nodes: [{{labels: {labels}}}]").nodes
    assert node.capacity == Capacity(64, 3 << 29, {"nvidia.com/gpu": 4, "example.com/left_handed": 0})
    assert own_labels(node) == labels


def test_capacity_is_read_from_the_kubelets_argument_as_well() -> None:
    argument = "nodeRegistration: {kubeletExtraArgs: {node-labels: test-cluster/cpu=3}}"
    assert shape(patch(f"kind: InitConfiguration\n{argument}")).nodes[0].capacity == Capacity(3, None, {})


@pytest.mark.parametrize(
    "label",
    ["topology.kubernetes.io/zone", "node.kubernetes.io/mine", "kubernetes.io/arch", "example.com/kubernetes.io"],
)
def test_labels_that_a_kubelet_may_set(label: str) -> None:
    assert shape(f"nodes: [{{labels: {{{label}: a}}}}]").nodes[0].labels[label] == "a"


@pytest.mark.parametrize("field", ["nodes", "networking", "featureGates", "kubeadmConfigPatches", "name"])
def test_a_field_without_a_value_is_absent(field: str) -> None:
    assert shape(f"{field}:\n") == shape("")


def test_anchors_and_merge_keys_are_yaml() -> None:
    nodes = shape("nodes: [{role: control-plane, labels: &l {a: b}}, {role: worker, labels: {<<: *l, c: d}}]").nodes
    assert nodes[1].labels == {"a": "b", "c": "d"}


# RFC 7386, appendix A
@pytest.mark.parametrize(
    ("target", "change", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patches(target: object, change: object, result: object) -> None:
    assert merge(target, change) == result


# the files that people start the cluster with


@pytest.mark.parametrize(
    ("name", "suffixes", "open_to_all"),
    [
        ("one-node", ["control-plane"], 1),
        ("two-nodes", ["control-plane", "worker"], 2),
        ("gpu-node", ["control-plane", "worker", "worker2"], 2),
        ("kueue", ["control-plane", "worker"], 2),
        ("volcano", ["control-plane", "worker"], 2),
    ],
)
def test_the_files_are_what_their_names_say(name: str, suffixes: list[str], open_to_all: int) -> None:
    nodes = read(KIND_CONFIGS / f"{name}.yaml").nodes
    assert [node.name_suffix for node in nodes] == suffixes
    assert sum(not node.taints for node in nodes) == open_to_all


def test_every_file_is_read_and_says_that_kind_reads_it_as_well() -> None:
    files = sorted(KIND_CONFIGS.iterdir())
    assert {file.name for file in files} >= {"one-node.yaml", "two-nodes.yaml", "gpu-node.yaml", "kueue.yaml"}
    for file in files:
        assert read(file).nodes
        assert (
            f"# The same file works with: kind create cluster --config kind-configs/{file.name}\n" in file.read_text()
        )


def test_the_gpu_node() -> None:
    node = read(KIND_CONFIGS / "gpu-node.yaml").nodes[2]
    assert node.taints == (Taint("nvidia.com/gpu", "present", "NoSchedule"),)
    assert node.labels["nvidia.com/gpu.present"] == "true"
    assert node.capacity == Capacity(None, None, {"nvidia.com/gpu": 4})


@pytest.mark.parametrize("name", ["kueue", "volcano"])
def test_quotas_do_not_depend_on_the_machine(name: str) -> None:
    nodes = read(KIND_CONFIGS / f"{name}.yaml").nodes
    assert [node.capacity for node in nodes] == [Capacity(8, 16 << 30, {})] * 2


def test_kueues_flavors() -> None:
    nodes = read(KIND_CONFIGS / "kueue.yaml").nodes
    assert [node.labels["cloud.provider.com/node-group"] for node in nodes] == ["on-demand", "spot"]
