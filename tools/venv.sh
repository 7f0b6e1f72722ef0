#!/usr/bin/env bash
# Creates a virtual environment at the given path: hashed requirements, then this project, editable.
#
# PYTHON names the interpreter; the default is the first python3 (3.11 or newer) in PATH.
set -euo pipefail

venv=$1
here=$(cd "$(dirname "$0")/.." && pwd)

usable() {
    command -v "$1" >/dev/null && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

choose_python() {
    local candidate
    for candidate in "${PYTHON:-python3}" python3.13 python3.12 python3.11 /usr/bin/python3; do
        if usable "$candidate"; then echo "$candidate"; return; fi
    done
    return 1
}

if ! python=$(choose_python); then
    "$here/tools/packages.sh" "$here/tools/python-packages.txt"
    python=$(choose_python) || { echo "venv: no Python 3.11 or newer found (set PYTHON=/path/to/python3)" >&2; exit 1; }
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    "$here/tools/packages.sh" "$here/tools/python-packages.txt"
fi

[[ -x $venv/bin/python ]] || "$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip --quiet --disable-pip-version-check)
"${pip[@]}" install --require-hashes --requirement "$here/requirements/dev.txt"
# The build backend is among the hashed requirements, so nothing is fetched unpinned for the build.
"${pip[@]}" install --no-deps --no-build-isolation --editable "$here"
