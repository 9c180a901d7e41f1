#!/usr/bin/env bash
# Install Tailrace from source, as a user would, with every supported Python that this machine has, and use it.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# On the path, or where pyenv keeps them: its shims stand in the path without an interpreter behind them.
interpreter() {
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python; do
        if "$candidate" -c 'import venv' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
}

found=0
for version in 3.11 3.12 3.13; do
    python=$(interpreter "$version")
    if [ -z "$python" ]; then
        echo "python$version: not on this machine"
        [ "${CI:-}" != true ] || exit 1 # there nothing is left out
        continue
    fi
    "$python" -m venv "$work/$version"
    "$work/$version/bin/pip" install --quiet --disable-pip-version-check --constraint constraints.txt .
    (
        cd "$work"
        printf 'sku-1\t9.99\n' | "$version/bin/tailrace" produce prices --key-separator '\t' --world "world-$version"
        "$version/bin/tailrace" consume prices --format raw --world "world-$version" | grep -qx 9.99
        "$version/bin/tailrace" verify --world "world-$version"
        "$version/bin/python" -c 'import sys, tailrace
with tailrace.open(sys.argv[1]) as world:
    cache = world.cache("c", mode="R=3.2", backends=3)
    cache.set(b"k", b"v")
    assert cache.get(b"k") == b"v"' "world-$version"
    )
    echo "python$version: installed, produced, consumed, verified, cached"
    found=$((found + 1))
done
[ "$found" -gt 0 ] || { echo "none of python3.11, python3.12 and python3.13 is here"; exit 1; }
