"""One cell and several threads, which take turns by the cell's own lock."""

import threading
from contextlib import contextmanager

from tailrace.native.cell import CellView, Outcome

from .places import folder, small_cell

TURNS = 400


@contextmanager
def threads(*roles):
    """Run them all; what any of them raised is raised here."""
    failures: list[BaseException] = []

    def guarded(role):
        try:
            role()
        except BaseException as failure:
            failures.append(failure)

    running = [threading.Thread(target=guarded, args=(role,)) for role in roles]
    for thread in running:
        thread.start()
    yield
    for thread in running:
        thread.join()
    if failures:
        raise failures[0]


def test_threads_take_turns():
    with folder() as path:
        cell = small_cell(path, slabs=64, buckets=1)

        def writing(name):
            for number in range(TURNS):
                key = b"%s %d" % (name, number)
                assert cell.set(key, key * 50, (1 + number, 0, 0)) == Outcome.APPLIED
                assert cell.get(key, 0) == (key * 50, (1 + number, 0, 0))
                if number % 3 == 0:
                    assert cell.erase(key, (1 + number, 0, 1)) == Outcome.APPLIED

        def looking():
            for number in range(40):
                cell.collect(0, 1000)
                cell.configure(number)
                for key, value, _, _ in cell.items():
                    assert value == key * 50
                assert len({hash for hash, _ in cell.hashes()}) <= 3 * TURNS
                assert len(cell.tombstones()) <= cell.stats()["tombstones"]

        names = [b"a", b"b", b"c"]
        with threads(*(lambda name=name: writing(name) for name in names), looking):
            pass
        expected = {b"%s %d" % (name, number) for name in names for number in range(TURNS) if number % 3}
        assert {key for key, *_ in cell.items()} == expected
        assert len(cell.hashes()) == cell.stats()["records"] == len(expected)
        view = CellView(path)
        found = view.get_many(sorted(expected), 0)
        assert [answer and answer[0] for answer in found] == [
            None if number in view.hints else key * 50 for number, key in enumerate(sorted(expected))
        ]


def test_a_cell_may_be_closed_under_its_users():
    for _ in range(20):
        with folder() as path:
            cell, closed = small_cell(path), []

            def using(name, cell=cell, closed=closed):
                try:
                    for number in range(100_000):
                        cell.set(b"%s %d" % (name, number % 50), bytes(3000), (1 + number, 0, 0))
                        cell.get(name, 0)
                        cell.collect(0, 10)
                except ValueError as refusal:
                    closed.append(str(refusal))

            with threads(lambda: using(b"a"), lambda: using(b"b")):
                cell.close()
                cell.close()
            assert closed == [f"the cell in {path} is closed"] * 2
