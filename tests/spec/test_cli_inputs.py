"""How inputs are cut into rows: whatever the pieces they arrive in, and whatever is in them."""

import json
import random
from collections.abc import Callable, Iterator

import pytest

from tailrace.node.cli.inputs.csv_rows import csv_rows
from tailrace.node.cli.inputs.json_lines import json_fields
from tailrace.node.cli.inputs.lines import Lines, key_before, parsed_rows, plain_rows, split_lines
from tailrace.node.cli.inputs.rows import BadRow, Rows
from tailrace.node.cli.report import BadInput

PLENTY = 1 << 20


def pieces(content: bytes, chance: random.Random, longest: int) -> Callable[[int], bytes]:
    """A `read` that hands out the content in pieces of any length, as a pipe does."""
    place = 0

    def read(size: int) -> bytes:
        nonlocal place
        piece = content[place : place + min(size, chance.randint(1, longest))]
        place += len(piece)
        return piece

    return read


def whole(content: bytes) -> Callable[[int], bytes]:
    return pieces(content, random.Random(0), PLENTY)


def numbered(rows: Iterator[Rows | BadRow]) -> list[tuple[int, bytes | None, bytes | None] | BadRow]:
    """(line, key, value) of each row, and the bad ones between them."""
    result: list[tuple[int, bytes | None, bytes | None] | BadRow] = []
    for item in rows:
        if isinstance(item, BadRow):
            result.append(item)
            continue
        keys = item.keys or [None] * len(item.values)
        result += zip(item.lines, keys, item.values, strict=True)
        assert item.size_bytes == sum(len(part or b"") for part in [*keys, *item.values])
    return result


def lines_of(content: bytes) -> list[bytes]:
    """The model: every newline ends a line, and so does the end if something stands before it."""
    parts = content.split(b"\n")
    return parts if parts[-1] else parts[:-1]


def test_lines_do_not_depend_on_how_the_bytes_arrive() -> None:
    for seed in range(300):
        chance = random.Random(seed)
        content = bytes(chance.choices(b"\n\r\x00\xffab", weights=[3, 1, 1, 1, 4, 4], k=chance.randrange(60)))
        found = numbered(plain_rows(split_lines(pieces(content, chance, chance.randint(1, 20)), PLENTY)))
        expected = [(number, None, line) for number, line in enumerate(lines_of(content), start=1)]
        assert found == expected, f"seed {seed}"


def test_a_line_that_is_too_long_is_told_and_the_others_stay() -> None:
    for seed in range(300):
        chance = random.Random(seed)
        content = b"\n".join(b"x" * chance.choice((0, 1, 5, 30, 70)) for _ in range(chance.randrange(8)))
        found: dict[int, bytes] = {}
        refused: dict[int, str] = {}
        for item in split_lines(pieces(content, chance, 10), 20):
            if isinstance(item, Lines):
                found |= dict(enumerate(item.content, item.first))
            else:
                refused[item.line] = item.why
        for number, line in enumerate(lines_of(content), start=1):
            if number in refused:
                assert len(line) > 20, f"seed {seed}"
                assert f"a line of {len(line)} bytes" in refused.pop(number)
            else:
                # One that is only a little too long may have come in one piece; the producer refuses it then.
                assert found.pop(number) == line, f"seed {seed}"
                assert len(line) <= 30, f"seed {seed}"
        assert not found
        assert not refused


def test_a_line_without_a_key_separator_is_a_bad_row_and_comes_in_its_place() -> None:
    rows = parsed_rows(split_lines(whole(b"a\t1\nnone\nb\t\t2"), PLENTY), key_before(b"\t"), keyed=True)
    assert numbered(rows) == [
        (1, b"a", b"1"),
        BadRow(2, "there is no key separator b'\\t' in it"),
        (3, b"b", b"\t2"),
    ]


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        (b'{"k":"a","v":"b"}', b"a", b"b"),
        (b'{"k":"a","v":null}', b"a", None),
        (b'{"k":null,"v":"b"}', None, b"b"),
        (b'{"k":7,"v":1.5}\r', b"7", b"1.5"),
        (b'{"k":"a","v":{"x":[1,true]}}', b"a", b'{"x":[1,true]}'),
        (b'{"k":{"base64":"/wA="},"v":"\\u00e9"}', b"\xff\x00", "é".encode()),
    ],
)
def test_fields_of_json_lines(line: bytes, key: bytes | None, value: bytes | None) -> None:
    assert json_fields("k", "v")(line) == (value, key)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[1]", "not an object"),
        (b'{"k":1}', "no field 'v'"),
        (b'{"k":1,"v":{"base64":"?"}}', "base64"),
        (b'{"k":1,"v":"\\ud800"}', "surrogates"),
        (b"9" * 5000, "not JSON"),
        (b"[" * 100_000, "too deep"),
    ],
)
def test_bad_json_lines_say_why(line: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        json_fields("k", "v")(line)


def test_a_whole_json_line_is_sent_as_it_is_and_blank_ones_are_passed_over() -> None:
    content = b'{"a": 1}\r\n\n  \n{"b":  2}\nbad\n'
    rows = numbered(parsed_rows(split_lines(whole(content), PLENTY), json_fields(None, None), keyed=False))
    assert rows[:2] == [(1, None, b'{"a": 1}'), (4, None, b'{"b":  2}')]
    assert isinstance(rows[2], BadRow)
    assert rows[2].line == 5


def csv_of(content: bytes, key: str | None = None, value: str | None = None, longest: int = PLENTY) -> list[object]:
    lines = split_lines(pieces(content, random.Random(1), longest), PLENTY)
    return list(numbered(csv_rows(lines, "x.csv", key, value, cell_bytes_max=1000)))


def test_csv_rows_keep_their_bytes_and_their_line_numbers() -> None:
    content = b'\xef\xbb\xbfid,text\r\n1,"two\r\nlines"\r\n\r\n,plain\r\n3,\xff\xfe\n4,"a ""quote"""\n'
    for longest in (1, 3, PLENTY):
        assert csv_of(content, "id", "text", longest) == [
            (2, b"1", b"two\r\nlines"),
            (5, None, b"plain"),
            (6, b"3", b"\xff\xfe"),
            (7, b"4", b'a "quote"'),
        ]


def test_csv_rows_become_json_without_a_value_column() -> None:
    found = csv_of(b"id,text\n1,a\n2,\xff\n", "id")
    line, key, value = found[0]  # type: ignore[misc]
    assert (line, key, json.loads(value)) == (2, b"1", {"id": "1", "text": "a"})
    assert found[1] == BadRow(3, "not UTF-8, which JSON cannot hold; --value sends a column as it is")


def test_bad_csv_rows_are_told_with_their_line() -> None:
    found = csv_of(b'a,b\n1\n2,3\n"4"x,5\n6,7\n', "a", "b")
    assert [item for item in found if not isinstance(item, BadRow)] == [(3, b"2", b"3"), (5, b"6", b"7")]
    assert [item.line for item in found if isinstance(item, BadRow)] == [2, 4]


def test_an_open_quote_does_not_take_in_the_rest_of_the_file() -> None:
    found = csv_of(b'a\n1\n"' + b"x\n" * 2000 + b"2\n", value="a")
    assert found[0] == (2, None, b"1")
    assert isinstance(found[1], BadRow)
    assert found[1].line == 3
    assert "field limit" in found[1].why


@pytest.mark.parametrize("content", [b"a,a\n1,2\n", b"a,b\n1,2\n", b'a,"b\n'])
def test_a_csv_header_that_will_not_do_is_refused(content: bytes) -> None:
    with pytest.raises(BadInput, match=r"x\.csv"):
        csv_of(content, key="c")
