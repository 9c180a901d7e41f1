"""How much a consumer that copies reads at once. Pure.

Large batches cost less for each byte, but memory that is touched for the first time costs more than all the rest: a
consumer that gets little, as one of hundreds does, is better off with little memory, used again and again.
"""

_FIRST_BYTES = 512 << 10
_BATCHES = 16  # of one size, before the next ones are twice as large


class BatchSize:
    """`bytes`: of the next batch, at most.

    >>> size = BatchSize(1 << 20)
    >>> for _ in range(16):
    ...     size.note(size.bytes)
    >>> size.bytes == 1 << 20
    True
    """

    def __init__(self, bytes_max: int, *, grows: bool = True) -> None:
        self._bytes_max = bytes_max
        self.bytes = min(_FIRST_BYTES, bytes_max) if grows else bytes_max
        self._left = _BATCHES

    def note(self, count_bytes: int) -> None:
        """A batch of so many bytes was read. One that was not filled is no reason for larger ones."""
        if 2 * count_bytes < self.bytes or self.bytes == self._bytes_max:
            return
        self._left -= 1
        if not self._left:
            self.bytes, self._left = min(2 * self.bytes, self._bytes_max), _BATCHES
