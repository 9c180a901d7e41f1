"""Mutual TLS: who may come in, who is believed, and what the others are told."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tailrace.config import TlsConfig
from tailrace.errors import ConfigError, Denied, Unreachable, WireProblem
from tailrace.wire import BackendPeer, Server, serve
from wire.certificates import Authority
from wire.example import INSTANCE, SHARED, ExampleBackend

CLIENT = "spiffe://example/client-1"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def client(authority: Authority) -> TlsConfig:
    return authority.issue(CLIENT, "client-1.example", "me@example", "10.9.8.7", file="client")


class Doorkeeper:
    """Lets one name in, and remembers who came."""

    def __init__(self, *welcome: str) -> None:
        self.welcome = welcome
        self.seen: list[tuple[tuple[str, ...] | None, str]] = []

    def __call__(self, names: tuple[str, ...] | None, method: str) -> None:
        self.seen.append((names, method))
        if names is None or not set(names) & set(self.welcome):
            raise Denied(f"{names} may not {method}")


Serve = Callable[..., Server]


@pytest.fixture
def serve_tls(authority: Authority) -> Iterator[Serve]:
    running: list[Server] = []

    def start(doorkeeper: Doorkeeper | None = None, *addresses: str, backend: ExampleBackend | None = None) -> Server:
        tls = authority.issue("localhost", "127.0.0.1", "spiffe://example/backend", file="backend")
        where = addresses or ("127.0.0.1:0",)
        running.append(serve(backend or ExampleBackend(), where, tls=tls, authorize=doorkeeper))
        return running[-1]

    yield start
    for server in running:
        server.close()


def refusal(address: str, tls: TlsConfig | None, **settings: str) -> WireProblem:
    """What a mutation meets that must not get through."""
    with BackendPeer(address, tls=tls, **settings) as peer, pytest.raises(WireProblem) as refused:  # type: ignore[arg-type]
        peer.mutate(INSTANCE, 0, b"f")
    assert refused.value.took_effect is False
    assert address in str(refused.value)
    return refused.value


def test_both_sides_know_each_other(serve_tls: Serve, client: TlsConfig) -> None:
    doorkeeper = Doorkeeper(CLIENT)
    server = serve_tls(doorkeeper)
    with BackendPeer(server.addresses[0], tls=client) as peer:
        assert peer.mutate(INSTANCE, 0, b"f").instance == INSTANCE
        assert list(peer.list_hashes(SHARED))[-1].complete
    names = (CLIENT, "client-1.example")  # neither mail nor network addresses are identities
    assert doorkeeper.seen == [(names, "Mutate"), (names, "List")]


@pytest.mark.parametrize("address", ["localhost:0", "127.0.0.1:0"])
def test_a_server_is_known_by_name_or_number(serve_tls: Serve, client: TlsConfig, address: str) -> None:
    with BackendPeer(serve_tls(None, address).addresses[0], tls=client) as peer:
        assert peer.stats().instance == INSTANCE


def test_every_method_asks_the_doorkeeper(serve_tls: Serve, client: TlsConfig) -> None:
    doorkeeper, backend = Doorkeeper("spiffe://example/other"), ExampleBackend()
    server = serve_tls(doorkeeper, backend=backend)
    with BackendPeer(server.addresses[0], tls=client) as peer:
        calls = {
            "Attach": lambda: peer.attach("c", True),
            "Mutate": lambda: peer.mutate(INSTANCE, 0, b"f"),
            "Lookup": lambda: peer.lookup(INSTANCE, [b"key"], 0),
            "Touch": lambda: peer.touch(bytes(16)),
            "Digest": lambda: peer.digest(SHARED),
            "List": lambda: list(peer.list_hashes(SHARED)),
            "Fetch": lambda: list(peer.fetch(bytes(16))),
            "Stats": lambda: peer.stats(),
        }
        for method, call in calls.items():
            with pytest.raises(Denied, match=f"may not {method}; ask for a grant") as refused:
                call()
            assert refused.value.took_effect is False
    assert [method for _, method in doorkeeper.seen] == list(calls)
    assert not backend.mutated
    assert not backend.touched


def test_a_doorkeeper_that_fails_lets_nobody_in(serve_tls: Serve, client: TlsConfig) -> None:
    def broken(names: tuple[str, ...] | None, method: str) -> None:
        raise KeyError(method)

    backend = ExampleBackend()
    server = serve_tls(broken, backend=backend)
    with BackendPeer(server.addresses[0], tls=client) as peer, pytest.raises(WireProblem):
        peer.mutate(INSTANCE, 0, b"f")
    assert not backend.mutated


def test_who_has_no_certificate_stays_outside(serve_tls: Serve) -> None:
    doorkeeper = Doorkeeper()
    problem = refusal(serve_tls(doorkeeper).addresses[0], None)
    assert isinstance(problem, Unreachable)
    assert "do both ends use TLS" in str(problem)
    assert not doorkeeper.seen


def test_who_has_a_certificate_of_another_authority_stays_outside(
    serve_tls: Serve, authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger").issue(CLIENT, file="stranger-client")
    server = serve_tls()
    trusting = TlsConfig(certificate=stranger.certificate, key=stranger.key, roots=str(authority.roots))
    assert "does it trust our certificate" in str(refusal(server.addresses[0], trusting))
    assert isinstance(refusal(server.addresses[0], stranger), Denied), "and the client does not trust the server"


def test_a_client_believes_only_the_server_it_means(serve_tls: Serve, client: TlsConfig) -> None:
    address = serve_tls().addresses[0]
    problem = refusal(address, client, server_name="cache-7.example")
    assert isinstance(problem, Denied)
    assert "the certificates' names" in str(problem)
    with BackendPeer(address, tls=client, server_name="localhost") as peer:
        assert peer.stats().instance == INSTANCE


def test_a_certificate_that_ran_out_is_none(serve_tls: Serve, authority: Authority) -> None:
    refusal(serve_tls().addresses[0], authority.issue(CLIENT, file="old", days=-1))


def test_a_server_without_tls_is_not_believed(client: TlsConfig) -> None:
    with serve(ExampleBackend(), ["127.0.0.1:0"]) as server:
        assert isinstance(refusal(server.addresses[0], client), Denied)


def test_unix_sockets_are_guarded_by_their_folder_and_have_no_names(
    serve_tls: Serve, client: TlsConfig, tmp_path: Path
) -> None:
    doorkeeper = Doorkeeper()
    server = serve_tls(doorkeeper, "127.0.0.1:0", f"unix:{tmp_path}/rpc")
    with BackendPeer(server.addresses[1], tls=client) as peer, pytest.raises(Denied):
        peer.stats()
    assert doorkeeper.seen == [(None, "Stats")]


def test_roots_of_the_environment_do_not_count(
    serve_tls: Serve, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", str(authority.roots))
    stranger = Authority(tmp_path, "stranger").issue(CLIENT, file="stranger-client")
    assert isinstance(refusal(serve_tls().addresses[0], stranger), Denied)


def test_files_that_are_no_certificates_are_named(client: TlsConfig, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    for wrong, words in ((str(tmp_path / "none.pem"), "No such file"), (str(tmp_path / "empty.pem"), "use a PEM file")):
        for name in ("certificate", "key", "roots"):
            paths = {"certificate": client.certificate, "key": client.key, "roots": client.roots, name: wrong}
            with pytest.raises(ConfigError, match=f"tls.{name}=.*{words}"):
                BackendPeer("localhost:7100", tls=TlsConfig(**paths))
            with pytest.raises(ConfigError, match=f"tls.{name}=.*{words}"):
                serve(ExampleBackend(), ["localhost:0"], tls=TlsConfig(**paths))


def test_files_that_do_not_go_together_are_refused_at_once(client: TlsConfig, authority: Authority) -> None:
    other = authority.issue("other.example", file="other")
    mixed = TlsConfig(certificate=client.certificate, key=other.key, roots=client.roots)
    swapped = TlsConfig(certificate=client.certificate, key=client.key, roots=client.key)
    for wrong, words in (
        (mixed, "use a certificate and its own key"),
        (swapped, "tls.roots=.*PEM file of certificates"),
    ):
        with pytest.raises(ConfigError, match=words):
            serve(ExampleBackend(), ["localhost:0"], tls=wrong)
        with pytest.raises(ConfigError, match=words):
            BackendPeer("localhost:7100", tls=wrong)


def test_plaintext_stays_on_the_machine_unless_told_otherwise() -> None:
    for address in ("0.0.0.0:0", "[::]:0", "cache-1.example:7100", "10.0.0.1:7100"):
        with pytest.raises(ConfigError, match="without TLS use a loopback address"):
            serve(ExampleBackend(), [address])
    with serve(ExampleBackend(), ["0.0.0.0:0"], plaintext_anywhere=True) as server:
        port = server.addresses[0].rpartition(":")[2]
        with BackendPeer(f"127.0.0.1:{port}") as peer:
            assert peer.stats().instance == INSTANCE
