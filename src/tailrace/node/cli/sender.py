"""Between the rows of an input and a producer: sends them in batches, and finds the one that cannot be sent."""

from dataclasses import dataclass

from ...streams import Producer
from .inputs import BadRow, Rows
from .report import BadInput


@dataclass(slots=True)
class Sender:
    """`messages` and `size_bytes` count what the producer has taken; `skipped` what was passed over."""

    producer: Producer
    shard: int | None
    skip_bad: bool
    messages: int = 0
    size_bytes: int = 0
    skipped: int = 0

    def take(self, name: str, rows: Rows | BadRow) -> None:
        if isinstance(rows, BadRow):
            self._refuse(name, rows)
            return
        try:
            self.producer.send_many(rows.values, rows.keys, shard=self.shard)
        except (ValueError, TypeError):  # one of them cannot be sent, and so none of them was
            self._take_one_by_one(name, rows)
            return
        self.messages += len(rows.lines)
        self.size_bytes += rows.size_bytes

    def _take_one_by_one(self, name: str, rows: Rows) -> None:
        values = rows.values if isinstance(rows.values, list) else rows.values.cast("binary").to_pylist()
        keys = rows.keys if rows.keys is None or isinstance(rows.keys, list) else rows.keys.cast("binary").to_pylist()
        for place, (line, value) in enumerate(zip(rows.lines, values, strict=True)):
            key = None if keys is None else keys[place]
            try:
                self.producer.send(value, key, shard=self.shard)
            except ValueError as wrong:
                self._refuse(name, BadRow(line, str(wrong).removesuffix(". It was not sent")))
                continue
            self.messages += 1
            self.size_bytes += len(value or b"") + len(key or b"")

    def _refuse(self, name: str, row: BadRow) -> None:
        if not self.skip_bad:
            raise BadInput(
                f"{name} line {row.line}: {row.why}. It was not sent, nor was anything after it. Mend it, or pass over "
                "such rows with --skip-bad"
            )
        self.skipped += 1
