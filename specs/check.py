"""Check the models of this folder: what must hold holds, and each rule that is taken away is missed.

Invariant: a verdict is given only after a complete search, or for a violated assertion or a run that never gets
there. A search that ran out of memory, depth or time is an error, never a verdict. Files are written to a temporary
folder only.

    python specs/check.py                     the small checks and all broken protocols, about two minutes
    python specs/check.py --full              the large checks as well: up to an hour and 9 GB
    python specs/check.py no-fence            only what is named; a broken protocol tells its shortest story
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
QUORUM, LAYERS, SHEETS = "quorum.pml", "layers.pml", "sheets.pml"
TOOLS = ("spin", "gcc")


class SearchError(Exception):
    """The search gave no verdict. Its output is in the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    name: str
    says: str  # what holds; or what goes wrong when the switch is thrown
    switches: str
    model: str = QUORUM
    live: bool = False  # something must come true in every run in which nobody waits who could go on; else: nothing bad
    holds: bool = True
    memory_mb: int = 1500
    table_bits: int = 22  # of the hash table: about as many as the states have
    optimize: str = "-O0"  # compiling takes longer than searching, unless there are many states


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    holds: bool
    states: int
    memory_mb: float
    search_s: float
    story: list[str]  # the shortest way to a violation, one line a step; if it is a run without end, just a way


# One replica that fails, repairs itself, and is replica 0 without loss of generality: the three are alike.
ONE_CRASH = "PULLERS=1 CRASHES=1 FRAGILE=1"
BRIEF = f"VERSIONS=2 {ONE_CRASH} COMPLETED_ONLY"

SMALL = [
    Check(
        name="race",
        says="two of three index entries agree when one mutation races with a GET, repairs or not",
        switches="RACE STOCKED VERSIONS=2 PULLERS=7 DROPPERS=0",
    ),
    Check(
        name="race-first",
        says="the same for the first mutation of a key",
        switches="RACE VERSIONS=1 PULLERS=7 DROPPERS=0",
    ),
    Check(
        name="memory",
        says="what a GET copies from a data slot belongs to the index entry that it read",
        switches="MEMORY VERSIONS=3",
    ),
    Check(
        name="memory-in-place",
        says="the same if entries were written over in place",
        switches="MEMORY VERSIONS=2 IN_PLACE",
    ),
    Check(
        name="mutations",
        says="hits never go back while four mutations race, evictions and lost tombstones included",
        switches="VERSIONS=4",
    ),
    Check(
        name="one-crash",
        says="nor when a replica fails, comes back empty and repairs itself",
        switches=f"VERSIONS=3 {ONE_CRASH}",
        optimize="-O1",
    ),
    Check(
        name="list-in-parts",
        says="nor when a list is not of one moment: keys first, then tombstones, the summary last",
        switches=f"VERSIONS=3 {ONE_CRASH} LIST_IN_PARTS DROPPERS=0",
    ),
    Check(
        name="two-crashes",
        says="nor when two replicas fail, even together",
        switches="VERSIONS=2 PULLERS=3 CRASHES=2 FRAGILE=3 DROPPERS=1",
        optimize="-O1",
    ),
    Check(
        name="cas",
        says="a CAS that anyone can see had nothing between what it expected and itself, crash and repair included",
        switches=f"STOCKED VERSIONS=3 KINDS=7 {ONE_CRASH}",
        optimize="-O1",
    ),
    Check(
        name="layers-lag",
        model=LAYERS,
        says="a consumer gets the bytes that were produced, in order, though replicas lag, sets fail and chunks vanish",
        switches="WRITERS=1",
    ),
    Check(
        name="layers-duel",
        model=LAYERS,
        says="the same with two writers that duel; every read comes as far as it was told, or as the file goes",
        switches="NO_LAG",
    ),
    Check(
        name="layers-span",
        model=LAYERS,
        says="the same for reads over three chunks, with a hole anywhere",
        switches="CHUNKS=3 CHUNK=1 SPAN=3",
        optimize="-O1",
    ),
    Check(
        name="layers-source",
        model=LAYERS,
        says="beside the producer a read comes all the way, and never past what was flushed",
        switches="SOURCE",
        optimize="-O1",
    ),
    Check(
        name="layers-sure",
        model=LAYERS,
        says="nor is anything told that is not there: without losses a read comes all the way in any cluster",
        switches="SURE WRITERS=1 CHUNKS=3 NO_LOSS NO_FAILED_SETS",
        optimize="-O1",
    ),
    Check(
        name="layers-live",
        model=LAYERS,
        says="a consumer gets all bytes in the end, whatever becomes of the cache",
        switches="WRITERS=1",
        live=True,
        optimize="-O1",
    ),
    Check(
        name="layers-live-duel",
        model=LAYERS,
        says="the same while two writers duel without end",
        switches="NO_LAG",
        live=True,
        optimize="-O1",
    ),
    Check(
        name="sheets",
        model=SHEETS,
        says="what a consumer holds, or has copied, are the messages that it found, whoever is killed",
        switches="",
    ),
]

BROKEN = [
    Check(name="read-one", says="a GET believes one replica", switches=f"{BRIEF} BROKEN_READ_ONE", holds=False),
    Check(
        name="late-set",
        says="the floor of a key that is not stored is forgotten",
        switches=f"{BRIEF} BROKEN_LATE_SET",
        holds=False,
    ),
    Check(
        name="eviction-without-summary",
        says="an eviction leaves no trace, as in the paper",
        switches=f"{BRIEF} BROKEN_EVICTION_LEAVES_NO_SUMMARY",
        holds=False,
    ),
    Check(
        name="tombstone-without-summary",
        says="a tombstone that finds no place leaves no trace",
        switches=f"{BRIEF} BROKEN_TOMBSTONE_LEAVES_NO_SUMMARY",
        holds=False,
    ),
    Check(
        name="repair-from-one",
        says="a repair believes one of the other two",
        switches=f"{BRIEF} BROKEN_REPAIR_FROM_ONE",
        holds=False,
    ),
    Check(
        name="repair-ignores-summary",
        says="a repair looks at tombstones only",
        switches=f"{BRIEF} BROKEN_REPAIR_IGNORES_SUMMARY",
        holds=False,
    ),
    Check(
        name="set-drops-tombstone",
        says="keys are listed before tombstones, and a SET between takes the tombstone away",
        switches=f"VERSIONS=3 {ONE_CRASH} DROPPERS=0 COMPLETED_ONLY LIST_IN_PARTS BROKEN_SET_DROPS_TOMBSTONE",
        holds=False,
    ),
    Check(
        name="no-start",
        says="a restarted replica takes any version; instance ids do not help",
        switches=f"{BRIEF} BROKEN_NO_START INSTANCES",
        holds=False,
    ),
    Check(
        name="start-not-listed",
        says="a restarted replica's list looks as if it had never had anything; one failure at a time",
        switches="VERSIONS=2 PULLERS=3 CRASHES=2 FRAGILE=3 DROPPERS=0 COMPLETED_ONLY"
        " REPAIR_BEFORE_NEXT_CRASH BROKEN_START_NOT_LISTED",
        holds=False,
    ),
    Check(
        name="no-fence",
        says="a mutation that was under way when a replica failed completes after that replica's repair",
        switches=f"{BRIEF} BROKEN_NO_FENCE INSTANCES",
        holds=False,
    ),
    Check(
        name="fence-keeps-lists",
        says="a repair goes on with the list of an instance that has failed since",
        switches="VERSIONS=2 PULLERS=3 CRASHES=1 FRAGILE=1 DROPPERS=0 KINDS=1 BROKEN_FENCE_KEEPS_LISTS",
        holds=False,
    ),
    Check(
        name="clock",
        says="a restarted replica's clock is behind what its predecessor applied",
        switches=f"{BRIEF} BROKEN_CLOCK",
        holds=False,
    ),
    Check(
        name="not-revoked",
        says="what a failed instance left behind is read after its successor has begun",
        switches=f"{BRIEF} BROKEN_NOT_REVOKED",
        holds=False,
    ),
    Check(
        name="no-sum",
        says="a GET does not look at the sum",
        switches="MEMORY VERSIONS=2 BROKEN_NO_SUM",
        holds=False,
    ),
    Check(
        name="no-version-check",
        says="a GET does not compare data with index",
        switches="MEMORY VERSIONS=2 BROKEN_NO_VERSION_CHECK",
        holds=False,
    ),
    Check(
        name="cas-spreads",
        says="a repair spreads a CAS that one replica alone has",
        switches="STOCKED VERSIONS=3 KINDS=7 PULLERS=1 BROKEN_CAS_SPREADS",
        holds=False,
    ),
    Check(
        name="cas-by-home",
        says="one replica compares for all three, and has missed what the other two have",
        switches="STOCKED VERSIONS=3 KINDS=7 BROKEN_CAS_BY_HOME",
        holds=False,
    ),
    Check(
        name="plan",
        says="the rules that we began with",
        switches=f"{BRIEF} PLAN",
        holds=False,
    ),
    Check(
        name="push-repair",
        says="the paper's repair, at a new version, races with a SET",
        switches="VERSIONS=3 PUSH_REPAIR",
        holds=False,
    ),
    Check(
        name="push-repair-careful",
        says="the same if it raises only what it has copied",
        switches="VERSIONS=3 PUSH_REPAIR PUSH_CAREFULLY",
        holds=False,
    ),
    Check(
        name="push-repair-race",
        says="the paper's repair makes a third version: a GET that races with one SET finds no two alike",
        switches="RACE STOCKED VERSIONS=3 KINDS=1 DROPPERS=0 PUSH_REPAIR PUSH_CAREFULLY",
        holds=False,
    ),
    Check(
        name="race-of-two",
        says="two SETs at once may leave a GET without two that agree: it asks again",
        switches="RACE STOCKED VERSIONS=3 DROPPERS=0",
        holds=False,
    ),
    Check(
        name="layers-not-from-start",
        model=LAYERS,
        says="after an outage a chunk is written from where the file stands",
        switches="BROKEN_NOT_FROM_START",
        holds=False,
    ),
    Check(
        name="layers-goes-on",
        model=LAYERS,
        says="a writer that missed a byte goes on with the next one in its place",
        switches="BROKEN_GOES_ON",
        holds=False,
    ),
    Check(
        name="layers-two-sizes",
        model=LAYERS,
        says="two writers cut a file into chunks of different sizes",
        switches="BROKEN_TWO_SIZES",
        holds=False,
    ),
    Check(
        name="layers-believes-short",
        model=LAYERS,
        says="a consumer believes that a short chunk is whole",
        switches="BROKEN_BELIEVES_SHORT",
        holds=False,
    ),
    Check(
        name="layers-short-file",
        model=LAYERS,
        says="a consumer believes that the file had all that it was to mend",
        switches="BROKEN_SHORT_FILE",
        holds=False,
    ),
    Check(
        name="layers-length-first",
        model=LAYERS,
        says="a length is told before the bytes are there",
        switches="SURE WRITERS=1 NO_LOSS NO_FAILED_SETS BROKEN_LENGTH_FIRST",
        holds=False,
    ),
    Check(
        name="layers-length-before-flush",
        model=LAYERS,
        says="the same beside the producer: before they are flushed",
        switches="SOURCE BROKEN_LENGTH_FIRST",
        holds=False,
    ),
    Check(
        name="layers-cache-before-flush",
        model=LAYERS,
        says="bytes come to the cache before they are flushed",
        switches="SOURCE BROKEN_CACHE_BEFORE_FLUSH",
        holds=False,
    ),
    Check(
        name="layers-late-too-soon",
        model=LAYERS,
        says="a consumer asks the file for what one replica has lost, although the quorum has it and the file has not",
        switches="SURE WRITERS=1 NO_LOSS NO_FAILED_SETS BROKEN_LATE_TOO_SOON",
        holds=False,
    ),
    Check(
        name="layers-waits-for-cache",
        model=LAYERS,
        says="a consumer turns to the file for what is missing only, not for what nobody tells",
        switches="NO_LAG NO_LOSS WRITERS=1 BROKEN_WAITS_FOR_CACHE",
        live=True,
        holds=False,
    ),
]

# What is checked can happen at all: here the "violation" is that it does.
BROKEN += [
    Check(
        name="sheets-pins-first",
        model=SHEETS,
        says="the producer looks at the pins before it says that it begins anew",
        switches="BROKEN_PINS_FIRST",
        holds=False,
    ),
    Check(
        name="sheets-no-second-look",
        model=SHEETS,
        says="a consumer that holds a sheet does not look whether it is still the same",
        switches="BROKEN_NO_SECOND_LOOK",
        holds=False,
    ),
    Check(
        name="sheets-copies-blindly",
        model=SHEETS,
        says="a consumer that copies does not look again behind the copy",
        switches="BROKEN_COPIES_BLINDLY",
        holds=False,
    ),
]

REACHED = [
    Check(name="reach-held", model=SHEETS, says="a sheet that is held is passed over", switches="REACH=1", holds=False),
    Check(
        name="reach-refused",
        model=SHEETS,
        says="while it is held, its producer tries to begin it anew",
        switches="REACH=2",
        holds=False,
    ),
    Check(
        name="reach-killed", model=SHEETS, says="a consumer is killed that holds it", switches="REACH=3", holds=False
    ),
    Check(
        name="reach-restored",
        says="a GET hits on what a restarted replica got back",
        switches=f"VERSIONS=2 {ONE_CRASH} REACH=1",
        holds=False,
    ),
    Check(
        name="reach-cas-repaired",
        says="a repair brings the third replica a CAS that two have",
        switches="STOCKED VERSIONS=2 KINDS=7 PULLERS=1 REACH=2",
        holds=False,
    ),
    Check(
        name="reach-repair-erases",
        says="a repair takes an erased key away",
        switches="VERSIONS=2 PULLERS=1 REACH=3",
        holds=False,
    ),
    Check(
        name="reach-repair-first",
        says="a repair is faster than the message, and both succeed",
        switches="VERSIONS=2 PULLERS=1 REACH=4",
        holds=False,
    ),
    Check(
        name="reach-clobbered",
        model=LAYERS,
        says="a shorter chunk takes the place of a longer one",
        switches="REACH=1",
        holds=False,
    ),
    Check(
        name="reach-out-of-order",
        model=LAYERS,
        says="a chunk is written before the one below it is full",
        switches="REACH=2",
        holds=False,
    ),
    Check(
        name="reach-jump",
        model=LAYERS,
        says="a writer goes on where the file stands",
        switches="REACH=3",
        holds=False,
    ),
    Check(
        name="reach-length-back",
        model=LAYERS,
        says="a length goes back",
        switches="REACH=4",
        holds=False,
    ),
    Check(
        name="reach-ahead",
        model=LAYERS,
        says="a consumer reads what the file does not have yet",
        switches="REACH=5",
        holds=False,
    ),
    Check(
        name="reach-quorum",
        model=LAYERS,
        says="a quorum has what one replica has not",
        switches="REACH=6",
        holds=False,
    ),
    Check(
        name="reach-mended",
        model=LAYERS,
        says="the file mends a hole below a chunk from the cache",
        switches="REACH=7",
        holds=False,
    ),
    Check(
        name="reach-cut",
        model=LAYERS,
        says="it cannot, so the chunk behind the hole is not handed out",
        switches="REACH=8",
        holds=False,
    ),
]

LARGE = [
    Check(
        name="mutations-5",
        says="five racing mutations",
        switches="VERSIONS=5",
        optimize="-O2",
    ),
    Check(
        name="memory-4",
        says="four mutations, data slots and torn entries",
        switches="MEMORY VERSIONS=4",
        memory_mb=4000,
        table_bits=24,
        optimize="-O2",
    ),
    Check(
        name="one-crash-4",
        says="four mutations and a failure",
        switches=f"VERSIONS=4 {ONE_CRASH}",
        memory_mb=4000,
        table_bits=25,
        optimize="-O2",
    ),
    Check(
        name="one-crash-two-repair",
        says="three mutations, a failure, two replicas that repair themselves at once",
        switches="VERSIONS=3 PULLERS=3 CRASHES=1 FRAGILE=1",
        memory_mb=12000,
        table_bits=27,
        optimize="-O2",
    ),
    Check(
        name="same-twice",
        says="three mutations, and the same replica fails twice",
        switches="VERSIONS=3 PULLERS=1 CRASHES=2 FRAGILE=1",
        memory_mb=4000,
        optimize="-O2",
    ),
    Check(
        name="any-two-crash",
        says="two failures anywhere, all three repair themselves at once",
        switches="VERSIONS=2 PULLERS=7 CRASHES=2 FRAGILE=7",
        memory_mb=12000,
        table_bits=27,
        optimize="-O2",
    ),
    Check(
        name="two-crashes-3",
        says="three mutations, two failures, two replicas that repair themselves at once",
        switches="VERSIONS=3 PULLERS=3 CRASHES=2 FRAGILE=3 DROPPERS=4",
        memory_mb=12000,
        table_bits=26,
        optimize="-O2",
    ),
    Check(
        name="other-keys",
        says="two failures, and summaries that other keys raise",
        switches="VERSIONS=2 PULLERS=3 CRASHES=2 FRAGILE=3 OTHER_KEYS",
        memory_mb=12000,
        table_bits=26,
        optimize="-O2",
    ),
    Check(
        name="list-in-parts-drops",
        says="lists that are not of one moment, and all replicas evict",
        switches=f"VERSIONS=3 {ONE_CRASH} LIST_IN_PARTS",
        memory_mb=4000,
        table_bits=24,
        optimize="-O2",
    ),
    Check(
        name="cas-4",
        says="CAS, SET and ERASE: four mutations and a failure",
        switches=f"STOCKED VERSIONS=4 KINDS=7 {ONE_CRASH}",
        memory_mb=12000,
        table_bits=26,
        optimize="-O2",
    ),
    Check(
        name="cas-two-repair",
        says="CAS with two replicas that repair themselves at once",
        switches="STOCKED VERSIONS=3 KINDS=7 PULLERS=3 CRASHES=1 FRAGILE=1",
        memory_mb=4000,
        table_bits=24,
        optimize="-O2",
    ),
    Check(
        name="layers-2",
        model=LAYERS,
        says="everything with two writers: lag, failures, losses, duels",
        switches="WRITERS=2",
        optimize="-O2",
    ),
    Check(
        name="layers-3-chunks",
        model=LAYERS,
        says="everything with three chunks and one writer",
        switches="CHUNKS=3 WRITERS=1",
        memory_mb=4000,
        table_bits=24,
        optimize="-O2",
    ),
    Check(
        name="layers-live-2",
        model=LAYERS,
        says="all bytes in the end, with everything and two writers",
        switches="WRITERS=2",
        live=True,
        memory_mb=4000,
        table_bits=24,
        optimize="-O2",
    ),
    Check(
        name="layers-3x3x2",
        model=LAYERS,
        says="3 chunks of 3 bytes, 2 writers, reads over two chunks; but no lag, and chunks in order",
        switches="CHUNKS=3 CHUNK=3 NO_LAG IN_ORDER",
        memory_mb=4000,
        table_bits=25,
        optimize="-O2",
    ),
    Check(
        name="layers-4x4x2",
        model=LAYERS,
        says="the paper's first configuration: 4 chunks of 4 bytes, 2 writers; no lag, chunks in order and one by one",
        switches="CHUNKS=4 CHUNK=4 NO_LAG IN_ORDER SPAN=1",
        memory_mb=14000,
        table_bits=27,
        optimize="-O2",
    ),
    Check(
        name="layers-2x2x4",
        model=LAYERS,
        says="the paper's second configuration: 2 chunks of 2 bytes, 4 writers; with everything",
        switches="WRITERS=4",
        memory_mb=12000,
        table_bits=26,
        optimize="-O2",
    ),
]

EVERYTHING = [*SMALL, *BROKEN, *REACHED, *LARGE]


def missing_tools() -> list[str]:
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def command(arguments: list[str], folder: Path, deadline_s: float | None = None) -> str:
    done = subprocess.run(
        arguments, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=deadline_s
    )
    if done.returncode != 0:
        raise SearchError(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    if found is None:
        raise SearchError(f"no {pattern!r} in the search's output:\n{text}")
    return float(found[1])


def story_of(model: str, switches: list[str], folder: Path) -> list[str]:
    """The steps that the model printed on the way to the violation, without what the simulator adds."""
    told = command(["spin", "-t", "-B", "-T", *switches, model], folder)
    lines = [line.strip() for line in told.splitlines() if not line.startswith(("spin: ", "Never claim "))]
    return [line.replace("<<<<<START OF CYCLE>>>>>", "from here on, again and again:") for line in lines if line]


def search(check: Check, deadline_s: float | None = None) -> Verdict:
    """Search breadth first for a violation that is expected, so that its story is the shortest; else depth first."""
    switches = [f"-D{switch}" for switch in [*check.switches.split(), *(["LIVE"] if check.live else [])]]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(FOLDER / check.model, folder)
        command(["spin", "-a", *switches, check.model], folder)
        options = ["-DNOREDUCE", f"-DMEMLIM={check.memory_mb}", *([] if check.live else ["-DSAFETY", "-DNOFAIR"])]
        breadth_first = [] if check.holds or check.live else ["-DBFS"]
        command(["gcc", "-w", check.optimize, *breadth_first, *options, "-o", "pan", "pan.c"], folder)
        began_s = time.monotonic()
        fairly = ["-a", "-f"] if check.live else []
        told = command(["./pan", *fairly, "-m100000", f"-w{check.table_bits}"], folder, deadline_s)
        search_s = time.monotonic() - began_s
        errors = number(r"errors: (\d+)", told)
        if re.search(r"max search depth too small|out of memory|Search not completed", told) and not errors:
            raise SearchError(f"{check.name}: the search is incomplete:\n{told}")
        if errors and ("acceptance cycle" if check.live else "assertion violated") not in told:
            raise SearchError(f"{check.name}: something else than what is checked failed:\n{told}")
        return Verdict(
            holds=not errors,
            states=int(number(r"([\d.e+]+) states, stored", told)),
            memory_mb=number(r"([\d.]+)\s+total actual memory usage", told),
            search_s=search_s,
            story=story_of(check.model, switches, folder) if errors else [],
        )


def report(checks: Iterable[Check], stories: bool) -> bool:
    fine = True
    for check in checks:
        verdict = search(check)
        as_expected = verdict.holds == check.holds
        fine = fine and as_expected
        word = "holds" if verdict.holds else "violated"
        print(
            f"{'ok ' if as_expected else 'BAD'} {check.name:26} {word:8} {verdict.states:>11,} states "
            f"{verdict.memory_mb:>7,.0f} MB {verdict.search_s:>7.1f} s   {check.says}",
            flush=True,
        )
        if verdict.story and (stories or not as_expected):
            print(*(f"        {step}" for step in verdict.story), sep="\n", flush=True)
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(check.name for check in EVERYTHING))
    parser.add_argument("--small", action="store_true", help="what the tests run; the default")
    parser.add_argument("--full", action="store_true", help="everything")
    asked = parser.parse_args()
    if missing := missing_tools():
        print(f"install {' and '.join(missing)} first: apt-get install spin gcc", file=sys.stderr)
        return 2
    known = {check.name: check for check in EVERYTHING}
    if unknown := set(asked.names) - set(known):
        parser.error(f"no check is called {', '.join(sorted(unknown))}")
    if asked.names:
        return 0 if report([known[name] for name in asked.names], stories=True) else 1
    return 0 if report(EVERYTHING if asked.full else [*SMALL, *BROKEN, *REACHED], stories=False) else 1


if __name__ == "__main__":
    sys.exit(main())
