"""The coordination store that a configuration names: etcd if it has endpoints, else a file in the world's folder."""

import os

from ..config import CoordinationConfig
from ..coordination import Coordination, SqliteCoordination

_FILE = "coordination.db"


def open_coordination(config: CoordinationConfig, folder: str) -> Coordination:
    if config.etcd:
        from ..coordination import EtcdCoordination

        return EtcdCoordination(config)
    return SqliteCoordination(os.path.join(folder, _FILE))


def has_coordination(config: CoordinationConfig, folder: str) -> bool:
    """Whether there is a store, without making one. An etcd is there before its world is."""
    return bool(config.etcd) or os.path.exists(os.path.join(folder, _FILE))


def may_coordinate(config: CoordinationConfig, folder: str) -> bool:
    return bool(config.etcd) or os.access(os.path.join(folder, _FILE), os.W_OK)
