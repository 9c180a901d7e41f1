#!/usr/bin/env bash
# Run the tests of the native room and the fuzz driver on an extension built under ASan and UBSan.
#
#   PYTHON=.venv/bin/python tests/native/run_sanitized.sh
#
# Two builds, side by side, each in a temporary copy of the sources, so that the tree itself is left alone:
#   pool    the extension as it is
#   tight   with tight_blocks.c for the pool, so that every block ends where it says it ends
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
python=$(command -v "${PYTHON:-python3}")
case $python in /*) ;; *) python=$PWD/$python ;; esac
fuzz_seconds=20

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The interpreter is not sanitized, so the sanitizer has to be there before it. The C++ library comes along, because the
# sanitizer looks for its exceptions at the start, and pyarrow would bring it later.
preload="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libstdc++.so)"

# Leaks are not looked for: an interpreter keeps thousands of objects to its end and leaves them to the system.
# An allocation that is too large returns nothing instead of ending the process: the tests ask for such.
sanitized() {
    env LD_PRELOAD="$preload" PYTHONMALLOC=malloc PYTHONPATH="$PWD/src" UBSAN_OPTIONS=print_stacktrace=1 \
        ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 "$python" "$@"
}

build() {
    local copy=$1
    mkdir "$copy"
    cp -r "$root/src" "$root/tests" "$root/docs" "$root/setup.py" "$root/pyproject.toml" "$root/README.md" "$copy"
    cd "$copy"
    rm -f src/tailrace/native/_*.c src/tailrace/native/*.so # else older ones may pass for newer
    if [ "$(basename "$copy")" = tight ]; then
        cp tests/native/tight_blocks.c src/tailrace/native/blocks.c
    fi
    # Python's own flags let signed numbers wrap around, which would hide their overflow from UBSan.
    TAILRACE_SANITIZE=1 CFLAGS=-fno-wrapv "$python" setup.py -q build_ext --inplace
}

# What runs is the sanitized extension from the copy, and it notices a read past the end of 64 bytes.
prove_that_it_watches() {
    sanitized - "$PWD" <<'PYTHON'
import sys
from pathlib import Path
from tailrace.native import _cell, _client, _core, _engine
for loaded in map(Path, (_core.__file__, _cell.__file__, _client.__file__, _engine.__file__)):
    assert loaded.is_relative_to(Path(sys.argv[1]).resolve()), f"loaded {loaded}, which is not in {sys.argv[1]}"
    assert b"__asan_report" in loaded.read_bytes(), f"{loaded} is not sanitized"
    print(f"sanitized: {loaded}")
PYTHON
    if sanitized - >overrun.log 2>&1 <<'PYTHON'
import ctypes
from tailrace.native import crc32c
short = (ctypes.c_ubyte * 64)()
crc32c((ctypes.c_ubyte * 128).from_address(ctypes.addressof(short)))
PYTHON
    then
        echo "the sanitizer did not notice a read outside" && return 1
    fi
    if ! grep -q "AddressSanitizer: heap-buffer-overflow" overrun.log; then
        cat overrun.log && return 1
    fi
}

check() {
    local kind=$1 chosen
    build "$work/$kind"
    prove_that_it_watches
    case $kind in
    pool) chosen=(--ignore tests/native/test_hostile.py) ;; # damaged records are for the stricter of the two
    tight) # it has no pool, and cells have none to take away
        chosen=(-k "not pool" --ignore tests/native/cell --ignore tests/native/client --ignore tests/native/engine)
        ;;
    esac
    # With the usual capture, a report of the sanitizer would end in a file that dies with the process.
    sanitized -m pytest --capture=sys -p no:cacheprovider "${chosen[@]}" tests/native
    sanitized tests/fuzz/fuzz_records.py --seconds "$fuzz_seconds"
}

pids=()
for kind in pool tight; do
    (check "$kind") >"$work/$kind.log" 2>&1 &
    pids+=($!)
done
failed=0
for pid in "${pids[@]}"; do
    wait "$pid" || failed=1
done
for kind in pool tight; do
    echo "---- $kind"
    cat "$work/$kind.log"
done
exit "$failed"
