"""Installs the packages of the tests' workloads, and reports unavailable ones; the command of `make packages`.

Tests skip a workload with missing packages, with a message; other tests are not affected.
"""

from __future__ import annotations

import sys

from workloads.catalog import WORKLOADS
from workloads.packages import PackageError


def main() -> int:
    for name, workload in WORKLOADS.items():
        missing = workload.packages.missing()
        if not missing:
            continue
        print(f"packages: installing {' '.join(missing)} for {name}", file=sys.stderr)
        try:
            workload.packages.install()
        except PackageError as error:
            print(f"packages: {error}; the tests leave {name} out", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
