"""`make cluster-up`, `cluster-down` and `cluster-logs`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

from tests.cluster import lifetime
from tests.cluster.bring_up import bring_up
from tests.cluster.errors import ClusterError
from tests.cluster.place import check_name
from tests.cluster.steps import Steps

_DEFAULT_KIND_CONFIG = "kind-configs/two-nodes.yaml"


def main(arguments: list[str]) -> int:
    """Do what the arguments say; the exit status of the program."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("command", choices=["up", "down", "logs"])
    command = parser.parse_args(arguments).command
    name = os.environ.get("CLUSTER_NAME") or None
    try:
        asyncio.run({"up": _up, "down": _down, "logs": _logs}[command](name))
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("cluster: stopped; nothing half-started is left", file=sys.stderr)
        return 130
    return 0


async def _up(name: str | None) -> None:
    kind_config = Path(os.environ.get("KIND_CONFIG") or _DEFAULT_KIND_CONFIG)
    addons = os.environ.get("ADDONS", "").split()
    cluster = await bring_up(kind_config, name, addons, Steps())
    named = f" CLUSTER_NAME={name}" if name else ""
    print(f"kubectl: export KUBECONFIG={cluster.kubeconfig} PATH={cluster.place.root / 'bin'}:$PATH")
    print(f"logs:    {cluster.place.logs} (make cluster-logs{named})")
    print(f"down:    make cluster-down{named}")


async def _down(name: str | None) -> None:
    name = check_name(name or "test")
    with lifetime.alone(name):
        found = await lifetime.take_down(name)
    print(f"the cluster {name!r} is {'down' if found else 'not up'}", file=sys.stderr)


async def _logs(name: str | None) -> None:
    place = lifetime.place_of_running(check_name(name or "test"))
    for log in sorted(place.logs.glob("*/*.log")):
        print(f"== {log}")
        sys.stdout.writelines(log.read_text(errors="replace").splitlines(keepends=True)[-40:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
