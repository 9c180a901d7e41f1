"""A link whose engine lies, stutters, stops or hangs up: a clear error or no answer, and never a wrong value."""

import errno
import signal
import socket
import struct
import threading
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import wait_until
from tailrace.native.engine import Link, State

from ..strategies import PATIENT
from .frames import ANSWER, ANSWERED, CHANGED_HANDS, FOUND, MALFORMED, MISS, PING, REVOKED, Fetched, Scanned
from .liar import KEY, VALUE, VERSION, Liar, learn_truth, link_to_liar, resized
from .served import link_to, served

TRUTH = learn_truth()
RIGHT = (State.HIT, VALUE, VERSION)


def test_a_well_behaved_server_is_believed():
    with link_to_liar(TRUTH, lambda asked: [TRUTH.answer(asked).pack()]) as link:
        assert link.scan([KEY] * 3, 0) == [RIGHT] * 3
        assert link.scan([KEY], 0, 0) == [(State.FOUND, None, VERSION)]
        assert link.read([KEY] * 2, 0) == [RIGHT] * 2


def test_answers_in_any_pieces_are_the_same():
    def byte_by_byte(asked):
        content = TRUTH.answer(asked).pack()
        return [content[at : at + 1] for at in range(len(content))]

    def item_by_item(asked):
        for number in range(len(asked.items)):
            item = TRUTH.answer(asked).items[:1]
            yield TRUTH.answer(asked, first=number, items=item).pack()

    for says in (byte_by_byte, item_by_item):
        with link_to_liar(TRUTH, says) as link:
            assert link.scan([KEY] * 3, 0) == link.read([KEY] * 3, 0) == [RIGHT] * 3


def scanned(**other):
    return (replace(TRUTH.found, **other),)


def with_zero(content, at):
    return content[:at] + b"\1" + content[at + 1 :]


LIES = {
    "another tag": lambda asked: [TRUTH.answer(asked, tag=asked.tag + 1).pack()],
    "another kind": lambda asked: [TRUTH.answer(asked, kind=PING, items=()).pack()],
    "an unknown kind": lambda asked: [TRUTH.answer(asked, kind=9, items=()).pack()],
    "an unknown status": lambda asked: [TRUTH.answer(asked, status=3, items=()).pack()],
    "not from the first item": lambda asked: [TRUTH.answer(asked, first=1).pack()],
    "no items": lambda asked: [TRUTH.answer(asked, items=()).pack()],
    "too many items": lambda asked: [TRUTH.answer(asked, items=scanned() * 2).pack()],
    "another instance, but answered": lambda asked: [TRUTH.answer(asked, instance=1).pack()],
    "another configuration, but answered": lambda asked: [TRUTH.answer(asked, config_id=1).pack()],
    "changed hands, but the same": lambda asked: [TRUTH.answer(asked, status=CHANGED_HANDS, items=()).pack()],
    "changed hands, with items": lambda asked: [TRUTH.answer(asked, status=CHANGED_HANDS, instance=1).pack()],
    "changed hands, with bytes": lambda asked: [
        resized(TRUTH.answer(asked, status=CHANGED_HANDS, instance=1, items=()).pack() + bytes(8))
    ],
    "malformed": lambda asked: [TRUTH.answer(asked, status=MALFORMED, items=()).pack()],
    "bytes behind the items": lambda asked: [resized(TRUTH.answer(asked).pack() + bytes(8))],
    "an item cut off": lambda asked: [resized(TRUTH.answer(asked).pack()[:-8])],
    "half an item": lambda asked: [resized(TRUTH.answer(asked).pack()[: ANSWER.size + 32])],
    "not a multiple of eight": lambda asked: [resized(TRUTH.answer(asked).pack() + bytes(4))],
    "no size": lambda asked: [bytes(64)],
    "a size below a header": lambda asked: [struct.pack("<I", 56) + TRUTH.answer(asked).pack()[4:]],
    "an enormous size": lambda asked: [struct.pack("<I", 2**32 - 8) + TRUTH.answer(asked).pack()[4:]],
    "a size above what was told": lambda asked: [
        struct.pack("<I", TRUTH.welcome.answer_bytes_max + 8) + TRUTH.answer(asked).pack()[4:]
    ],
    "an unknown state": lambda asked: [TRUTH.answer(asked, items=(Scanned(8),)).pack()],
    "a state that only a link has": lambda asked: [TRUTH.answer(asked, items=scanned(state=State.HIT)).pack()],
    "no state": lambda asked: [TRUTH.answer(asked, items=(Scanned(0),)).pack()],
    "a miss with bytes": lambda asked: [TRUTH.answer(asked, items=(Scanned(MISS, bytes(8), size=8),)).pack()],
    "fewer bytes than the entry has": lambda asked: [TRUTH.answer(asked, items=scanned(raw=bytes(8))).pack()],
    "more bytes than were asked for": lambda asked: [
        TRUTH.answer(asked, items=scanned(raw=bytes(9000), size=9000)).pack()
    ],
    "a zero that is not": lambda asked: [with_zero(TRUTH.answer(asked).pack(), ANSWER.size + 2)],
}


@pytest.mark.parametrize("lie", LIES)
def test_a_broken_frame_breaks_the_link_and_says_why(lie):
    with link_to_liar(TRUTH, LIES[lie]) as link:
        for _ in range(2):  # and it stays broken
            with pytest.raises(OSError, match=r"is broken: the engine (broke the format|did not understand)") as seen:
                link.scan([KEY], 0, 8000)
            assert seen.value.errno == errno.EPROTO


READ_LIES = {
    "other bytes than asked for": (Fetched(0, bytes(8)),),
    "none": (Fetched(0),),
    "bytes of a refusal": (Fetched(1, bytes(8)),),
    "an unknown status": (Fetched(4),),
}


@pytest.mark.parametrize("lie", READ_LIES)
def test_a_broken_answer_to_a_read_breaks_the_link(lie):
    def says(asked):
        found = asked.kind == 1
        return [TRUTH.answer(asked).pack() if found else TRUTH.answer(asked, items=READ_LIES[lie]).pack()]

    with link_to_liar(TRUTH, says) as link, pytest.raises(OSError, match="broke the format"):
        link.read([KEY], 0)


def test_an_answer_that_nobody_asked_for_breaks_the_link():
    with link_to_liar(TRUTH, lambda asked: [TRUTH.answer(asked).pack()] * 2) as link:
        with pytest.raises(OSError, match=r"nobody asked for|out of turn") as seen:
            wait_until(lambda: link.scan([KEY], 0) != [RIGHT], "the second answer")
        assert seen.value.errno == errno.EPROTO


def test_items_before_the_broken_one_do_not_count_either():
    """The call fails as a whole: there is no half of an answer."""
    broken = (TRUTH.found, Scanned(8))
    with link_to_liar(TRUTH, lambda asked: [TRUTH.answer(asked, items=broken).pack()]) as link:
        with pytest.raises(OSError, match="no item at byte"):
            link.scan([KEY, KEY], 0)
        assert link.stats()["hits"] == 1


def test_no_changed_byte_of_an_entry_passes():
    """Each byte of the entry is another one in one item of the answer."""
    raw = TRUTH.found.raw
    changed = [raw[:at] + bytes([raw[at] ^ 0x10]) + raw[at + 1 :] for at in range(len(raw))]
    items = tuple(replace(TRUTH.found, raw=one) for one in changed)
    with link_to_liar(TRUTH, lambda asked: [TRUTH.answer(asked, items=items).pack()]) as link:
        for at, (state, value, version) in enumerate(link.scan([KEY] * len(raw), 0)):
            if state == State.HIT:  # zeros between key and value say nothing
                assert (value, version) == (VALUE, VERSION)
                assert raw[at] == 0
            else:
                assert (state, value, version) in [(State.UNSETTLED, None, None), (State.ASK, None, None)]


def test_other_fields_than_the_entrys_do_not_pass():
    others = [
        {"version": (7, 8, 10)},
        {"version": (8, 8, 9)},
        {"offset": TRUTH.found.offset + 64},
        {"expiry_s": 1},
    ]
    for other in others:
        with link_to_liar(
            TRUTH, lambda asked, other=other: [TRUTH.answer(asked, items=scanned(**other)).pack()]
        ) as link:
            assert link.scan([KEY], 0) == [(State.UNSETTLED, None, None)]
            assert link.stats()["unproven"] == 1
    with link_to_liar(TRUTH, lambda asked: [TRUTH.answer(asked).pack()]) as link:
        assert link.scan([b"b key", b"a", KEY], 0)[2] == RIGHT
        assert all(state in (State.UNSETTLED, State.ASK) for state, _, _ in link.scan([b"b key", b"a"], 0))
    for size in (1, 40, TRUTH.found.size + 1, 1 << 18, (1 << 18) + 1, 2**32 - 1):
        with link_to_liar(
            TRUTH, lambda asked, size=size: [TRUTH.answer(asked, items=scanned(raw=b"", size=size)).pack()]
        ) as link:
            ((state, value, _),) = link.scan([KEY], 0)
            assert state in (State.FOUND, State.ASK)
            assert value is None


@given(st.data())
@settings(PATIENT, max_examples=120)
def test_noise_instead_of_an_answer_makes_no_value(data):
    noise = data.draw(st.binary(min_size=1, max_size=200))
    at = data.draw(st.integers(0, 150))

    def says(asked):
        content = TRUTH.answer(asked).pack()
        yield content[:at] + noise + content[at + len(noise) :]
        raise EOFError

    with link_to_liar(TRUTH, says) as link:
        try:
            answers = link.scan([KEY], 0)
        except OSError as seen:
            assert seen.errno in (errno.EPROTO, errno.ECONNRESET)
        else:
            for state, value, version in answers:
                assert (state, value, version) == RIGHT or value is None


def test_states_and_refusals_are_passed_on():
    states = (3, 4, 5, REVOKED)
    with link_to_liar(
        TRUTH, lambda asked: [TRUTH.answer(asked, items=tuple(Scanned(state) for state in states)).pack()]
    ) as link:
        assert link.scan([KEY] * 4, 0) == [(State(state), None, None) for state in states]

    def says(asked):
        items = tuple(Fetched(status) for status in (1, 2, 3))
        return [TRUTH.answer(asked).pack() if asked.kind == 1 else TRUTH.answer(asked, items=items).pack()]

    with link_to_liar(TRUTH, says) as link:
        unsettled, revoked = (State.UNSETTLED, None, None), (State.REVOKED, None, None)
        assert link.read([KEY] * 3, 0) == [unsettled, revoked, unsettled]


def test_changed_hands_ends_the_rest_of_a_request_and_the_next_one_asks_the_new_owner():
    def says(asked):
        if asked.instance == TRUTH.welcome.instance:
            yield TRUTH.answer(asked, items=(TRUTH.found,)).pack()
            yield TRUTH.answer(asked, first=1, status=CHANGED_HANDS, instance=99, config_id=5, items=()).pack()
        else:
            assert (asked.instance, asked.config_id) == (99, 5)
            items = (Scanned(MISS),) * len(asked.items)
            yield TRUTH.answer(asked, status=ANSWERED, instance=99, config_id=5, items=items).pack()

    with link_to_liar(TRUTH, says) as link:
        assert link.scan([KEY] * 3, 0) == [RIGHT, *[(State.REVOKED, None, None)] * 2]
        assert (link.instance_id, link.config_id) == (99, 5)
        assert link.scan([KEY] * 3, 0) == [(State.MISS, None, None)] * 3
        assert link.read([KEY], 0) == [(State.MISS, None, None)]


@pytest.mark.parametrize(
    ("other", "error", "seen"),
    [
        ({"version": 2}, errno.EPROTO, "it speaks version 2, not 1"),
        ({"status": 1}, errno.EPROTO, "something else"),
        ({"status": 2}, errno.EPROTO, "version"),
        ({"status": 3}, errno.EACCES, "ticket"),
        ({"status": 4}, errno.EUSERS, "as many links as it takes"),
        ({"status": 5}, errno.EPROTO, "status 5"),
        ({"layout": TRUTH.welcome.layout + 1}, errno.EPROTO, "its cell has layout"),
        ({"request_bytes_max": 47}, errno.EPROTO, "requests of bytes: 47"),
        ({"request_bytes_max": 2**32 - 1}, errno.EPROTO, "requests of bytes"),
        ({"answer_bytes_max": 8}, errno.EPROTO, "answers of bytes: 8"),
        ({"answer_bytes_max": 1 << 21}, errno.EPROTO, "answers of bytes"),
    ],
)
def test_no_link_to_what_is_no_engine_of_ours(other, error, seen):
    liar = Liar(replace(TRUTH.welcome, **other).pack(), lambda asked: [])
    with pytest.raises(OSError, match=seen) as refused:
        Link(*liar.address, bytes(32))
    assert refused.value.errno == error
    liar.close()


def test_other_servers_are_no_engines():
    liar = Liar(b"220 mail.example ESMTP ready and waiting for whatever you have to say today\r\n", lambda asked: [])
    with pytest.raises(OSError, match="there is no engine, but something else"):
        Link(*liar.address, bytes(32))
    liar.close()
    with pytest.raises(ConnectionRefusedError, match="connecting"):
        Link(*liar.address, bytes(32))
    with pytest.raises(OSError, match="the engine at no host's name port 1"):
        Link("no host's name", 1, bytes(32))


def test_greeting_has_a_deadline():
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(TimeoutError, match="greeting"):
        Link(*silent.getsockname(), bytes(32), 0.05)


def test_an_engine_that_hangs_up_breaks_the_link():
    def says(asked):
        yield TRUTH.answer(asked).pack()[:100]
        raise EOFError

    with link_to_liar(TRUTH, says) as link:
        with pytest.raises(ConnectionResetError, match="broken"):
            link.scan([KEY], 0)
        for call in (lambda: link.scan([KEY], 0), lambda: link.read([KEY], 0), link.ping):
            with pytest.raises(ConnectionResetError, match="broken"):
                call()


def test_late_answers_are_dropped_and_the_next_question_is_answered():
    """The first question is given up; its answer comes with the second one's, in several sizes of delay."""
    withheld, given_up = [], threading.Event()

    def says(asked):
        if not given_up.is_set():
            wrong = replace(TRUTH.found, version=(1, 1, 1))
            withheld.append(TRUTH.answer(asked, items=(wrong,) * len(asked.items)).pack())
            if len(withheld) == 2:
                yield withheld[0][:150]
                given_up.wait()
                yield withheld[0][150:] + withheld[1]
        else:
            yield TRUTH.answer(asked).pack()

    with link_to_liar(TRUTH, says, deadline_s=0.05) as link:
        for _ in range(2):
            with pytest.raises(TimeoutError, match="did not answer"):
                link.scan([KEY] * 5, 0)
        given_up.set()
        link.deadline_s = 60.0
        for _ in range(3):
            assert link.scan([KEY] * 2, 0) == [RIGHT] * 2
        assert link.stats()["forgotten"] == 10


def test_a_broken_late_answer_breaks_the_link_too():
    def says(asked):
        if asked.tag == 2:
            yield TRUTH.answer(replace(asked, tag=1), items=(Scanned(8),)).pack()

    with link_to_liar(TRUTH, says, deadline_s=0.05) as link:
        with pytest.raises(TimeoutError):
            link.scan([KEY], 0)
        link.deadline_s = 60.0
        with pytest.raises(OSError, match="broke the format"):
            link.scan([KEY], 0)


def test_a_signal_is_heard_while_a_link_waits():
    class Enough(Exception):
        pass

    def enough(*_):
        raise Enough

    answering = threading.Event()

    def says(asked):
        if asked.tag > 1:
            answering.wait()
            yield TRUTH.answer(replace(asked, tag=1)).pack() + TRUTH.answer(asked).pack()

    before = signal.signal(signal.SIGALRM, enough)
    try:
        with link_to_liar(TRUTH, says) as link:
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            with pytest.raises(Enough):
                link.scan([KEY], 0)
            answering.set()
            assert link.scan([KEY], 0) == [RIGHT]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_link_is_one_threads_at_a_time():
    asked_once, may_answer = threading.Event(), threading.Event()

    def says(asked):
        asked_once.set()
        may_answer.wait()
        yield TRUTH.answer(asked).pack()

    with link_to_liar(TRUTH, says) as link:
        found = []
        other = threading.Thread(target=lambda: found.append(link.scan([KEY], 0)))
        other.start()
        asked_once.wait()
        for call in (lambda: link.scan([KEY], 0), lambda: link.read([KEY], 0), link.ping, link.close):
            with pytest.raises(RuntimeError, match="another thread"):
                call()
        may_answer.set()
        other.join()
        assert found == [[RIGHT]]


def test_too_many_questions_at_once_are_refused_and_cost_nothing():
    with served() as (cell, engine), link_to(engine) as link:
        cell.set(b"key", b"value", (1, 0, 0))
        with pytest.raises(BlockingIOError, match="too many"):
            link.scan([b"key"] * ((1 << 20) + 1), 0)
        assert link.scan([b"key"], 0) == [(State.HIT, b"value", (1, 0, 0))]
        found = link.scan([b"key"] * 200_000, 0)
        assert found == [(State.HIT, b"value", (1, 0, 0))] * 200_000


def test_only_bytes_are_keys():
    with served() as (_, engine), link_to(engine) as link:
        for keys in (["text"], [bytearray(b"key")], [b"key", None]):
            with pytest.raises(TypeError):
                link.scan(keys, 0)
        assert link.scan([b"key"], 0) == [(State.MISS, None, None)]


def test_found_states_have_a_meaning_for_the_wire():
    assert FOUND == State.FOUND
    assert MISS == State.MISS
    assert REVOKED == State.REVOKED
