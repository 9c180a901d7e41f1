"""Several cells in one process, ways to them, and engines that can be made to fall silent."""

import math
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from tailrace.native._cell import _weaken_hash as weaken_cells
from tailrace.native._client import _weaken_hash as weaken_clients
from tailrace.native.cell import Cell
from tailrace.native.client import CellClient
from tailrace.native.engine import TICKET_BYTES, Engine

from ..cell.places import folder, small_cell

CONFIG = 7  # every cell's configuration id, unless a test says otherwise
PATIENCE_S = 30.0  # a deadline that no test waits for


class Cohort:
    """Cells, and engines for those that are asked for. `attach` gives a client a way to one of them."""

    def __init__(self, paths: list[Path], **settings: Any) -> None:
        self.paths, self._settings = paths, {"config_id": CONFIG} | settings
        self.cells: list[Cell] = [small_cell(path, **self._settings) for path in paths]
        self.engines: dict[int, Engine] = {}

    def client(self, copies: int, quorum: int, ways: Any = "memory", **settings: Any) -> CellClient:
        """`ways`: one for all, or one for each; None for no way."""
        client = CellClient(len(self.cells), copies, quorum, **settings)
        for number, way in enumerate([ways] * len(self.cells) if isinstance(ways, str) else ways):
            if way is not None:
                self.attach(client, number, way)
        return client

    def attach(self, client: CellClient, number: int, way: "str | Gate", config_id: int = CONFIG) -> None:
        if way == "memory":
            client.attach_view(number, self.paths[number], config_id)
            return
        host, port = way.address if isinstance(way, Gate) else self.engine(number).address
        client.attach_link(number, host, port, self.ticket(number), config_id, PATIENCE_S)

    def engine(self, number: int) -> Engine:
        if number not in self.engines:
            self.engines[number] = Engine(self.paths[number])
        return self.engines[number]

    def ticket(self, number: int) -> bytes:
        ticket = secrets.token_bytes(TICKET_BYTES)
        self.engine(number).admit(ticket, PATIENCE_S)
        return ticket

    def restart(self, number: int, **settings: Any) -> Cell:
        """As after a crash: an empty cell with another instance in the same folder."""
        self.cells[number].close()
        self.cells[number] = small_cell(self.paths[number], **self._settings | settings)
        return self.cells[number]

    def close(self) -> None:
        for engine in self.engines.values():
            engine.close()
        for cell in self.cells:
            cell.close()


@contextmanager
def cohort(count: int = 3, **settings: Any) -> Iterator[Cohort]:
    with ExitStack() as stack:
        made = Cohort([stack.enter_context(folder()) for _ in range(count)], **settings)
        stack.callback(made.close)
        yield made


@contextmanager
def weak_hashes(low_mask: int, high_mask: int) -> Iterator[None]:
    """Keys collide, for cells and for clients. Not for engines: they are only told hashes."""
    weaken_cells(low_mask, high_mask)
    weaken_clients(low_mask, high_mask)
    try:
        yield
    finally:
        weaken_cells()
        weaken_clients()


class Gate:
    """Between a client and an engine. Questions always pass; answers wait while it is shut."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._changing = threading.Condition()
        self._passing: float = math.inf  # how many answers
        self._sockets: list[socket.socket] = []
        self.asked_bytes = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def shut(self) -> None:
        """What the client asks from now on is not answered until it is opened."""
        with self._changing:
            self.asked_bytes, self._passing = 0, 0

    def open(self) -> None:
        self._let(math.inf)

    def let_one(self) -> None:
        """One answer passes: what waits now, or the next one."""
        self._let(1)

    def _let(self, count: float) -> None:
        with self._changing:
            self._passing += count
            self._changing.notify_all()

    def cut(self) -> None:
        """Both ends see the connection break."""
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.cut()
        self.open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._engine.address)
                self._sockets += [client, server]
                threading.Thread(target=self._pass, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client, False), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, asking: bool) -> None:
        with suppress(OSError):
            while content := source.recv(1 << 16):
                if asking:
                    self.asked_bytes += len(content)
                else:
                    with self._changing:
                        self._changing.wait_for(lambda: self._passing)
                        self._passing -= 1
                sink.sendall(content)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
