"""The passive rate limit."""

import pytest

from tailrace.streams.rate import RateLimit


@pytest.mark.parametrize("batch_bytes", [1, 100, 5000])
def test_the_rate_holds_whatever_the_size_of_a_batch(batch_bytes: int) -> None:
    limit = RateLimit(bytes_per_s=1000.0, now_s=0.0)
    now_s, taken = 0.0, 0
    while now_s < 50.0:
        wait_s = limit.wait_s(now_s)
        if wait_s > 0:
            now_s += wait_s
            continue
        limit.took(batch_bytes, now_s)
        taken += batch_bytes
    assert 0.95 * 50_000 - batch_bytes <= taken <= 1.05 * 50_000 + batch_bytes


def test_idle_time_is_not_saved_up() -> None:
    limit = RateLimit(bytes_per_s=1000.0, now_s=0.0)
    limit.took(200, now_s=1000.0)
    assert limit.wait_s(now_s=1000.0) == pytest.approx(0.1)
