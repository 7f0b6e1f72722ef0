#!/usr/bin/env bash
# Installs missing Debian packages, quietly, from the lists in the files given as arguments.
#
# A list has one package per line; '#' starts a comment. A line that begins with '?' names an optional package: if it
# is unavailable, that is reported and is no error. Installing requires root.
set -euo pipefail

installed() {
    dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed
}

install() {
    DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends "$@" >/dev/null
}

required=() optional=()
while read -r name _; do
    if [[ $name == \?* ]]; then
        installed "${name#\?}" || optional+=("${name#\?}")
    elif [[ -n $name && $name != \#* ]]; then
        installed "$name" || required+=("$name")
    fi
done < <(cat -- "$@")
[[ ${#required[@]} -eq 0 && ${#optional[@]} -eq 0 ]] && exit 0

if [[ $(id -u) -ne 0 ]]; then
    echo "packages: missing ${required[*]} ${optional[*]} (run as root, or install them by hand)" >&2
    [[ ${#required[@]} -eq 0 ]] && exit 0
    exit 1
fi
echo "packages: installing ${required[*]} ${optional[*]}" >&2
apt-get update --quiet=2 >/dev/null
if [[ ${#required[@]} -gt 0 ]]; then install "${required[@]}"; fi
for name in "${optional[@]}"; do
    install "$name" || echo "packages: $name cannot be installed here; what needs it is left out and says so" >&2
done
