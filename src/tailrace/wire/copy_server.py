"""Serve a writer to readers upstream, a scheduler to the readers of its own cluster, hashes to whoever compares, and
files to consumers of other clusters.

A call lives as long as its operation and holds one thread. The gate is that of every server here: size, number of
calls, the caller's grant, the shape of each message; only then the service hears of it.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import grpc

from ..config import TlsConfig
from ..errors import Busy, TailraceError, WireRefused
from . import check_codec, copy_codec, credentials, files_codec, options
from .ahead import ahead
from .check_messages import CheckService
from .copy_messages import Admit, Batch, CopyService, Opening, WorkService
from .files_messages import FilesService
from .problems import refuse
from .server import Server, start

_LOG = logging.getLogger(__name__)
T = TypeVar("T")
_LOOKS_MAX = 32  # calls for files at a time: what they hold in memory, and what is left of calls_max for copies


def serve_copies(
    addresses: Iterable[str],
    *,
    writer: CopyService | None = None,
    scheduler: WorkService | None = None,
    checker: CheckService | None = None,
    files: FilesService | None = None,
    tls: TlsConfig | None = None,
    admit: Admit | None = None,
    calls_max: int = 512,
    message_bytes_max: int = options.MESSAGE_BYTES_MAX,
    keepalive_s: float = options.KEEPALIVE_S,
    plaintext_anywhere: bool = False,
) -> Server:
    """Listen as `serve` does. calls_max operations at a time; more are refused with Busy."""
    handlers: list[grpc.GenericRpcHandler] = []
    if writer is not None:
        copying = _Copying(writer, admit)
        handlers.append(_handler(copy_codec.WRITER, "Copy", copying.serve))
    if scheduler is not None:
        working = _Working(scheduler, admit)
        handlers.append(_handler(copy_codec.SCHEDULER, "Work", working.serve))
    if checker is not None:
        checking = _Checking(checker, admit)
        handlers.append(_answers(check_codec.CHECKER, {"Holding": checking.holding, "Hashes": checking.hashes}))
    if files is not None:
        lending = _Lending(files, admit)
        handlers.append(
            _answers(files_codec.FILES, {"Sight": lending.sight, "List": lending.list, "Read": lending.read})
        )
    return start(
        handlers,
        addresses,
        tls=tls,
        threads=calls_max,
        calls_max=calls_max,
        message_bytes_max=message_bytes_max,
        keepalive_s=keepalive_s,
        plaintext_anywhere=plaintext_anywhere,
    )


def _handler(
    service: str, method: str, serve: Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]
) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(service, {method: grpc.stream_stream_rpc_method_handler(serve)})


def _answers(
    service: str, methods: dict[str, Callable[[bytes, grpc.ServicerContext], bytes]]
) -> grpc.GenericRpcHandler:
    answers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        name: grpc.unary_unary_rpc_method_handler(answer) for name, answer in methods.items()
    }
    return grpc.method_handlers_generic_handler(service, answers)


class _Copying:
    def __init__(self, writer: CopyService, admit: Admit | None) -> None:
        self._writer, self._admit = writer, admit

    def serve(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        try:
            _admit(self._admit, context)
            first = _next(requests)
            opening = copy_codec.decode_to_writer(first) if first is not None else None
            if not isinstance(opening, Opening):
                raise WireRefused("a copy begins with an opening")
            for standing in self._writer.copy(opening, _batches(requests), lambda: _cancel(context)):
                yield copy_codec.encode_standing(standing)
        except Exception as problem:
            _log_surprise("Copy", problem)
            refuse(context, problem)


class _Working:
    def __init__(self, scheduler: WorkService, admit: Admit | None) -> None:
        self._scheduler, self._admit = scheduler, admit

    def serve(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        try:
            _admit(self._admit, context)
            for orders in self._scheduler.work(map(copy_codec.decode_report, _until_broken(requests))):
                yield copy_codec.encode_orders(orders)
        except Exception as problem:
            _log_surprise("Work", problem)
            refuse(context, problem)


class _Checking:
    def __init__(self, checker: CheckService, admit: Admit | None) -> None:
        self._checker, self._admit = checker, admit

    def holding(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            _admit(self._admit, context)
            return check_codec.encode_holding(self._checker.holding(*check_codec.decode_place(request)))
        except Exception as problem:
            _log_surprise("Holding", problem)
            refuse(context, problem)

    def hashes(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            _admit(self._admit, context)
            return check_codec.encode_hashes(self._checker.hashes(check_codec.decode_blocks(request)))
        except Exception as problem:
            _log_surprise("Hashes", problem)
            refuse(context, problem)


class _Lending:
    def __init__(self, files: FilesService, admit: Admit | None) -> None:
        self._files, self._admit = files, admit
        self._places = threading.Semaphore(_LOOKS_MAX)

    def sight(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        def answer() -> bytes:
            return files_codec.encode_sight(self._files.sight(*files_codec.decode_look(request)))

        return self._answer("Sight", answer, context)

    def list(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        def answer() -> bytes:
            return files_codec.encode_listing(self._files.list(files_codec.decode_folder(request)))

        return self._answer("List", answer, context)

    def read(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        def answer() -> bytes:
            return files_codec.encode_parts(self._files.read(files_codec.decode_ranges(request)))

        return self._answer("Read", answer, context)

    def _answer(self, name: str, answer: Callable[[], bytes], context: grpc.ServicerContext) -> bytes:
        try:
            _admit(self._admit, context)
            if not self._places.acquire(blocking=False):  # a thread that waits would be one less for copies
                raise Busy(f"{_LOOKS_MAX} calls for files are under way")
            try:
                return answer()
            finally:
                self._places.release()
        except Exception as problem:
            _log_surprise(name, problem)
            refuse(context, problem)


def _batches(requests: Iterator[bytes]) -> Iterator[Batch]:
    """gRPC receives a message when it is asked for it. Where many are to come, the next one does while the last one is
    being written."""
    return ahead(map(_batch, _until_broken(requests)), copy_codec.has_much_behind)


def _batch(request: bytes) -> Batch:
    batch = copy_codec.decode_to_writer(request)
    if not isinstance(batch, Batch):
        raise WireRefused("a second opening in one copy")
    return batch


def _until_broken(requests: Iterator[bytes]) -> Iterator[bytes]:
    """The other side's end is an end, whichever way it came."""
    while (request := _next(requests)) is not None:
        yield request


def _next(requests: Iterator[bytes]) -> bytes | None:
    try:
        return next(requests, None)
    except Exception:  # gRPC has no class of its own for this
        return None


def _admit(admit: Admit | None, context: grpc.ServicerContext) -> None:
    if admit is not None:
        admit(credentials.names_of(context))


def _cancel(context: grpc.ServicerContext) -> None:
    context.cancel()


def _log_surprise(method: str, problem: Exception) -> None:
    if not isinstance(problem, TailraceError):
        _LOG.error("%s failed", method, exc_info=problem)
