"""Lines: cut at every newline and nowhere else, so that all other bytes pass through untouched."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .rows import BATCH_BYTES, BadRow, Draft, Parse, Rows


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines, without their newlines; `first` is the number of the first one."""

    first: int
    content: list[bytes]
    size_bytes: int


def split_lines(read: Callable[[int], bytes], line_bytes_max: int) -> Iterator[Lines | BadRow]:
    """All lines of an input. One that is longer than line_bytes_max is not kept in memory, but told as a bad row.

    >>> pieces = iter([b"a\\nb", b"c\\r\\n\\n", b"end", b""])
    >>> [lines.content for lines in split_lines(lambda size: next(pieces), 100)]
    [[b'a'], [b'bc\\r', b''], [b'end']]
    """
    number = 1  # of the next line
    begun: list[bytes] = []  # pieces of it
    begun_bytes = 0
    while piece := read(BATCH_BYTES):
        head, newline, tail = piece.rpartition(b"\n")
        if newline and begun_bytes > line_bytes_max:
            rest, newline, head = head.partition(b"\n")
            yield _too_long(number, begun_bytes + len(rest), line_bytes_max)
            number, begun, begun_bytes = number + 1, [], 0
            if not newline:  # the piece had no other newline
                begun, begun_bytes = [tail], len(tail)
                continue
        if newline:
            whole = b"".join([*begun, head]) if begun else head
            content = whole.split(b"\n")
            yield Lines(number, content, len(whole) - len(content) + 1)
            number, begun, begun_bytes = number + len(content), [], 0
        if tail:
            begun_bytes += len(tail)
            if begun_bytes > line_bytes_max:
                begun = []
            else:
                begun.append(tail)
    if begun_bytes > line_bytes_max:
        yield _too_long(number, begun_bytes, line_bytes_max)
    elif begun_bytes:
        yield Lines(number, [b"".join(begun)], begun_bytes)


def plain_rows(blocks: Iterator[Lines | BadRow]) -> Iterator[Rows | BadRow]:
    """Each line is a message."""
    for block in blocks:
        if isinstance(block, BadRow):
            yield block
        else:
            yield Rows(block.content, None, range(block.first, block.first + len(block.content)), block.size_bytes)


def parsed_rows(blocks: Iterator[Lines | BadRow], parse: Parse, *, keyed: bool) -> Iterator[Rows | BadRow]:
    """Each line is a message after `parse`; what comes before a bad row is handed on before it."""
    draft = Draft(keyed)
    for block in blocks:
        if isinstance(block, BadRow):
            yield block
            continue
        for number, line in enumerate(block.content, block.first):
            try:
                value, key = parse(line)
            except _BlankLine:
                continue
            except ValueError as wrong:
                yield from draft.take()
                yield BadRow(number, str(wrong))
                continue
            draft.add(number, value, key)
        yield from draft.take()


class _BlankLine(ValueError):
    """Not a row, and not a bad one either."""


BLANK = _BlankLine()


def key_before(separator: bytes) -> Parse:
    """
    >>> key_before(b"\\t")(b"sku-1\\t9.99")
    (b'9.99', b'sku-1')
    """

    def parse(line: bytes) -> tuple[bytes, bytes]:
        key, found, value = line.partition(separator)
        if not found:
            raise ValueError(f"there is no key separator {separator!r} in it")
        return value, key

    return parse


def _too_long(number: int, size_bytes: int, line_bytes_max: int) -> BadRow:
    return BadRow(number, f"a line of {size_bytes} bytes; at most {line_bytes_max} can make a message of this stream")
