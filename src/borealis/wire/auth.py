"""Who may talk to a node: a bearer token on every call, TLS where there are certificates, nothing else off loopback."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from borealis.errors import ClusterError, WireError
from borealis.hosts import is_loopback

HEADER = "authorization"
SCHEME = "Bearer "
HOW = "give a token (and a certificate with its key, for TLS), or use 127.0.0.1"


@dataclass(frozen=True)
class Security:
    """What a process proves itself with. For TLS a server needs `cert` and `key`, its clients the `ca` behind it."""

    token: str | None = field(default=None, repr=False)
    cert: Path | None = None
    key: Path | None = field(default=None, repr=False)
    ca: Path | None = None

    def __post_init__(self) -> None:
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
            raise WireError("this token cannot be used", hint="visible ASCII characters only, one at least")
        if (self.cert is None) != (self.key is None):
            raise WireError("a certificate and its key go together", hint="give both, or none for a wire without TLS")

    @property
    def tls(self) -> bool:
        return self.cert is not None

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Of every call."""
        return [] if self.token is None else [(HEADER.encode(), f"{SCHEME}{self.token}".encode())]

    def certificates(self) -> list[tuple[bytes, bytes]]:
        """For a server: its certificate and key."""
        return [] if self.cert is None or self.key is None else [(_pem(self.cert), _pem(self.key))]

    def roots(self) -> bytes | None:
        """For a client: who must have signed the server's certificate; None: those whom this machine trusts."""
        return None if self.ca is None else _pem(self.ca)


OPEN = Security()


def _pem(path: Path) -> bytes:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise WireError(f"cannot read '{path}': {error.strerror}", hint="check the path and its permissions") from None
    if b"-----BEGIN " not in data:
        raise WireError(f"'{path}' has no PEM in it", hint="certificates and keys are given as PEM files")
    return data


def host_of(address: str) -> str:
    """The host in `grpc://host:port`, `host:port` or `host`.

    >>> host_of("grpc://127.0.0.1:7471"), host_of("[::1]:80"), host_of("example.org")
    ('127.0.0.1', '::1', 'example.org')
    """
    text = address.strip()
    if "://" not in text:
        text = f"//[{text}]" if text.count(":") > 1 and not text.startswith("[") else f"//{text}"
    try:
        return urlsplit(text).hostname or ""
    except ValueError:
        raise WireError(f"'{address}' is no address", hint="write host:port") from None


def require_security(addresses: Iterable[str], security: Security | None) -> None:
    """Refuse to open an address to other machines without a token."""
    exposed = [a for a in addresses if not is_loopback(host_of(a))]
    if exposed and (security is None or security.token is None):
        raise ClusterError(f"{', '.join(exposed)}: open to other machines, and no token given", hint=HOW)


def refused_token(given: Sequence[bytes], token: str | None) -> str:
    """What is wrong with the `authorization` of a call, if anything is; where there is no token, any call may come."""
    if token is None or (len(given) == 1 and hmac.compare_digest(given[0], f"{SCHEME}{token}".encode())):
        return ""
    return f"refused: {'another token' if given else 'no token'}"
