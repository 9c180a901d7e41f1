"""A passive rate limit (A40): how long to wait before the next batch, so that a backlog is not amplified. Pure."""

_BURST_S = 0.1  # how much of a second's allowance may be taken at once


class RateLimit:
    """Bytes already taken are paid for before more may be taken, so the rate holds whatever the size of a batch.

    >>> limit = RateLimit(bytes_per_s=1000.0, now_s=0.0)
    >>> limit.wait_s(now_s=0.0)
    0.0
    >>> limit.took(600, now_s=0.0)
    >>> limit.wait_s(now_s=0.0)
    0.5
    >>> limit.wait_s(now_s=0.5)
    0.0
    """

    def __init__(self, bytes_per_s: float, now_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._allowance = bytes_per_s * _BURST_S
        self._seen_s = now_s

    def wait_s(self, now_s: float) -> float:
        self._refill(now_s)
        debt_bytes = -self._allowance
        return debt_bytes / self._bytes_per_s if debt_bytes >= 1.0 else 0.0  # less than a byte is rounding, not debt

    def took(self, count_bytes: int, now_s: float) -> None:
        self._refill(now_s)
        self._allowance -= count_bytes

    def _refill(self, now_s: float) -> None:
        earned = (now_s - self._seen_s) * self._bytes_per_s
        self._allowance = min(self._allowance + earned, self._bytes_per_s * _BURST_S)
        self._seen_s = now_s
