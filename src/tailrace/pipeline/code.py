"""The user's function, as it is named to other processes: by its module or file, never by its bytes."""

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ..errors import ConfigError


@dataclass(frozen=True, slots=True)
class Code:
    """A function at the top of a module; `file` is set where the module cannot be imported by its name."""

    module: str
    name: str
    file: str | None = None

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "Code":
        module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
        if module is None or not name or "<" in name:
            raise ConfigError(
                f"{function!r} cannot be found by other processes; use a function at the top of a module, not a lambda "
                "or one inside another"
            )
        loaded = sys.modules.get(module)
        file = getattr(loaded, "__file__", None)
        if module == "__main__" or module.startswith(_APP):
            if file is None:
                raise ConfigError(f"{name} was typed in, so other processes cannot find it; put it into a file")
            return cls(module, name, os.path.abspath(file))
        return cls(module, name)

    def load(self) -> Any:
        module = importlib.import_module(self.module) if self.file is None else load_file(self.file)
        found: Any = module
        for word in self.name.split("."):
            found = getattr(found, word)
        return found


_APP = "tailrace_app_"


def app_module(function: Callable[..., Any]) -> ModuleType | None:
    """The module of a function that was loaded from a file, which nobody can import by name."""
    name = getattr(function, "__module__", "") or ""
    return sys.modules.get(name) if name.startswith(_APP) else None


def load_file(path: str) -> ModuleType:
    """A Python file as a module, once for each process. What it imports from its own folder is found."""
    path = os.path.abspath(path)
    name = _APP + hashlib.sha256(path.encode()).hexdigest()[:12]
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not os.path.exists(path):
        raise ConfigError(f"{path} is not a Python file that can be read")
    module = importlib.util.module_from_spec(spec)
    if (folder := os.path.dirname(path)) not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def load_named(text: str) -> Any:
    """What `FILE.py:NAME` or `MODULE:NAME` means."""
    place, colon, name = text.rpartition(":")
    if not colon or not place or not name:
        raise ConfigError(f"{text!r}: name a file or module and what to take from it, as in app.py:pipeline")
    try:
        module = load_file(place) if place.endswith(".py") else importlib.import_module(place)
    except ImportError as missing:
        raise ConfigError(f"{text!r} cannot be loaded: {missing}") from missing
    if not hasattr(module, name):
        raise ConfigError(f"{place} has no {name}")
    return getattr(module, name)
