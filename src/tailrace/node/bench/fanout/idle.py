"""What consumers cost who wait on a quiet stream: CPU time of all of them together."""

import time
from contextlib import closing
from dataclasses import dataclass

from ..system import process_cpu_s
from .contender import Contender
from .crew import Crew, Phase


@dataclass(frozen=True, slots=True)
class IdleAmounts:
    consumers: int = 1000
    open_s: float = 300.0
    settle_s: float = 45.0  # so many take their time to open, and look now and then for a moment
    idle_s: float = 20.0


def idle_core_pct(contender: Contender, amounts: IdleAmounts) -> float:
    """Percent of one core. One message has come, and the producer is alive; the consumers end by being killed."""
    phase = Phase("quiet", rate_per_s=1e-6, quiet=True)
    with closing(Crew(contender, amounts.consumers, [phase], samples_max=10)) as crew:
        crew.begin(0, amounts.open_s)
        crew.wait(amounts.settle_s)
        before_s, spent_s = time.monotonic(), sum(process_cpu_s(slot.pid) for slot in crew.consumers)
        crew.wait(amounts.idle_s)
        spent_s = sum(process_cpu_s(slot.pid) for slot in crew.consumers) - spent_s
        return 100 * spent_s / (time.monotonic() - before_s)
