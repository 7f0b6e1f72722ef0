"""`make cluster-up`, `cluster-down` and `cluster-logs`; `prepare` builds all that e2e tests need, without a cluster."""

from __future__ import annotations

import argparse
import asyncio
import sys

from tests.cluster import lifetime, settings
from tests.cluster.addons.catalog import ADDONS
from tests.cluster.bring_up import bring_up, prepare
from tests.cluster.errors import ClusterError
from tests.cluster.steps import Steps


def main(arguments: list[str]) -> int:
    """Do what the arguments say; the exit status of the program."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("command", choices=list(_COMMANDS))
    command = parser.parse_args(arguments).command
    try:
        asyncio.run(_COMMANDS[command]())
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("cluster: stopped; nothing half-started is left", file=sys.stderr)
        return 130
    return 0


async def _prepare() -> None:
    await prepare(list(ADDONS), Steps())


async def _up() -> None:
    cluster = await bring_up(settings.kind_config(), settings.cluster_name(), settings.addons(), Steps())
    place = cluster.place
    print(f"kubectl: export KUBECONFIG={cluster.kubeconfig} PATH={place.root / 'bin'}:$PATH")
    print(f"logs:    {place.logs} (make cluster-logs CLUSTER_NAME={place.name})")
    print(f"down:    make cluster-down CLUSTER_NAME={place.name}")


async def _down() -> None:
    name = settings.cluster_name()
    with lifetime.alone(name):
        found = await lifetime.take_down(name)
    print(f"the cluster {name!r} is {'down' if found else 'not up'}", file=sys.stderr)


async def _logs() -> None:
    folder = lifetime.logs_of(settings.cluster_name())
    for log in sorted(folder.glob("*/*.log")):
        print(f"== {log}")
        sys.stdout.writelines(log.read_text(errors="replace").splitlines(keepends=True)[-40:])


_COMMANDS = {"prepare": _prepare, "up": _up, "down": _down, "logs": _logs}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
