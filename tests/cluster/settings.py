"""What the environment says about the cluster that is wanted: KIND_CONFIG, CLUSTER_NAME, ADDONS, KEEP."""

from __future__ import annotations

import os
from pathlib import Path

from tests.cluster.kind_config.reading import read
from tests.cluster.place import check_name


def kind_config() -> Path:
    """The file that says its shape."""
    return Path(os.environ.get("KIND_CONFIG") or "kind-configs/two-nodes.yaml")


def cluster_name() -> str:
    """What it is called: CLUSTER_NAME, or the file's `name`, or "test".

    Raises:
        ClusterError: the name cannot be borne, or the file not read.
    """
    return check_name(os.environ.get("CLUSTER_NAME") or read(kind_config()).name or "test")


def addons() -> list[str]:
    """What is installed when it comes up."""
    return os.environ.get("ADDONS", "").split()


def is_kept() -> bool:
    """Whether tests leave it up."""
    return bool(os.environ.get("KEEP"))
