"""What a node says to its coordinator, over HTTP. It never waits long: a node does not depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
from pydantic import TypeAdapter, ValidationError

from borealis.errors import BorealisError, UnreachableError, WireError
from borealis.wire.auth import Security
from borealis.wire.endpoints import Location
from borealis.wire.messages import Claim, Claimed, Problem
from borealis.wire.problems import error_of

ANSWER_S = 5.0
# seconds: a takeover does not wait for a coordinator that is not there, but a little for one that is slow
CLAIM_TIMEOUT = httpx.Timeout(0.5, connect=0.1)


class Coordinator:
    """The coordinator, as a node sees it."""

    def __init__(self, address: str, security: Security | None) -> None:
        scheme = "https" if security is not None and security.tls else "http"
        base = address if "://" in address else f"{scheme}://{address}"
        self._address = base
        headers = {"authorization": f"Bearer {security.token}"} if security and security.token else {}
        verify: Any = str(security.ca) if security is not None and security.ca is not None else True
        self._http = httpx.Client(base_url=base, headers=headers, timeout=ANSWER_S, verify=verify, trust_env=False)

    def heartbeat(self, status: bytes) -> None:
        """Raises the coordinator's own error where it refuses this node."""
        try:
            answer = self._http.post("/v1/nodes", content=status, headers={"content-type": "application/json"})
            if answer.status_code in (httpx.codes.CONFLICT, httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
                raise _refusal(answer.content)
            answer.raise_for_status()
        except httpx.HTTPError as error:
            raise UnreachableError(f"the coordinator at {self._address} does not answer: {error}") from error

    def locate(self, stream: str) -> Location | None:
        """Who serves a stream now, and who will if that one dies, if the coordinator can tell."""
        try:
            answer = self._http.get("/v1/locate", params={"stream": stream})
        except httpx.HTTPError:
            return None
        try:
            found = answer.json() if answer.status_code == httpx.codes.OK else None
        except ValueError:  # somebody between us answers in its place
            return None
        if not isinstance(found, dict) or not found.get("address"):
            return None
        return Location(stream, str(found["address"]), fallback=found.get("fallback"))

    def claim(self, claims: Sequence[Claim]) -> list[Claimed] | None:
        """What the coordinator says to claims; None if it says nothing in time, or nothing that makes sense."""
        body = "[" + ",".join(one.model_dump_json() for one in claims) + "]"
        headers = {"content-type": "application/json"}
        try:
            answer = self._http.post("/v1/claims", content=body, headers=headers, timeout=CLAIM_TIMEOUT)
            answer.raise_for_status()
            said = TypeAdapter(list[Claimed]).validate_json(answer.content)
        except (httpx.HTTPError, ValidationError):
            return None
        return said if len(said) == len(claims) else None

    def close(self) -> None:
        """Hang up."""
        self._http.close()


def _refusal(body: bytes) -> BorealisError:
    """What the coordinator says; what somebody between us says in its place is no reason to end."""
    try:
        return error_of(Problem.decode(body))
    except WireError:
        return UnreachableError("somebody else answers in the coordinator's place")
