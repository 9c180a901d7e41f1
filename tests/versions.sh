#!/usr/bin/env bash
# Install Tailrace from source, as a user would, with every supported Python that this machine has, and use it. All of
# them side by side, each from a copy of the sources: a build leaves its traces in them.
set -eu
cd "$(dirname "$0")/.."
root=$PWD
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

try() {
    local version=$1 python=$2 here="$work/$1"
    mkdir "$here"
    cp -r "$root/src" "$root/setup.py" "$root/pyproject.toml" "$root/constraints.txt" "$root/README.md" "$here"
    rm -f "$here"/src/tailrace/native/_*.c "$here"/src/tailrace/native/*.so # those of another one are none of ours
    cd "$here"
    "$python" -m venv venv
    venv/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt .
    mkdir use && cd use # not where the sources are
    printf 'sku-1\t9.99\n' | ../venv/bin/tailrace produce prices --key-separator '\t' --world world
    ../venv/bin/tailrace consume prices --format raw --world world | grep -qx 9.99
    ../venv/bin/tailrace verify --world world
    ../venv/bin/python -c 'import tailrace
with tailrace.open("world") as world:
    cache = world.cache("c", mode="R=3.2", backends=3)
    cache.set(b"k", b"v")
    assert cache.get(b"k") == b"v"'
    echo "python$version: installed, produced, consumed, verified, cached"
}

pids=()
for version in 3.11 3.12 3.13; do
    python=$(interpreter "$version")
    if [ -z "$python" ]; then
        echo "python$version: not on this machine"
        [ "${CI:-}" != true ] || exit 1 # there nothing is left out
        continue
    fi
    (try "$version" "$python") >"$work/$version.log" 2>&1 &
    pids+=($!)
done
[ "${#pids[@]}" -gt 0 ] || { echo "none of python3.11, python3.12 and python3.13 is here"; exit 1; }
failed=0
for pid in "${pids[@]}"; do
    wait "$pid" || failed=1
done
cat "$work"/*.log
exit "$failed"
