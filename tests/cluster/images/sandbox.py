"""The image of pod sandboxes: a program that only waits, so that a pod's namespaces live as long as the pod."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.cache import cache_dir, digest, fresh_log, made_once
from tests.cluster.commands import run
from tests.cluster.images.archive import BinaryImage, ensure_binary_image
from tests.cluster.steps import Steps

SANDBOX_IMAGE = "localhost/test/pause:dev"
"""What containerd's `sandbox_image` has to name."""

_MODULE = Path(__file__).resolve().parents[1] / "tools" / "pause"


async def ensure_sandbox_image(steps: Steps) -> Path:
    """Return the archive of `SANDBOX_IMAGE`, built first where it is missing.

    Raises:
        ClusterError: the Go program cannot be built.
    """
    sources = {name: (_MODULE / name).read_text(encoding="utf-8") for name in ("go.mod", "main.go")}

    async def make(partial: Path) -> None:
        with steps.step("sandbox program"):
            await run(
                "go", "build", "-trimpath", "-ldflags=-s -w", "-o", partial, ".",
                cwd=_MODULE, env={"CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}, log=fresh_log("pause.log"),
                what=f"building {_MODULE} failed", remedy="check that `go version` works",
            )  # fmt: skip

    program = await made_once(cache_dir() / "images" / f"pause-{digest(sources)}", make)
    return await ensure_binary_image(BinaryImage(SANDBOX_IMAGE, {"/pause": program}, ["/pause"]))
