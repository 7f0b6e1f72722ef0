#!/usr/bin/env bash
# Builds the wheel, installs it with hashed requirements into a fresh environment, and runs it from there.
#
# Finds files that are missing from the wheel, which an editable install does not. check_wheel.sh VENV [FOLDER] leaves the
# wheel in the folder.
set -euo pipefail

venv=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")/.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$venv/bin/python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$scratch" "$here"
"$venv/bin/python" -m venv --without-pip "$scratch/venv"
pip=("$venv/bin/python" -m pip --quiet --disable-pip-version-check --python "$scratch/venv/bin/python")
"${pip[@]}" install --require-hashes --requirement "$here/requirements/runtime.txt"
"${pip[@]}" install --no-deps "$scratch"/*.whl

cd "$scratch"
"$scratch/venv/bin/python" -I -c '
from importlib.metadata import entry_points
found = {point.name: point for point in entry_points(group="cedana_sched.adapters")}
assert "embedded" in found, f"the wheel offers no embedded adapter: {sorted(found)}"
found["embedded"].load()
'
version=$("$scratch/venv/bin/cedana-sched" --version)
echo "wheel: $version starts from $(basename "$scratch"/*.whl)"
[[ -z ${2-} ]] || cp "$scratch"/*.whl "$2"
