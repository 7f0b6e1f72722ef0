"""What the machines of Armada are made of: a Debian root, Armada's programs and defaults, Pulsar's archives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.armada import components, jars, stores
from tests.cluster.binaries.build import Binaries, ensure
from tests.cluster.debian import root_with
from tests.cluster.machine.machine import Bind
from tests.cluster.steps import Steps
from tests.cluster.together import together

_PACKAGES = ("postgresql-17", "redis-server", "openjdk-21-jre-headless", "socat", "runit", "tini")
PULSAR = Path(__file__).with_name("pulsar-4.0.7.jars")


@dataclass(frozen=True)
class Parts:
    """All of it, as it lies in the cache.

    Args:
        root: the Debian root below every machine.
        binaries: has Armada's programs.
        jars: the folder of Pulsar's archives.
    """

    root: Path
    binaries: Binaries
    jars: Path

    def binds(self, *names: str) -> Sequence[Bind]:
        """What a machine sees that runs these programs."""
        programs = [f"armada-{name}" for name in names]
        return [
            *(Bind(self.binaries.program(name), f"/usr/local/bin/{name}", read_only=True) for name in programs),
            Bind(self.binaries.files(components.TOOL, "config"), f"{components.HOME}/config", read_only=True),
        ]

    def pulsar(self) -> Bind:
        """Pulsar, as the stores expect it."""
        return Bind(self.jars, stores.JARS, read_only=True)


async def ensure_parts(steps: Steps) -> Parts:
    """Return it all, made first where it is missing.

    Raises:
        ClusterError: something cannot be built or fetched.
    """
    root, binaries, archives = await together(
        root_with("armada", _PACKAGES, steps),
        ensure(components.TOOL, steps=steps),
        jars.ensure_jars("pulsar", jars.read(PULSAR.read_text()), steps),
    )
    return Parts(root, binaries, archives)
