"""Serve a backend's methods to other processes.

Every call passes one gate: the size limit, the number of calls, the caller's grant, the request's shape. Only then the
service is called, on one of a fixed number of threads. When close() has returned, no thread is in the service.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import grpc

from ..config import TlsConfig
from ..errors import Busy, ConfigError, PeerFailed, TailraceError
from . import credentials, options
from .addresses import Tcp, Unix, parse
from .messages import LookupReply
from .methods import METHODS, SERVICE, Method, first_that_fit
from .problems import refuse
from .service import Authorize, BackendService
from .sockets import SocketClaim

_LOG = logging.getLogger(__name__)


def serve(
    service: BackendService,
    addresses: Iterable[str],
    *,
    tls: TlsConfig | None = None,
    authorize: Authorize | None = None,
    threads: int = 8,
    calls_max: int = 64,
    message_bytes_max: int = options.MESSAGE_BYTES_MAX,
    keepalive_s: float = options.KEEPALIVE_S,
    plaintext_anywhere: bool = False,
) -> "Server":
    """Listen at "host:port" (port 0: a free one) and "unix:/path".

    `tls` is for TCP: every caller needs a certificate. File permissions guard unix sockets. Without `tls`, TCP is
    served on loopback only, unless plaintext_anywhere says that the network itself keeps others out.
    """
    if threads < 1 or calls_max < threads:
        raise ValueError(f"threads={threads}, calls_max={calls_max}: use at least one thread, and a call for each")
    gate = _Gate(service, authorize, threads, message_bytes_max)
    handlers = {method.name: gate.handler(method) for method in METHODS}
    return start(
        [grpc.method_handlers_generic_handler(SERVICE, handlers)],
        addresses,
        tls=tls,
        threads=threads,
        calls_max=calls_max,
        message_bytes_max=message_bytes_max,
        keepalive_s=keepalive_s,
        plaintext_anywhere=plaintext_anywhere,
    )


def start(
    handlers: Sequence[grpc.GenericRpcHandler],
    addresses: Iterable[str],
    *,
    tls: TlsConfig | None,
    threads: int,
    calls_max: int,
    message_bytes_max: int,
    keepalive_s: float,
    plaintext_anywhere: bool = False,
) -> "Server":
    """Serve these handlers. In plain text only where the network itself keeps others out."""
    wanted = [parse(address, listening=True) for address in addresses]
    if not wanted:
        raise ValueError("addresses: name at least one")
    for address in wanted:
        if isinstance(address, Tcp) and tls is None and not address.loopback and not plaintext_anywhere:
            raise ConfigError(f"address='{address}': without TLS use a loopback address, a unix socket, or set up tls")
    pool = ThreadPoolExecutor(threads, thread_name_prefix="tailrace-wire")
    server = grpc.server(
        pool,
        options=options.server(message_bytes_max, keepalive_s),
        maximum_concurrent_rpcs=calls_max,
    )
    server.add_generic_rpc_handlers(tuple(handlers))
    return Server(server, pool, wanted, None if tls is None else credentials.for_server(tls))


class Server:
    """A running server; close it, or use it as a context manager."""

    def __init__(
        self,
        server: grpc.Server,
        pool: ThreadPoolExecutor,
        addresses: list[Tcp | Unix],
        secrets: grpc.ServerCredentials | None,
    ) -> None:
        self._server = server
        self._pool = pool
        self._claims: list[SocketClaim] = []
        self._closing = threading.Lock()
        self._closed = False
        try:
            self._addresses = tuple(str(self._listen(address, secrets)) for address in addresses)
            server.start()
        except BaseException:
            self.close(0)
            raise

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it really listens, in the order they were asked for."""
        return self._addresses

    def close(self, grace_s: float = 1.0) -> None:
        """Take no more calls, let those under way finish for grace_s, then cancel them; wait for the service."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._server.stop(grace_s).wait()
            self._pool.shutdown()
            for claim in self._claims:
                claim.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listen(self, address: Tcp | Unix, secrets: grpc.ServerCredentials | None) -> Tcp | Unix:
        if isinstance(address, Unix):
            claim = SocketClaim(address.path)
            self._claims.append(claim)
            self._bind(address, None)
            claim.protect()
            return address
        return Tcp(address.host, self._bind(address, secrets))

    def _bind(self, address: Tcp | Unix, secrets: grpc.ServerCredentials | None) -> int:
        try:
            if secrets is None:
                return self._server.add_insecure_port(str(address))
            return self._server.add_secure_port(str(address), secrets)
        except RuntimeError:
            raise ConfigError(
                f"address='{address}': cannot listen there; is it in use, is it an address of this machine, may this "
                "user use it?"
            ) from None


class _Gate:
    def __init__(
        self, service: BackendService, authorize: Authorize | None, threads: int, message_bytes_max: int
    ) -> None:
        self._service = service
        self._authorize = authorize
        self._message_bytes_max = message_bytes_max
        # A stream holds its thread for as long as its client pleases, so some are kept for short calls.
        self._streams = threading.Semaphore(max(1, threads // 2))

    def handler(self, method: Method) -> "grpc.RpcMethodHandler[bytes, bytes]":
        call: Callable[..., Any] = getattr(self._service, method.call)
        # Bytes go in and out: requests are decoded behind the gate, where a refusal can be put into words.
        if method.streams:
            return grpc.unary_stream_rpc_method_handler(
                lambda request, context: self._parts(method, call, request, context)
            )
        return grpc.unary_unary_rpc_method_handler(lambda request, context: self._reply(method, call, request, context))

    def _reply(self, method: Method, call: Callable[..., Any], request: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            self._admit(method, context)
            return self._encode(method, call(*method.decode_request(request)))
        except Exception as problem:
            _log_surprise(method, problem)
            refuse(context, problem)

    def _parts(
        self, method: Method, call: Callable[..., Any], request: bytes, context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        try:
            self._admit(method, context)
            arguments = method.decode_request(request)
            if not self._streams.acquire(blocking=False):
                raise Busy(f"as many {method.name} calls as this backend serves at a time are under way")
            try:
                for part in call(*arguments):
                    yield self._encode(method, part)
            finally:
                self._streams.release()
        except Exception as problem:
            _log_surprise(method, problem)
            refuse(context, problem)

    def _admit(self, method: Method, context: grpc.ServicerContext) -> None:
        if not context.is_active():
            raise Busy("the caller gave up before its call had a thread")  # nobody hears this; nothing is done
        if self._authorize is not None:
            self._authorize(credentials.names_of(context), method.name)

    def _encode(self, method: Method, reply: Any) -> bytes:
        if isinstance(reply, LookupReply):
            reply = first_that_fit(reply, self._message_bytes_max)
        message = method.encode_reply(reply)
        if len(message) > self._message_bytes_max:
            raise PeerFailed(f"a reply of {len(message)} bytes is above message_bytes_max={self._message_bytes_max}")
        return message


def _log_surprise(method: Method, problem: Exception) -> None:
    if not isinstance(problem, TailraceError):
        _LOG.error("%s failed", method.name, exc_info=problem)
