"""TLS settings: three files, all of them needed; and a table that may be left out."""

from dataclasses import dataclass
from typing import Any

import pytest

from tailrace.config import TlsConfig, decode, encode
from tailrace.errors import ConfigError

FILES = {"certificate": "me.pem", "key": "me.key", "roots": "roots.pem"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """A configuration that may have TLS."""

    tls: TlsConfig | None = None


def test_a_table_that_may_be_left_out() -> None:
    assert decode(Door, {}).tls is None
    assert decode(Door, {"tls": FILES}).tls == TlsConfig(**FILES)
    for door in (Door(), Door(tls=TlsConfig(**FILES))):
        assert decode(Door, encode(door)) == door


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({"tls": {**FILES, "key": 7}}, "tls.key=7: use a text in quotes"),
        ({"tls": {**FILES, "key": ""}}, "tls.key='': use the path of a PEM file"),
        ({"tls": {**FILES, "ca": "x"}}, "tls.ca: no such setting; there are certificate, key, roots"),
        ({"tls": {"key": "x"}}, "tls.certificate: missing; it has no default"),
        ({"tls": "x"}, "tls='x': use a table"),
    ],
)
def test_a_bad_value_is_named_by_its_path(table: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        decode(Door, table)
    assert str(refused.value) == complaint
