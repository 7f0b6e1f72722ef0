import tomllib
from typing import Any

import pytest

from tests.cluster.kind_config.containerd import for_version_2, read_patches
from tests.cluster.kind_config.refusal import RefusedFieldError

IMAGES, RUNTIME, CRI = "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri"

RUNTIME_3 = """
[plugins."io.containerd.cri.v1.runtime"]
  enable_cdi = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/opt/cni/bin"]
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.cedana]
      runtime_type = "io.containerd.runc.v2"
      sandboxer = "podsandbox"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.cedana.options]
        BinaryName = "/usr/local/bin/cedana-runtime"
"""
RUNTIME_2 = """
[plugins."io.containerd.grpc.v1.cri"]
  enable_cdi = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.cedana]
      runtime_type = "io.containerd.runc.v2"
      sandbox_mode = "podsandbox"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.cedana.options]
        BinaryName = "/usr/local/bin/cedana-runtime"
"""
IMAGES_3 = """
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "native"
  max_concurrent_downloads = 5
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "registry.k8s.io/pause:3.10"
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "/etc/containerd/certs.d"
"""
IMAGES_2 = """
[plugins."io.containerd.grpc.v1.cri"]
  max_concurrent_downloads = 5
  sandbox_image = "registry.k8s.io/pause:3.10"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "/etc/containerd/certs.d"
"""
STREAMING = '[plugins."io.containerd.grpc.v1.cri"]\nstream_idle_timeout = "1h"\n'


@pytest.mark.parametrize(("three", "two"), [(RUNTIME_3, RUNTIME_2), (IMAGES_3, IMAGES_2)])
def test_version_3_becomes_version_2(three: str, two: str) -> None:
    expected = {"version": 2, **tomllib.loads(two)}
    assert for_version_2(tomllib.loads(three)) == expected
    assert for_version_2(tomllib.loads(f"version = 3\n{three}")) == expected


@pytest.mark.parametrize("two", [RUNTIME_2, IMAGES_2, f"version = 2\n{IMAGES_2}", "", "[grpc]\ngid = 1", STREAMING])
def test_version_2_is_left_alone(two: str) -> None:
    assert for_version_2(tomllib.loads(two)) == tomllib.loads(two)


@pytest.mark.parametrize("three", [RUNTIME_3, IMAGES_3])
def test_a_translation_is_left_alone(three: str) -> None:
    once = for_version_2(tomllib.loads(three))
    assert for_version_2(once) == once


def test_the_two_plugins_of_version_3_meet_the_one_of_version_2() -> None:
    text = 'version = 3\n[debug]\nlevel = "debug"\n' + RUNTIME_3 + IMAGES_3 + STREAMING
    found = for_version_2(tomllib.loads(text + '[plugins."io.containerd.snapshotter.v1.overlayfs"]\nroot_path = "/o"'))
    cri = found["plugins"][CRI]
    assert cri["stream_idle_timeout"] == "1h"
    assert cri["containerd"].keys() == {"default_runtime_name", "runtimes", "snapshotter"}
    assert found["plugins"]["io.containerd.snapshotter.v1.overlayfs"] == {"root_path": "/o"}
    assert found["debug"] == {"level": "debug"}


@pytest.mark.parametrize(
    ("patch", "field"),
    [
        ({"plugins": {RUNTIME: {"cgroup_writable": True}}}, f'plugins."{RUNTIME}".cgroup_writable'),
        ({"plugins": {RUNTIME: {"cni": {"bin_dirs": ["/a", "/b"]}}}}, f'plugins."{RUNTIME}".cni.bin_dirs'),
        (
            {"plugins": {RUNTIME: {"containerd": {"runtimes": {"runc": {"io_type": "streaming"}}}}}},
            f'plugins."{RUNTIME}".containerd.runtimes.runc.io_type',
        ),
        ({"plugins": {RUNTIME: {"containerd": "runc"}}}, f'plugins."{RUNTIME}".containerd'),
        ({"plugins": {IMAGES: {"use_local_image_pull": True}}}, f'plugins."{IMAGES}".use_local_image_pull'),
        ({"plugins": {IMAGES: {"pinned_images": {"other": "a"}}}}, f'plugins."{IMAGES}".pinned_images.other'),
        ({"plugins": {"io.containerd.cri.v1.other": {}}}, 'plugins."io.containerd.cri.v1.other"'),
        (
            {"version": 3, "plugins": {"io.containerd.transfer.v1.local": {}}},
            'plugins."io.containerd.transfer.v1.local"',
        ),
        ({"plugins": {"cri": {"sandbox_image": "a"}}}, 'plugins."cri"'),
        ({"plugins": {CRI: True}}, f'plugins."{CRI}"'),
        ({"plugins": "cri"}, "plugins"),
        ({"version": 3, "disabled_plugins": ["a"]}, "disabled_plugins"),
        ({"version": 1}, "version"),
        ({"version": [2]}, "version"),
    ],
)
def test_what_containerd_1_7_does_not_have_is_refused_by_name(patch: dict[str, Any], field: str) -> None:
    with pytest.raises(RefusedFieldError) as caught:
        for_version_2(patch, "containerdConfigPatches[3]")
    assert caught.value.field == f"containerdConfigPatches[3].{field}"
    assert caught.value.remedy


def test_of_two_patches_for_two_versions_ours_is_taken() -> None:
    ours, any_version = "version = 2\n" + IMAGES_2, RUNTIME_3
    unknown_to_us = "version = 3\n[plugins.'io.containerd.transfer.v1.local']"
    assert read_patches([unknown_to_us, ours, any_version]) == (
        tomllib.loads(ours),
        {"version": 2, **tomllib.loads(RUNTIME_2)},
    )
    with pytest.raises(RefusedFieldError, match=r"containerdConfigPatches\[0\]"):
        read_patches([unknown_to_us, any_version])


def test_what_is_not_toml_is_refused() -> None:
    with pytest.raises(RefusedFieldError, match=r"^containerdConfigPatches\[1\]: .* is not TOML: .*line 1"):
        read_patches(["", "a = ?"])
