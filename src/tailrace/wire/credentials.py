"""Mutual TLS from files, and who the other side is. Roots are always ours: gRPC would otherwise take the system's, or
those that an environment variable names. Files are looked at once, when a server or a peer is made."""

import ssl
from collections.abc import Mapping, Sequence
from typing import Any, cast

import grpc

from ..config import TlsConfig
from ..errors import ConfigError
from .addresses import Tcp, Unix

_KIND, _TLS = "transport_security_type", b"ssl"
_URI, _DNS = "peer_uri", "peer_dns"


def for_server(tls: TlsConfig) -> grpc.ServerCredentials:
    certificate, key, roots = _contents(tls)
    return grpc.ssl_server_credentials([(key, certificate)], root_certificates=roots, require_client_auth=True)


def channel_to(where: Tcp | Unix, tls: TlsConfig | None, settings: Sequence[tuple[str, Any]]) -> grpc.Channel:
    """Connects at the first call. Within a host it is the file system that says who may."""
    if tls is None or not isinstance(where, Tcp):
        return grpc.insecure_channel(where.target, options=settings)
    certificate, key, roots = _contents(tls)
    ours = grpc.ssl_channel_credentials(root_certificates=roots, private_key=key, certificate_chain=certificate)
    return grpc.secure_channel(where.target, ours, options=settings)


def check(tls: TlsConfig) -> None:
    """ConfigError: these files are missing, or do not go together."""
    _contents(tls)


def names_of(context: grpc.ServicerContext) -> tuple[str, ...] | None:
    """The caller's names, as its certificate has them: URIs, then DNS names. None: it came without TLS."""
    found = cast(Mapping[str, Sequence[bytes]], context.auth_context())
    if found.get(_KIND) != [_TLS]:
        return None
    return tuple(name.decode("utf-8", "replace") for kind in (_URI, _DNS) for name in found.get(kind, ()))


def _contents(tls: TlsConfig) -> tuple[bytes, bytes, bytes]:
    certificate, key = _content(tls.certificate, "certificate"), _content(tls.key, "key")
    roots = _content(tls.roots, "roots")
    # gRPC says nothing of what is wrong with them, and a peer would only notice when it connects.
    trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        trial.load_cert_chain(tls.certificate, tls.key, password=b"")
    except ssl.SSLError as wrong:
        raise ConfigError(
            f"tls.certificate={tls.certificate!r}, tls.key={tls.key!r}: {wrong.reason}; use a certificate and its own "
            "key, without a password"
        ) from None
    try:
        trial.load_verify_locations(tls.roots)
    except ssl.SSLError as wrong:
        raise ConfigError(f"tls.roots={tls.roots!r}: {wrong.reason}; use a PEM file of certificates") from None
    return certificate, key, roots


def _content(path: str, what: str) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as problem:
        raise ConfigError(f"tls.{what}={path!r}: {problem.strerror}") from None
    if b"-----BEGIN " not in content:
        raise ConfigError(f"tls.{what}={path!r}: use a PEM file")
    return content
