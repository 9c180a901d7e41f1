"""Addresses, and the paths of unix sockets: one server each, one user each, and what the dead leave behind."""

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.errors import ConfigError
from tailrace.wire import BackendPeer, serve
from wire.example import INSTANCE, ExampleBackend


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_folder_is_made_and_nobody_else_may_use_the_socket(tmp_path: Path) -> None:
    with serve(ExampleBackend(), [f"unix:{tmp_path}/door/rpc"]) as server:
        assert server.addresses == (f"unix:{tmp_path}/door/rpc",)
        assert (mode(tmp_path / "door"), mode(tmp_path / "door" / "rpc")) == (0o700, 0o600)
        assert mode(tmp_path / "door" / "rpc.lock") == 0o600
    assert not (tmp_path / "door" / "rpc").exists()


@pytest.mark.parametrize("wide", [0o755, 0o770, 0o701])
def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path, wide: int) -> None:
    tmp_path.chmod(wide)
    with pytest.raises(ConfigError, match=f"mode {wide:o}; try chmod 700"):
        serve(ExampleBackend(), [f"unix:{tmp_path}/rpc"])
    assert not list(tmp_path.iterdir())


def test_a_living_server_keeps_its_path(tmp_path: Path) -> None:
    with serve(ExampleBackend(), [f"unix:{tmp_path}/rpc"]) as server:
        with pytest.raises(ConfigError, match="another server listens there"):
            serve(ExampleBackend(), [f"unix:{tmp_path}/rpc"])
        with BackendPeer(server.addresses[0]) as peer:
            assert peer.stats().instance == INSTANCE


def test_the_socket_of_a_dead_server_is_taken_over(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "wire.example", f"unix:{tmp_path}/rpc"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    assert child.stdout is not None
    child.stdout.readline()
    child.kill()
    child.communicate()
    assert stat.S_ISSOCK((tmp_path / "rpc").stat().st_mode), "it was left behind"
    with serve(ExampleBackend(), [f"unix:{tmp_path}/rpc"]) as server, BackendPeer(server.addresses[0]) as peer:
        assert peer.stats().instance == INSTANCE


def test_a_socket_that_somebody_else_left_is_taken_over(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "rpc"))
    with serve(ExampleBackend(), [f"unix:{tmp_path}/rpc"]) as server, BackendPeer(server.addresses[0]) as peer:
        assert peer.stats().instance == INSTANCE


def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "rpc").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "rpc")
    for name in ("rpc", "link"):
        with pytest.raises(ConfigError, match="no socket"):
            serve(ExampleBackend(), [f"unix:{tmp_path}/{name}"])
    assert (tmp_path / "rpc").read_text() == "precious"
    (tmp_path / "other.lock").mkdir()
    with pytest.raises(ConfigError, match="its lock cannot be opened"):
        serve(ExampleBackend(), [f"unix:{tmp_path}/other"])


def test_a_server_that_cannot_start_leaves_nothing_behind(tmp_path: Path) -> None:
    with serve(ExampleBackend(), ["127.0.0.1:0"]) as busy:
        with pytest.raises(ConfigError, match="cannot listen there"):
            serve(ExampleBackend(), [f"unix:{tmp_path}/rpc", *busy.addresses])
        assert not (tmp_path / "rpc").exists()
        with serve(ExampleBackend(), [f"unix:{tmp_path}/rpc"]):
            pass


def test_one_server_at_several_addresses(tmp_path: Path) -> None:
    addresses = [f"unix:{tmp_path}/a", "127.0.0.1:0", f"unix:{tmp_path}/b", "[::1]:0"]
    if not socket.has_dualstack_ipv6():
        addresses.pop()
    with serve(ExampleBackend(), addresses) as server:
        assert len(set(server.addresses)) == len(addresses)
        for address in server.addresses:
            with BackendPeer(address) as peer:
                assert peer.stats().instance == INSTANCE


def test_relative_paths_mean_where_the_process_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with serve(ExampleBackend(), ["unix:rpc"]) as server:
        assert server.addresses == (f"unix:{tmp_path}/rpc",)
        monkeypatch.chdir("/")
        with BackendPeer(server.addresses[0]) as peer:
            assert peer.stats().instance == INSTANCE


@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("", "use host:port"),
        ("cache-1", "use host:port"),
        (":7100", "use host:port"),
        ("::1:7100", "use host:port"),
        ("[cache-1]:7100", "use host:port"),
        ("xds:///cache:7100", "use host:port"),
        ("dns:///cache:7100", "use host:port"),
        ("a:1,b:2", "use host:port"),
        ("cache-1:x", "the port is 1 to 65535"),
        ("cache-1:-1", "the port is 1 to 65535"),
        ("cache-1:0", "the port is 1 to 65535"),
        ("cache-1:65536", "the port is 1 to 65535"),
        ("cache-1:٣", "the port is 1 to 65535"),
        ("unix:", "use unix:/path"),
        ("unix:/a%41", "use unix:/path"),
        ("unix:/" + "a" * 107, "107 bytes at most, not 108"),
    ],
)
def test_addresses_that_mean_nothing_are_refused(address: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        BackendPeer(address)
    assert complaint in str(refused.value)


def test_settings_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="threads=0"):
        serve(ExampleBackend(), ["localhost:0"], threads=0)
    with pytest.raises(ValueError, match="calls_max=3"):
        serve(ExampleBackend(), ["localhost:0"], threads=4, calls_max=3)
    with pytest.raises(ValueError, match="addresses"):
        serve(ExampleBackend(), [])
    with pytest.raises(ConfigError, match="cannot be made"):
        serve(ExampleBackend(), [f"unix:{tmp_path}/no/such/rpc"])
    assert os.listdir(tmp_path) == []
