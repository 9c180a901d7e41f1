#!/usr/bin/env bash
# Threads that change a cell and threads that read it, in one process, under a sanitizer that watches threads.
#
#   tests/native/run_tsan.sh [ROUNDS]
#
# Fences are not among what the sanitizer understands, and it warns of them. Here they order words that are atomics, and
# those it understands: docs/decisions/cell-memory.md says what is left for it to find.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
native=$root/src/tailrace/native
rounds=${1:-15000}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sources=(checksum hash cell_column cell_folder cell_ghosts cell_hash cell_index cell_probe cell_recency cell_slab
    cell_store cell_sum cell_tombs cell_view)
sources=("${sources[@]/#/$native/}")
sources=("${sources[@]/%/.c}")

build() {
    gcc -std=c17 -O1 -g -fsanitize=thread -Wall -Wextra -Werror -Wno-tsan -I"$native" \
        -Dmmap=race_mmap -Dmunmap=race_munmap "${@:2}" -o "$work/$1" \
        "$root/tests/native/cell/race.c" "${sources[@]}" -lpthread
}

# Addresses are not drawn at random where that may be asked for: the sanitizer's own memory has a place that must be free.
fixed=(setarch "$(uname -m)" --addr-no-randomize)
"${fixed[@]}" true 2>/dev/null || fixed=()

run() {
    mkdir "$work/folder.$1"
    TSAN_OPTIONS=halt_on_error=1 "${fixed[@]}" "$work/$1" "$work/folder.$1" "$2"
}

build careful &
build careless -DCARELESS &
wait %1
wait %2

if run careless "$rounds" >"$work/careless.log" 2>&1; then
    echo "the sanitizer did not notice a plain load from shared memory" && exit 1
fi
grep -q "ThreadSanitizer: data race" "$work/careless.log" || { cat "$work/careless.log" && exit 1; }
run careful "$rounds"
echo "no race"
