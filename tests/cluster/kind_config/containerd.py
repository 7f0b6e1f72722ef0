"""`containerdConfigPatches` for containerd 1.7, whose configuration has version 2.

People write for containerd 2 as well, whose version 3 splits the one CRI plugin in two. containerd's own migration
(plugins/cri/{images,runtime}/plugin.go) says which setting went where; this module goes the other way.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tests.cluster.kind_config.merge_patch import merge
from tests.cluster.kind_config.refusal import RefusedFieldError, field_path

_FIELD: Final = "containerdConfigPatches"
_CRI = "io.containerd.grpc.v1.cri"  # in version 3 it keeps the settings of the streaming server
_SPLIT = "io.containerd.cri.v1."
_SAME_PLUGINS = (_CRI, "io.containerd.gc.v1.", "io.containerd.nri.v1.", "io.containerd.snapshotter.v1.")
_SAME_TABLES = {"debug", "metrics", "oom_score", "plugins", "proxy_plugins", "stream_processors", "timeouts", "version"}

_Path = tuple[str, ...]


def _kept(words: str, *before: str) -> dict[_Path, _Path]:
    return {(*before, word): (*before, word) for word in words.split()}


_MOVES: Mapping[str, Mapping[_Path, _Path]] = {
    f"{_SPLIT}images": {
        **_kept("image_decryption image_pull_progress_timeout image_pull_with_sync_fs max_concurrent_downloads"),
        **_kept("registry stats_collect_period"),
        ("disable_snapshot_annotations",): ("containerd", "disable_snapshot_annotations"),
        ("discard_unpacked_layers",): ("containerd", "discard_unpacked_layers"),
        ("snapshotter",): ("containerd", "snapshotter"),
        ("pinned_images", "sandbox"): ("sandbox_image",),
    },
    f"{_SPLIT}runtime": {
        **_kept("cdi_spec_dirs device_ownership_from_security_context disable_apparmor disable_cgroup"),
        **_kept("disable_hugetlb_controller disable_proc_mount drain_exec_sync_io_timeout enable_cdi enable_selinux"),
        **_kept("enable_unprivileged_icmp enable_unprivileged_ports ignore_deprecation_warnings"),
        **_kept("ignore_image_defined_volumes max_container_log_line_size netns_mounts_under_state_dir"),
        **_kept("restrict_oom_score_adj selinux_category_range tolerate_missing_hugetlb_controller"),
        **_kept("unset_seccomp_profile"),
        **_kept("bin_dir conf_dir conf_template ip_pref max_conf_num setup_serially", "cni"),
        **_kept("default_runtime_name ignore_blockio_not_enabled_errors ignore_rdt_not_enabled_errors", "containerd"),
        **_kept("base_runtime_spec cni_conf_dir cni_max_conf_num container_annotations", "containerd", "runtimes", "*"),
        **_kept("options pod_annotations privileged_without_host_devices", "containerd", "runtimes", "*"),
        **_kept("privileged_without_host_devices_all_devices_allowed", "containerd", "runtimes", "*"),
        **_kept("runtime_path runtime_type snapshotter", "containerd", "runtimes", "*"),
        ("containerd", "runtimes", "*", "sandboxer"): ("containerd", "runtimes", "*", "sandbox_mode"),
    },
}


def read_patches(texts: Sequence[str]) -> tuple[Mapping[str, Any], ...]:
    """All patches of a kind file, for version 2.

    Where one of them says `version = 2`, those that say another are the same for other nodes and not for ours.

    Raises:
        RefusedFieldError: one of them is not TOML, or says what containerd 1.7 does not know.
    """
    patches = []
    for index, text in enumerate(texts):
        try:
            patches.append(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            problem = f"is not TOML: {error}"
            raise RefusedFieldError(f"{_FIELD}[{index}]", text, problem, remedy="correct it there") from error
    passed_over = 3 if any(patch.get("version") == 2 for patch in patches) else None
    return tuple(
        for_version_2(patch, f"{_FIELD}[{index}]")
        for index, patch in enumerate(patches)
        if passed_over is None or patch.get("version") != passed_over
    )


def for_version_2(patch: Mapping[str, Any], field: str = _FIELD) -> Mapping[str, Any]:
    """A patch as containerd 1.7 reads it; one of version 2 comes back as it is.

    Args:
        patch: the TOML document.
        field: what errors begin with.

    Raises:
        RefusedFieldError: it sets what containerd 1.7 does not have.
    """
    version, plugins = patch.get("version", 2), patch.get("plugins", {})
    if version not in (2, 3):
        raise RefusedFieldError(
            f"{field}.version", version, "is no version of today", remedy="write for version 2 or 3"
        )
    if not isinstance(plugins, Mapping):
        raise RefusedFieldError(
            f"{field}.plugins", plugins, "is no table", remedy='write [plugins."PLUGIN"] and its settings'
        )
    for plugin, settings in plugins.items():
        where = field_path(field, "plugins", f'"{plugin}"')
        if not plugin.startswith("io.containerd.") or not isinstance(settings, Mapping):
            raise RefusedFieldError(
                where, settings, "belongs to no plugin", remedy=f'write [plugins."{_CRI}"] and its settings'
            )
    if version == 2 and not any(plugin.startswith(_SPLIT) for plugin in plugins):
        return patch
    translated: dict[str, Any] = {}
    for table, value in patch.items():
        if table not in _SAME_TABLES:
            problem = "is not honoured: it need not mean the same for containerd 1.7"
            raise RefusedFieldError(
                f"{field}.{table}", value, problem, remedy="remove it, or write the patch for version 2"
            )
        if table not in {"plugins", "version"}:
            translated[table] = value
    return {**translated, "version": 2, "plugins": _plugins(plugins, field)}


def _plugins(plugins: Mapping[str, Any], field: str) -> dict[str, Any]:
    translated: dict[str, Any] = {}
    for plugin, settings in plugins.items():
        where = field_path(field, "plugins", f'"{plugin}"')
        if plugin in _MOVES:
            for path, value in _moved(_MOVES[plugin], settings, where):
                for key in reversed((_CRI, *path)):
                    value = {key: value}  # noqa: PLW2901 - wrapped from the inside out
                translated = merge(translated, value)
        elif plugin.startswith(_SAME_PLUGINS):
            translated = merge(translated, {plugin: settings})
        else:
            raise RefusedFieldError(where, settings, "belongs to no plugin of containerd 1.7", remedy="remove it")
    return translated


def _moved(
    moves: Mapping[_Path, _Path], settings: Mapping[str, Any], where: str, above: _Path = ()
) -> Iterator[tuple[_Path, Any]]:
    """Every setting with its place in the CRI plugin of version 2."""
    for key, value in settings.items():
        path = (*above, key)
        known = (*path[:2], "*", *path[3:]) if path[2:] and path[:2] == ("containerd", "runtimes") else path
        here = field_path(where, key)
        if path == ("cni", "bin_dirs") and isinstance(value, list) and len(value) == 1:
            yield ("cni", "bin_dir"), value[0]
        elif known in moves:
            yield tuple(path[2] if part == "*" else part for part in moves[known]), value
        elif isinstance(value, Mapping) and any(known == source[: len(known)] for source in moves):
            yield from _moved(moves, value, here, path)
        else:
            raise RefusedFieldError(here, value, "has no equivalent in containerd 1.7", remedy="remove it")
