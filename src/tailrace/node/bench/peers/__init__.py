"""memcached and Redis as peers: their own servers, started here, and the quickest clients there are for them."""

from .generators import Generator
from .memcached import Memcached
from .redis import Redis
from .server import PeerFailed, PeerMissing
from .wire import Wire

__all__ = ["Generator", "Memcached", "PeerFailed", "PeerMissing", "Redis", "Wire"]
