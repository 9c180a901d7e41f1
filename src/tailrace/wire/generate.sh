#!/usr/bin/env bash
# Make the Python messages in generated/ from protos/ again, after a change there. Needs a package index; nothing else
# of Tailrace does, since what this makes is committed. Messages only: which methods there are says methods.py.
#
# The versions are pinned because generated code runs on its own protobuf and the next major one, and refuses older.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check grpcio-tools==1.81.1 protobuf==6.33.6
for proto in $(cd protos && find . -name '*.proto' -printf '%P\n'); do
    "$work/venv/bin/python" -m grpc_tools.protoc -I protos --python_out="$work" --pyi_out="$work" "$proto"
    made="$work/${proto%.proto}_pb2"
    cp "$made.py" "$made.pyi" generated/
    sha256sum "protos/$proto" | cut -d ' ' -f 1 >"generated/$(basename "${proto%.proto}").sha256"
done
