"""Fuzz both sides of one-sided reads between hosts: an engine that hears nonsense, and a link whose engine talks it.

    python tests/fuzz/fuzz_engine.py --seconds 20 --seed 7

Frames are made, damaged (bytes anywhere; odd numbers in a field; pieces left out, doubled, swapped), and sent in odd
pieces. Whatever comes, an engine answers in whole frames with true entries or hangs up, and serves others; a link
answers with the true value or none, or breaks. The cases run in a child, so that even one that ends the process is
named: the last lines of a failure say how to run that case alone.
"""

import argparse
import mmap
import os
import select
import socket
import struct
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]  # for the model of the frames, which is in the tests of the native room

from native.cell.places import folder  # noqa: E402
from native.client.frames import Mutation, parsed, written  # noqa: E402
from native.engine.frames import (  # noqa: E402
    ANSWER,
    DATA,
    INDEX,
    MUTATE,
    PING,
    READ,
    SCAN,
    WRONG,
    Answer,
    Fetched,
    HungUp,
    Peer,
    Range,
    Scanned,
    Welcome,
    hello,
)
from native.engine.liar import KEY, VALUE, VERSION, Asked, Liar, Truth, learn_truth  # noqa: E402
from native.engine.served import roomy_cell, served, ticket_for  # noqa: E402
from tailrace.native.cell import key_hash  # noqa: E402
from tailrace.native.engine import Engine, Link  # noqa: E402

_PROGRESS = struct.Struct("<q")  # what runs now, seen by the parent even when the child is gone
ODD = [0, 1, 2, 7, 8, 40, 48, 63, 64, 65, 255, 2**15, 2**16 - 1, 2**18, 2**20, 2**31, 2**32 - 8, 2**32 - 1]
ODD_WIDE = [*ODD, 2**32, 2**63, 2**64 - 8, 2**64 - 1]
STORED = {b"key %d" % number: bytes([number]) * (37 * number * number) for number in range(24)}
HASHES = [key_hash(key) for key in STORED]


# ---- damage


def damage(random: Random, content: bytes) -> bytes:
    result = bytearray(content)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(result) + 1)
        match random.randrange(7):
            case 0 if at < len(result):
                result[at] ^= 1 << random.randrange(8)
            case 1:
                result[at : at + 1] = random.randbytes(random.randrange(3))
            case 2:
                del result[at:]
            case 3:
                result[at:at] = random.randbytes(random.randint(1, 30))
            case 4:
                result[at // 8 * 8 : at // 8 * 8 + 8] = struct.pack("<Q", random.choice(ODD_WIDE))
            case 5:
                result[at // 4 * 4 : at // 4 * 4 + 4] = struct.pack("<I", random.choice(ODD))
            case _:
                other = random.randrange(len(result) + 1)
                result[at : at + 8] = result[other : other + 8]
    return bytes(result)


def pieces(random: Random, content: bytes) -> list[bytes]:
    cuts = sorted(random.randrange(len(content) + 1) for _ in range(random.choice([0, 0, 1, 3])))
    return [content[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(content)], strict=True)]


# ---- an engine that hears nonsense


class EngineCases:
    def __init__(self, stack: ExitStack) -> None:
        cell, self.engine = stack.enter_context(served(buckets=256))
        for number, (key, value) in enumerate(STORED.items()):
            cell.set(key, value, (number + 1, 0, 0))
        self.good = Peer(self.engine.address, ticket_for(self.engine))
        stack.callback(self.good.close)
        self.entries = {item.offset: item for item in self.good.scan(HASHES)}
        self.index = (Path(cell.folder) / f"index.{self.good.welcome.generation}").read_bytes()

    def run(self, random: Random) -> None:
        if random.randrange(8) == 0:
            self.greet(random)
        else:
            self.ask(random)
        assert [item.version[0] for item in self.good.scan(HASHES[:3])] == [1, 2, 3], "others are served"

    def greet(self, random: Random) -> None:
        content = damage(random, hello(ticket_for(self.engine)))
        with Peer(self.engine.address) as peer:
            for part in pieces(random, content):
                try:
                    peer.send(part)
                except HungUp:
                    break
            peer.socket.shutdown(socket.SHUT_WR)
            heard = hear(peer)
        assert len(heard) % 8 == 0
        if heard:
            status = Welcome.unpack(heard[:72]).status
            assert status <= 4
            assert status == 0 or len(heard) == 72

    def request(self, random: Random, peer: Peer) -> bytes:
        kind = random.choice([PING, SCAN, SCAN, READ, READ])
        count = random.choice([1, 2, 5, 30, 300])
        more = {"now_s": random.choice(ODD), "data_bytes_max": random.choice([0, 100, 1 << 20, 2**32 - 1])}
        if random.randrange(6) == 0:
            more[random.choice(["instance", "config_id"])] = random.choice(ODD_WIDE)
        if kind == SCAN:
            return peer.request(kind, random.choices([*HASHES, bytes(16), b"\xff" * 16], k=count), **more)
        if kind == READ:
            return peer.request(kind, [self.range(random, peer.welcome).pack() for _ in range(count)], **more)
        return peer.request(kind, [], **more)

    def range(self, random: Random, welcome: Welcome) -> Range:
        entry = random.choice(list(self.entries.values()))
        return Range(
            random.choice([INDEX, DATA, DATA, random.choice(ODD)]),
            random.choice([entry.size, entry.size, random.choice(ODD)]),
            random.choice([welcome.generation, welcome.instance, random.choice(ODD_WIDE)]),
            random.choice([entry.offset, len(self.index) - 8, welcome.reserved - 8, random.choice(ODD_WIDE)]),
            random.choice(HASHES),
        )

    def ask(self, random: Random) -> None:
        with Peer(self.engine.address, ticket_for(self.engine)) as peer:
            stream = b"".join(self.request(random, peer) for _ in range(random.randint(1, 4)))
            if random.randrange(4):
                stream = damage(random, stream)
            for part in pieces(random, stream):
                try:
                    peer.send(part)
                except HungUp:
                    break
            if random.randrange(3):  # what it did not understand so far waits for the rest, and that never comes
                peer.socket.shutdown(socket.SHUT_WR)
                self.check(hear(peer), peer)

    def check(self, heard: bytes, peer: Peer) -> None:
        """Whole frames, but for the last one, whose engine may have hung up in the middle of it."""
        at = 0
        while len(heard) - at >= ANSWER.size:
            (size,) = struct.unpack_from("<I", heard, at)
            assert ANSWER.size <= size <= peer.welcome.answer_bytes_max
            if at + size > len(heard):
                return
            for item in Answer.unpack(heard[at : at + size]).items:
                if isinstance(item, Scanned) and item.raw:
                    assert item == self.entries[item.offset]
                if isinstance(item, Fetched) and item.raw:
                    raws = [entry.raw for entry in self.entries.values()]
                    assert item.raw in raws or item.raw in self.index
            at += size


def hear(peer: Peer) -> bytes:
    """All that comes until the engine hangs up."""
    heard = bytearray()
    while True:
        assert select.select([peer.socket], [], [], 60)[0], "the engine neither answers nor hangs up"
        try:
            part = peer.socket.recv(1 << 20)
        except ConnectionResetError:
            return bytes(heard)
        if not part:
            return bytes(heard)
        heard += part


# ---- an engine that is to change what it does not understand


class MutationCases:
    def __init__(self, stack: ExitStack) -> None:
        path = stack.enter_context(folder())
        cell = roomy_cell(path)
        stack.callback(cell.close)
        self.engine = stack.enter_context(Engine(path, mutator=cell.mutator(2**62), request_bytes_max=1 << 20))
        self.clock = 0

    def run(self, random: Random) -> None:
        """A frame that the model can read is applied, another one is refused, and the link goes on in both cases."""
        with Peer(self.engine.address, ticket_for(self.engine)) as peer:
            for _ in range(random.randint(1, 4)):
                frame = written([self.mutation(random) for _ in range(random.choice([0, 1, 3, 40]))])
                frame = damage(random, frame) if random.randrange(3) else frame
                answer = peer.mutate(frame)
                try:
                    mutations = parsed(frame)
                except ValueError:
                    assert (answer.status, answer.floor) == (WRONG, (0, 0, 0))
                else:
                    assert (answer.status, len(answer.raw)) == (0, len(mutations))
                    assert all(outcome <= 5 for outcome in answer.raw)
            peer.send(damage(random, peer.request(MUTATE, [frame])))
            peer.socket.shutdown(socket.SHUT_WR)
            hear(peer)

    def mutation(self, random: Random) -> Mutation:
        self.clock += 1
        kind = random.choice([1, 1, 2, 3])
        value = b"" if kind == 3 else bytes(random.choice([0, 1, 50, 9000]))
        version = (random.choice([self.clock, random.choice(ODD_WIDE)]), 1, 2)
        return Mutation(kind, b"key %d" % random.randrange(50), value, version, expiry_s=random.choice(ODD))


# ---- a link whose engine talks nonsense


class LinkCases:
    def __init__(self, stack: ExitStack) -> None:
        self.truth: Truth = learn_truth()
        self.random = Random(0)
        self.liar = Liar(b"", self.says)
        stack.callback(self.liar.close)

    def run(self, random: Random) -> None:
        self.random = random
        welcome = self.truth.welcome.pack()
        self.liar.welcome = damage(random, welcome) if random.randrange(10) == 0 else welcome
        try:
            with Link(*self.liar.address, bytes(32), 10.0) as link:
                for _ in range(random.randint(1, 3)):
                    keys = [random.choice([KEY, KEY, b"another"]) for _ in range(random.choice([1, 2, 9]))]
                    most = random.choice([0, 1 << 20])
                    answers = link.read(keys, 0) if random.randrange(2) else link.scan(keys, 0, most)
                    for key, (_, value, version) in zip(keys, answers, strict=True):
                        assert value is None or (key, value, version) == (KEY, VALUE, VERSION)
        except TimeoutError:
            raise AssertionError("the link waits for what cannot come any more") from None
        except OSError:
            return

    def says(self, asked: Asked) -> Iterator[bytes]:
        """A right answer; or one in which something is not right, and then the end."""
        if self.random.randrange(3) == 0:
            yield from pieces(self.random, self.truth.answer(asked).pack())
        else:
            yield from pieces(self.random, self.wrong(asked))
            raise EOFError

    def wrong(self, asked: Asked) -> bytes:
        random, answer = self.random, self.truth.answer(asked)
        first, *others = answer.items or (Scanned(3),)
        match random.randrange(5):
            case 0:
                field = random.choice(["kind", "status", "tag", "instance", "config_id", "generation", "first"])
                most = 2**16 if field in ("kind", "status") else 2**32 if field == "first" else 2**64
                return changed(answer, field, random.choice(ODD_WIDE) % most).pack()
            case 1:
                items = list(answer.items)
                at = random.randrange(len(items) + 1)
                items[at : at + 1] = items[:1] * random.randrange(3)
                return replace(answer, items=tuple(items)).pack()
            case 2 if asked.kind == SCAN:
                fields = {"state": 2**16, "offset": 2**64, "size": 2**32, "expiry_s": 2**32}
                field = random.choice(list(fields))
                first = changed(self.truth.found, field, random.choice(ODD_WIDE) % fields[field])
                return replace(answer, items=(first, *others)).pack()
            case 3:
                raw, found = damage(random, self.truth.found.raw), self.truth.found
                first = replace(found, raw=raw, size=len(raw)) if asked.kind == SCAN else Fetched(0, raw)
                return replace(answer, items=(first, *others)).pack()
            case _:
                return damage(random, answer.pack())


def changed(frame: Any, field: str, number: int) -> Any:
    return replace(frame, **{field: number})


# ---- running


Cases = EngineCases | MutationCases | LinkCases


def run_case(random: Random, kinds: Sequence[Cases]) -> None:
    random.choice(kinds).run(random)


def main() -> int:
    options = _options()
    progress = mmap.mmap(-1, _PROGRESS.size)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _run(options, progress)
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return 0
    if code < 0:
        print(f"ended by signal {-code}", file=sys.stderr)
    again = f"--seed {options.seed} --only {_PROGRESS.unpack(progress[:])[0]}"
    print(f"failed; again with: python tests/fuzz/fuzz_engine.py {again}", file=sys.stderr)
    return 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to make cases")
    parser.add_argument(
        "--seed", type=int, default=time.time_ns() % 2**32, help="decides every case; printed at the end"
    )
    parser.add_argument("--only", type=int, help="run the case of this number alone")
    return parser.parse_args()


def _run(options: argparse.Namespace, progress: mmap.mmap) -> None:
    with ExitStack() as stack:
        engine = EngineCases(stack)
        kinds = [engine, engine, MutationCases(stack), LinkCases(stack), LinkCases(stack)]
        if options.only is not None:
            progress[:] = _PROGRESS.pack(options.only)
            run_case(Random(f"{options.seed}/{options.only}"), kinds)
            return
        begin_s, cases = time.monotonic(), 0
        while (took_s := time.monotonic() - begin_s) < options.seconds:
            progress[:] = _PROGRESS.pack(cases)
            run_case(Random(f"{options.seed}/{cases}"), kinds)
            cases += 1
        _report(cases, took_s, options.seed, engine.engine)


def _report(cases: int, took_s: float, seed: int, engine: Engine) -> None:
    rate = f"{cases} cases in {took_s:.1f} s, {cases / max(took_s, 1e-9):.0f} cases per second"
    malformed = engine.stats()["closed_malformed"]
    print(f"{rate}, {malformed} links ended for nonsense, seed {seed}: no failure")


if __name__ == "__main__":
    sys.exit(main())
