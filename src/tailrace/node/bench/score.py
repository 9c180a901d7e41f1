"""From what was measured side by side to figures: who stands for a peer, and how the others compare with it."""

from collections.abc import Mapping, Sequence

from .peers import Wire
from .report import Figure
from .slices import Case, Measured
from .system import System

Figures = dict[Figure, float]

#: Figures whose goal is an upper bound.
AT_MOST = {"shm_server_cpu_us_per_op"}
OTHERS = Figure("others_cpu_share", "share", "CPU time that others on this machine, or its host, took meanwhile")
#: Beyond this, whether a goal is met is anybody's guess: the limit itself was seen at half its rate.
OTHERS_MAX = 0.1


class Score:
    """A peer in one case of one repeat: the figures of the best client that people use, and the rate of an ideal one.

    Where no library for this peer is installed, the ideal client stands for it.
    """

    def __init__(self, peer: str, *, library: bool) -> None:
        self.peer, self._library = peer, library
        self.counted = ""  # the client whose rate counts
        self.per_s = self.tcp_per_s = self.ideal_per_s = 0.0
        self.best: Measured | None = None

    def add(self, client: System, measured: Measured) -> None:
        rate = measured.per_s
        if isinstance(client, Wire):
            self.ideal_per_s = max(self.ideal_per_s, rate)
            if self._library:
                return
        if client.through_tcp:
            self.tcp_per_s = max(self.tcp_per_s, rate)
        if self.best is None or rate > self.best.per_s:
            self.best = measured
        self.add_rate(client.name, rate)

    def add_rate(self, name: str, rate: float) -> None:
        """Of a load generator, for instance: it has a rate, and its calls and CPU time are not known."""
        if rate > self.per_s:
            self.counted, self.per_s = name, rate


def case_figures(
    case: Case, peers: Sequence[Score], ours: Mapping[str, Measured], limits: Mapping[str, Measured]
) -> Figures:
    """By name: the case, the system and what is measured of it."""
    figures: Figures = {}
    what = f"{case.verb.upper()}, {case.value_bytes} B values, batches of {case.batch}"

    def add(name: str, unit: str, value: float, meaning: str) -> None:
        figures[Figure(f"{case.name}_{name}", unit, f"{what}: {meaning}")] = value

    def add_system(name: str, per_s: float, measured: Measured) -> None:
        add(f"{name}_ops_per_s", "keys/s", per_s, f"{name}, one client thread")
        add(f"{name}_p50_us", "us", measured.call_us(0.5), f"{name}, one call, median")
        add(f"{name}_p99_us", "us", measured.call_us(0.99), f"{name}, one call, 99 of 100")
        add(f"{name}_server_cpu_us_per_op", "us", measured.server_cpu_us, f"{name}, the server's CPU time per key")
        add(f"{name}_cpu_us_per_op", "us", measured.cpu_us, f"{name}, client's and server's CPU time per key")

    for peer in peers:
        assert peer.best is not None, peer.peer
        add_system(peer.peer, peer.per_s, peer.best)
        add(f"{peer.peer}_tcp_ops_per_s", "keys/s", peer.tcp_per_s, f"{peer.peer} through TCP")
        add(f"{peer.peer}_ideal_ops_per_s", "keys/s", peer.ideal_per_s, f"{peer.peer}, by an ideal client")
    best_per_s, best_tcp_per_s = max(peer.per_s for peer in peers), max(peer.tcp_per_s for peer in peers)
    ideal_per_s = max(peer.ideal_per_s for peer in peers)
    least_cpu_us = min(peer.best.cpu_us for peer in peers if peer.best)
    for name, limit in limits.items():
        add(f"{name}_ops_per_s", "keys/s", limit.per_s, f"limit: {name} of as many bytes")
        add(f"{name}_vs_best_peer", "ratio", limit.per_s / best_per_s, f"limit: what {name} alone would reach")
    for name, measured in ours.items():
        add_system(name, measured.per_s, measured)
        add(f"{name}_vs_best_peer", "ratio", measured.per_s / best_per_s, f"{name} against the best peer")
        add(f"{name}_vs_best_peer_tcp", "ratio", measured.per_s / best_tcp_per_s, f"{name} against peers through TCP")
        by_cpu = least_cpu_us / measured.cpu_us
        add(
            f"{name}_vs_best_peer_by_cpu",
            "ratio",
            by_cpu,
            f"{name}: keys per second of CPU time, against the best peer",
        )
        add(f"{name}_vs_ideal_client", "ratio", measured.per_s / ideal_per_s, f"{name} against a peer's ideal client")
        for limit_name, limit in limits.items():
            add(f"{name}_of_{limit_name}", "share", measured.per_s / limit.per_s, f"{name} against {limit_name}")
    return figures


#: Through TCP we are compared with peers through TCP: a Unix socket leads to no other host.
_HEADLINE = [
    ("shm_get_vs_best_peer", "get_4k_b64_shm_vs_best_peer", 10.0),
    ("shm_get_vs_best_peer_by_cpu", "get_4k_b64_shm_vs_best_peer_by_cpu", None),
    ("shm_get_vs_ideal_client", "get_4k_b64_shm_vs_ideal_client", None),
    ("memcpy_vs_best_peer", "get_4k_b64_memcpy_vs_best_peer", None),
    ("shm_get_100b_vs_best_peer", "get_100b_b64_shm_vs_best_peer", None),
    ("shm_get_of_memcpy", "get_4k_b64_shm_of_memcpy", 0.5),
    ("tcp_get_vs_best_peer", "get_4k_b64_tcp_vs_best_peer_tcp", 2.0),
    ("tcp_get_vs_ideal_client", "get_4k_b64_tcp_vs_ideal_client", None),
    ("tcp_get_of_loopback", "get_4k_b64_tcp_of_loopback", None),
    ("loopback_vs_best_peer", "get_4k_b64_loopback_vs_best_peer", None),
    ("tcp_get_100b_vs_best_peer", "get_100b_b64_tcp_vs_best_peer_tcp", None),
    ("set_vs_best_peer", "set_4k_b64_shm_vs_best_peer", 1.0),
    ("set_vs_ideal_client", "set_4k_b64_shm_vs_ideal_client", None),
    ("shm_server_cpu_us_per_op", "get_4k_b64_shm_server_cpu_us_per_op", 0.05),
]


def headline(figures: Figures) -> Figures:
    """The few figures that have goals, and what they must be seen with."""
    known = {figure.name: (figure, value) for figure, value in figures.items()}
    found = [(name, *known[source], goal) for name, source, goal in _HEADLINE if source in known]
    return {Figure(name, figure.unit, figure.what, goal): value for name, figure, value, goal in found}
