"""`python -m tests.cluster.binaries [NAME…]`: build the test cluster's tools by hand and say where they lie."""

from __future__ import annotations

import argparse
import asyncio
import sys

from tests.cluster.binaries.build import ensure
from tests.cluster.binaries.catalog import TOOLS
from tests.cluster.errors import ClusterError
from tests.cluster.steps import Steps


def main() -> int:
    """Build what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.binaries", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TOOLS)}; all without")
    names = parser.parse_args().names or list(TOOLS)
    try:
        binaries = asyncio.run(ensure(*names, steps=Steps()))
    except ClusterError as error:
        print(f"binaries: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    for folder in binaries.folders.values():
        print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
