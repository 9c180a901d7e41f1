"""The rooms of the design: imports go downwards only, heavy dependencies stay in their room, doors are small."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace

SOURCE = Path(tailrace.__file__).parent

# Level by level, lowest first. Rooms of one level do not import each other.
LEVELS = [
    {"model", "errors", "config"},
    {"native", "wire", "env"},
    {"files", "cache", "coordination"},
    {"streams", "copytree"},
    {"queues", "pubsub", "pipeline"},
    {"node"},
]
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
WITHIN_LOWEST = {"model": {"errors"}, "config": {"errors", "model"}, "errors": set[str]()}
HEAVY = {
    "grpc": {"wire"},
    "google": {"wire"},
    "pyspark": {"pipeline"},
    "apsw": {"coordination"},
    "typer": {"node"},
    "rich": {"node"},
}


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute module) of every import in a file, those inside functions too."""
    package = ["tailrace", *path.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, node.module] if node.module else base)
            if module == "tailrace":
                for alias in node.names:
                    yield node.lineno, f"tailrace.{alias.name}"
            else:
                yield node.lineno, module


def room_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).parts
    return parts[0].removesuffix(".py")


MODULES = sorted(path for path in SOURCE.rglob("*.py"))


def test_every_room_has_a_level() -> None:
    rooms = {room_of(path) for path in MODULES} - {"__init__", "__main__", "testing"}
    assert rooms <= set(LEVEL), f"rooms without a level: {rooms - set(LEVEL)}"


def test_imports_go_downwards_only() -> None:
    wrong = []
    for path in MODULES:
        room = room_of(path)
        if room in ("__init__", "__main__"):
            continue
        for line, module in imports(path):
            parts = module.split(".")
            if parts[0] != "tailrace" or len(parts) < 2 or parts[1] == room:
                continue
            other = parts[1]
            if room == "testing":
                allowed = LEVEL.get(other, 99) <= 1
            elif other == "testing":
                allowed = False
            elif room in WITHIN_LOWEST:
                allowed = other in WITHIN_LOWEST[room]
            else:
                allowed = LEVEL.get(other, 99) < LEVEL[room]
            if not allowed:
                wrong.append(f"{path.relative_to(SOURCE.parent)}:{line} imports {module}")
    assert not wrong, "\n".join(wrong)


def test_heavy_dependencies_stay_in_their_room() -> None:
    wrong = [
        f"{path.relative_to(SOURCE.parent)}:{line} imports {module}"
        for path in MODULES
        for line, module in imports(path)
        if room_of(path) not in HEAVY.get(module.split(".")[0], {room_of(path)})
    ]
    assert not wrong, "\n".join(wrong)


def test_the_lowest_level_needs_the_standard_library_only() -> None:
    import sys

    for path in MODULES:
        if room_of(path) in LEVELS[0]:
            for line, module in imports(path):
                root = module.split(".")[0]
                assert root == "tailrace" or root in sys.stdlib_module_names, f"{path.name}:{line} imports {module}"


DOORS = {
    "tailrace.pipeline.spark": "TailraceDataSource register session",
    "tailrace.pipeline": "Pipeline PipelineConfig Sink Source into_stream parquet postgres_table sqlite_table stream",
    "tailrace": "Batch CacheClientConfig CacheConfig Consumer ConsumerConfig Message Producer ProducerConfig Retention "
    "Snapshot StreamConfig TailraceError View World WorldConfig errors open",
    "tailrace.files": "Appender Claim FileLength Files PosixFiles View WARM_BYTES",
    "tailrace.streams": "Ambassador Appended Batch Board Catalog Checked Checkpoints Collected Consumer Delays "
    "FileRange Finding Layers Lodging Monitor Moves NearChunks NearLengths NearWatch Nearby OnChange Outlook Output "
    "PERCENTILES SHARDS_MAX Patience Producer Shadow ShardLog ShardStatus ShardTail SheetPaths Showing Snapshot "
    "SnapshotStatus Snapshots Source Stage Start TransactionName Transactions View Watch arrow_schema begin_sheets "
    "collect complete_stale cut_positions discard file_ranges find_position newest next_cut read_arrow read_range "
    "verify_shard",
    "tailrace.env": "Clock Disk Identity Randomness SystemClock SystemDisk SystemRandomness give_way",
    "tailrace.wire": "ByteRange FileBytes FilesPeer FilesService Listing NewestSegment RANGES_MAX READ_BYTES_MAX Reach "
    "ShardSight Sight BLOCK_HASH_BYTES Blocks CheckPeer CheckService HASHED_BYTES_MAX HASHES_MAX Held Holding "
    "block_hash Admit Answer AttachReply Authorize BackendPeer BackendService Batch CopyCall CopyPeer "
    "CopyService DigestReply Engine EtcdCompare EtcdDelete EtcdGet EtcdOperation EtcdPeer EtcdPut "
    "EtcdRefused EtcdWatch FetchPart HASH_BYTES KeyValue ListPart LookupReply MutateReply Opening "
    "Operation Order Orders Piece RangeReply Report Running Server Shared Standing StatsReply "
    "Storage TICKET_BYTES TouchReply TxnReply Version WatchEvent WatchPart WorkCall WorkService "
    "serve serve_copies",
    "tailrace.cache": "AsyncCache Backend BackendRecord Cache CacheRecord Changes Peer Registry Standing Tenure "
    "Version Watch Ways",
    "tailrace.model": "Cluster CopyTree Demand Hop Link MessageFile Sizes Tariff WorldMap check_name",
    "tailrace.copytree": "CacheSource CacheTarget Compared Comparison Difference DurableSource "
    "DurableTarget FilesCheck Reader ReaderLink Route Router "
    "RouterConfig Scheduler Sending Source StreamSettings Target WorldFollower WorldState Writer change_map load "
    "publish_trees report score set_map",
    "tailrace.copytree.routing": "Alternative Blame CaughtUp ClusterReported ClusterSilent Conditions Load PRICE_ONLY "
    "Patience Plan Planner Preferences PublishTree Reason Rerouting Tick WorldChanged blame explain "
    "refuges",
    "tailrace.testing": "Fault FaultyDisk ManualClock SeededRandomness SimulatedCrash SimulatedDisk "
    "VirtualClock VirtualNetwork VirtualTime WideArea",
}


def test_spark_is_imported_in_one_place() -> None:
    places = {path.relative_to(SOURCE).parts[:2] for path in MODULES for _, name in imports(path) if "pyspark" in name}
    assert places == {("pipeline", "spark")}


@pytest.mark.parametrize("module", DOORS)
def test_the_doors_are_pinned(module: str) -> None:
    """A name that appears here is a promise to users: add it on purpose, and to the changelog."""
    assert sorted(importlib.import_module(module).__all__) == sorted(DOORS[module].split())


def test_importing_tailrace_is_light() -> None:
    """Command line, Arrow and gRPC are loaded when they are used: who only sends bytes does not wait for them."""
    import subprocess
    import sys

    heavy = {"pyarrow", "typer", "rich", "grpc", "google"}
    script = f"import sys, tailrace, tailrace.wire; print({heavy} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert loaded == "set()\n"
