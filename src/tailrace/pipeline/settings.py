"""How a pipeline works, with units in the names, refused early where it cannot be."""

from dataclasses import dataclass

from ..errors import ConfigError
from .assignment import Etas
from .creator import Limits
from .failure import Patience

_MEMORY_BYTES_LEAST = 128 << 20  # what Python and Arrow need before they have read anything


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    unit_bytes: int = 32 << 20  # of a unit in a backlog
    linger_s: float = 0.2  # so long may a byte wait for others to fill a unit
    units_max: int = 256  # that are not committed, over all sites: what the state store has to hold
    undispatched_max: int = 256  # that are committed, but not published
    local_eta_s: float = 60.0  # after this another runner of the same site may take a unit over
    site_eta_s: float = 600.0  # … and after this a runner of another site
    open_eta_s: float = 1.0  # … and after this one that nobody has begun, if the other site has the bytes
    lease_s: float = 10.0  # a runner that is not heard of for so long is taken for dead
    poll_s: float = 0.1  # how often the files are looked at
    attempts_max: int = 3  # of a unit that fails, before it is divided
    bad_ranges_max: int = 1000  # more say that the trouble is not in the data
    retry_s: float = 0.2  # the pause after a first failure
    retry_s_max: float = 30.0
    batch_bytes: int = 8 << 20  # read at a time
    bytes_per_s: float | None = None  # of each runner; None: as fast as it can
    worker_memory_bytes: int | None = None  # for data of each worker process; None: as much as there is
    delay_goal_s: float | None = None  # have as many worker processes as hold it; None: as many as there may be …
    slots_min: int = 1  # … and never fewer than these

    def __post_init__(self) -> None:
        for name, least, most in (
            ("unit_bytes", 1, 1 << 30),
            ("linger_s", 0.0, 3600.0),
            ("units_max", 1, 10_000),
            ("undispatched_max", 1, 10_000),
            ("local_eta_s", 0.01, 1e6),
            ("site_eta_s", 0.01, 1e7),
            ("open_eta_s", 0.01, 1e6),
            ("lease_s", 0.5, 3600.0),
            ("poll_s", 0.001, 60.0),
            ("attempts_max", 1, 100),
            ("bad_ranges_max", 0, 100_000),
            ("retry_s", 0.0, 3600.0),
            ("retry_s_max", 0.0, 86_400.0),
            ("batch_bytes", 1, 1 << 30),
            ("slots_min", 1, 10_000),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
                raise ConfigError(f"{name}={value!r}: use {least} to {most}")
        if self.site_eta_s < self.local_eta_s:
            raise ConfigError(f"site_eta_s={self.site_eta_s:g} is below local_eta_s={self.local_eta_s:g}; raise it")
        for name, floor in (("bytes_per_s", 0), ("delay_goal_s", 0), ("worker_memory_bytes", _MEMORY_BYTES_LEAST)):
            value = getattr(self, name)
            if value is not None and not value > floor:
                raise ConfigError(f"{name}={value!r}: use more than {floor}, or leave it out")

    @property
    def etas(self) -> Etas:
        return Etas(round(self.local_eta_s * 1e6), round(self.site_eta_s * 1e6), round(self.open_eta_s * 1e6))

    @property
    def limits(self) -> Limits:
        return Limits(self.unit_bytes, self.units_max, self.undispatched_max, round(self.linger_s * 1e6))

    @property
    def patience(self) -> Patience:
        return Patience(
            self.attempts_max, self.bad_ranges_max, round(self.retry_s * 1e6), round(self.retry_s_max * 1e6)
        )
