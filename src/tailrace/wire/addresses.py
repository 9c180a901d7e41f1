"""Addresses as people write them: "host:port", "[v6]:port" or "unix:/path". Anything else is refused here, since the
layer below would take further schemes (and then resolve, share or ignore things) without asking."""

import ipaddress
import os
from dataclasses import dataclass

from ..errors import ConfigError

UNIX = "unix:"
_PATH_BYTES_MAX = 107  # what a socket's address holds


@dataclass(frozen=True, slots=True)
class Tcp:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def target(self) -> str:
        """For a client. A literal address needs no resolver, which is one thing less that can be late."""
        ip = _ip(self.host)
        return f"dns:///{self}" if ip is None else f"ipv{ip.version}:{self}"

    @property
    def loopback(self) -> bool:
        ip = _ip(self.host)
        return self.host == "localhost" if ip is None else ip.is_loopback


@dataclass(frozen=True, slots=True)
class Unix:
    path: str

    def __str__(self) -> str:
        return f"{UNIX}{self.path}"

    @property
    def target(self) -> str:
        return str(self)


def parse(text: str, *, listening: bool = False) -> Tcp | Unix:
    """
    >>> parse("cache-1:7100"), parse("unix:/run/tailrace/b0")
    (Tcp(host='cache-1', port=7100), Unix(path='/run/tailrace/b0'))
    >>> parse("cache-1:0")
    Traceback (most recent call last):
    tailrace.errors.ConfigError: address='cache-1:0': the port is 1 to 65535
    """
    if text.startswith(UNIX):
        path = os.path.abspath(text.removeprefix(UNIX))
        if text == UNIX or "\0" in path or "%" in path:
            raise ConfigError(f"address={text!r}: use unix:/path, without '%' in it")
        if (size := len(os.fsencode(path))) > _PATH_BYTES_MAX:
            raise ConfigError(f"address={text!r}: a socket's path has {_PATH_BYTES_MAX} bytes at most, not {size}")
        return Unix(path)
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not colon or not host or bracketed != (":" in host) or not set(host).isdisjoint("/%@, \t\n"):
        raise ConfigError(f"address={text!r}: use host:port, [v6 address]:port or unix:/path")
    least = 0 if listening else 1
    if not (port.isascii() and port.isdigit() and least <= int(port) <= 65535):
        raise ConfigError(f"address={text!r}: the port is {least} to 65535")
    return Tcp(host, int(port))


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
