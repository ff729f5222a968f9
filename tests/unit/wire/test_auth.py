"""Who is let in, and what a server refuses to be."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hosting import SCHEMA, TinyHost, next_section
from pyarrow import flight

from borealis.errors import ClusterError, MachineError, WireError
from borealis.hosts import is_loopback
from borealis.wire.auth import Security, host_of, require_security
from borealis.wire.client import Peer
from borealis.wire.messages import Ack, Publish, Subscribe
from borealis.wire.server import WireServer
from borealis.wire.waiting import PeerTimings

QUICK = PeerTimings(connect_s=2, answer_s=3)


@pytest.mark.parametrize(
    ("address", "host", "loopback"),
    [
        ("grpc://127.0.0.1:0", "127.0.0.1", True),
        ("127.8.9.1:80", "127.8.9.1", True),
        ("localhost:7470", "localhost", True),
        ("http://[::1]:7470", "::1", True),
        ("::1", "::1", True),
        ("[::1]:80", "::1", True),
        ("0.0.0.0:80", "0.0.0.0", False),
        ("grpc://[::]:80", "::", False),
        ("::", "::", False),
        ("10.0.0.7", "10.0.0.7", False),
        ("example.org:80", "example.org", False),
        ("localhost.example.org", "localhost.example.org", False),
        ("127.0.0.1.example.org:1", "127.0.0.1.example.org", False),
        ("grpc://127.0.0.1@example.org:1", "example.org", False),
        ("", "", False),
    ],
)
def test_what_only_this_machine_can_reach(address: str, host: str, loopback: bool) -> None:
    assert (host_of(address), is_loopback(host_of(address))) == (host, loopback)


def test_an_open_address_needs_a_token() -> None:
    require_security(["127.0.0.1:1", "http://localhost:2"], None)
    require_security(["0.0.0.0:1"], Security(token="t"))
    for security in (None, Security()):
        with pytest.raises(ClusterError, match=r"0\.0\.0\.0:1, b:2: open to other machines.*Hint: give a token"):
            require_security(["127.0.0.1:1", "0.0.0.0:1", "b:2"], security)


def test_a_server_refuses_to_be_open(host: TinyHost) -> None:
    with pytest.raises(ClusterError, match="no token given"):
        WireServer(host, "grpc://0.0.0.0:0")
    with (
        WireServer(host, "grpc://0.0.0.0:0", Security(token="t")) as server,
        Peer(f"grpc://127.0.0.1:{server.port}", Security(token="t")) as peer,
    ):
        assert peer.ping()


@pytest.mark.parametrize("token", ["", " ", "a\nb", "ü", "a\0b"])
def test_tokens_that_cannot_be(token: str) -> None:
    with pytest.raises(WireError, match="cannot be used"):
        Security(token=token)


def test_a_certificate_and_its_key_go_together(tmp_path: Path) -> None:
    with pytest.raises(WireError, match="go together"):
        Security(cert=tmp_path / "a.pem")
    with pytest.raises(WireError, match=r"cannot read '.*a\.pem'"):
        Security(cert=tmp_path / "a.pem", key=tmp_path / "b.pem").certificates()
    (tmp_path / "a.pem").write_text("nothing")
    with pytest.raises(WireError, match="no PEM"):
        Security(ca=tmp_path / "a.pem").roots()


def test_a_token_is_not_shown() -> None:
    assert "hush" not in repr(Security(token="hush"))


@pytest.mark.parametrize("security", [None, Security(token="wrong"), Security(token="rightx"), Security(token="righ")])
def test_no_call_goes_without_the_token(host: TinyHost, security: Security | None) -> None:
    with WireServer(host, security=Security(token="right")) as server, Peer(server.address, security, QUICK) as peer:
        for call in (
            peer.ping,
            lambda: peer.ack(Ack(stream="d/a", reader="r", level=1, upto=0)),
            lambda: peer.subscribe(Subscribe(stream="d/a")),
            lambda: peer.publish(Publish(stream="d/a", publisher="p"), SCHEMA),
            lambda: list(peer.export("bytes", b"[1]")),
        ):
            with pytest.raises(WireError, match=r"refused: (no|another) token\. Hint: give the token"):
                call()
        client = flight.FlightClient(server.address)
        options = flight.FlightCallOptions(headers=(security or Security()).headers())
        descriptor = flight.FlightDescriptor.for_path("x")
        for raw in (
            lambda: list(client.list_flights(options=options)),
            lambda: client.list_actions(options),
            lambda: client.get_flight_info(descriptor, options),
            lambda: client.do_get(flight.Ticket(b""), options),
            lambda: client.do_put(descriptor, SCHEMA, options)[0].close(),
            lambda: client.do_exchange(descriptor, options)[1].read_chunk(),
        ):
            with pytest.raises(flight.FlightUnauthenticatedError):
                raw()
    assert host.queue("d/a").status().readers == {}


def test_with_the_token_everything_goes(host: TinyHost) -> None:
    token = Security(token="right")
    with WireServer(host, security=token) as server, Peer(server.address, token) as peer:
        host.queue("d/a").append(next_section(host.queue("d/a"), 3))
        with peer.subscribe(Subscribe(stream="d/a", stop=3)) as subscription:
            assert sum(len(s) for s in subscription) == 3
        with peer.publish(Publish(stream="d/a", publisher="p"), SCHEMA) as publication:
            assert publication.known.number == -1
        assert list(peer.export("bytes", b"[1]")) == [b"\0"]


# -- TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that signs itself, its key, and another that signs nothing here."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command to make certificates with")
    home = tmp_path_factory.mktemp("tls")
    for name in ("mine", "other"):
        subprocess.run(
            f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} -keyout {name}.key -out {name}.pem "
            "-addext subjectAltName=IP:127.0.0.1,DNS:localhost".split(),
            cwd=home,
            check=True,
            capture_output=True,
        )
    return home


def test_tls_with_a_token(host: TinyHost, certificates: Path) -> None:
    own = Security(token="right", cert=certificates / "mine.pem", key=certificates / "mine.key")
    with WireServer(host, security=own) as server:
        assert server.address.startswith("grpc+tls://127.0.0.1:")
        with Peer(server.address, Security(token="right", ca=certificates / "mine.pem"), QUICK) as peer:
            host.queue("d/a").append(next_section(host.queue("d/a"), 3))
            with peer.subscribe(Subscribe(stream="d/a", stop=3)) as subscription:
                assert sum(len(s) for s in subscription) == 3
        with (
            Peer(server.address, Security(ca=certificates / "mine.pem"), QUICK) as peer,
            pytest.raises(WireError, match="refused: no token"),
        ):
            peer.ping()


@pytest.mark.parametrize("ca", ["other.pem", None])
def test_a_server_nobody_vouches_for_is_not_talked_to(host: TinyHost, certificates: Path, ca: str | None) -> None:
    own = Security(cert=certificates / "mine.pem", key=certificates / "mine.key")
    trust = Security(token="secret", ca=None if ca is None else certificates / ca)
    with (
        WireServer(host, security=own) as server,
        Peer(server.address, trust, QUICK) as peer,
        pytest.raises(WireError, match="cannot be reached"),
    ):
        peer.ping()


def test_plain_and_tls_do_not_mix(host: TinyHost, certificates: Path) -> None:
    own = Security(cert=certificates / "mine.pem", key=certificates / "mine.key")
    with (
        WireServer(host, "grpc+tls://127.0.0.1:0", own) as server,
        Peer(f"grpc://127.0.0.1:{server.port}", timings=QUICK) as peer,
        pytest.raises(WireError, match=r"cannot be reached|did not answer"),
    ):
        peer.ping()


def test_a_key_that_does_not_fit(host: TinyHost, certificates: Path) -> None:
    wrong = Security(cert=certificates / "mine.pem", key=certificates / "other.key")
    with pytest.raises(MachineError, match="the certificate one with its key"):
        WireServer(host, security=wrong).start()
