"""The coordinator as clients, nodes and commands see it: over HTTP, its complaints raised as they are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError

from borealis.client.cluster_config import Whereabouts, how_to_start
from borealis.errors import BorealisError, UnreachableError, WireError
from borealis.wire.endpoints import Location
from borealis.wire.messages import Claim, Claimed, Problem
from borealis.wire.problems import error_of
from borealis.wire.status import ClusterStatus, NodeList, NodeView, Ordered, StreamList, StreamView

REFUSALS = (401, 403, 409)  # of a heartbeat: this node shall not be


@dataclass(frozen=True)
class RequestTimings:
    """How long to wait for the coordinator, in seconds."""

    answer_s: float = 10.0
    heartbeat_s: float = 5.0
    locate_s: float = 5.0  # of a node: while it waits, a feed does not notice a new route
    claim_s: float = 0.5  # a takeover waits a little for a coordinator that is slow
    claim_connect_s: float = 0.1  # and not for one that is not there
    change_s: float = 180.0  # types are checked by Spark, and units start before the answer comes


TIMINGS = RequestTimings()


class CoordinatorRequests:
    """What programs and commands ask of a coordinator. Safe to use from several threads."""

    def __init__(self, whereabouts: Whereabouts) -> None:
        import httpx  # here, so that `import borealis` does not wait for it

        self.whereabouts = whereabouts
        headers = {"authorization": f"Bearer {whereabouts.token}"} if whereabouts.token else {}
        self._http = httpx.Client(
            base_url=whereabouts.url,
            headers=headers,
            timeout=TIMINGS.answer_s,
            verify=_trust(whereabouts) if whereabouts.tls else False,
            trust_env=False,  # a proxy has no business between a cluster and its client
        )

    def locate(self, stream: str, timeout: float = TIMINGS.answer_s) -> Location:
        """Where a stream is served now, by its full or short name."""
        found = self.ask("GET", "/v1/locate", params={"stream": stream}, timeout=timeout)
        try:
            return TypeAdapter(Location).validate_python(found)
        except ValidationError:
            raise WireError(f"the coordinator's answer on '{stream}' is incomplete: {str(found)[:80]}") from None

    def undeploy(self, diagram: str) -> None:
        """Stop a diagram; its state and streams are gone then."""
        self.ask("DELETE", f"/v1/diagrams/{quote(diagram, safe='')}", timeout=TIMINGS.change_s)

    def move(self, unit: str, node: str, *, diagram: str | None = None) -> Ordered:
        """Move a running unit, with its state, to another node."""
        body = {"node": node} | ({"diagram": diagram} if diagram else {})
        path = f"/v1/units/{quote(unit, safe='')}/move"
        return Ordered.decode(self.ask("POST", path, json=body, timeout=TIMINGS.change_s))

    def status(self) -> ClusterStatus:
        """Everything: nodes, diagrams, units, streams."""
        return ClusterStatus.decode(self.ask("GET", "/v1/status"))

    def nodes(self) -> list[NodeView]:
        """The nodes, alive or not."""
        return NodeList.decode(self.ask("GET", "/v1/nodes")).nodes

    def forget_node(self, name: str) -> None:
        """A dead node will not come back; one that is alive is not forgotten."""
        self.ask("DELETE", f"/v1/nodes/{quote(name, safe='')}", params={"only_dead": "true"})

    def streams(self) -> list[StreamView]:
        """The streams, and where they are."""
        return StreamList.decode(self.ask("GET", "/v1/streams")).streams

    def ask(
        self, method: str, path: str, *, timeout: float = TIMINGS.answer_s, connect_s: float | None = None, **more: Any
    ) -> Any:
        """One request; the JSON of the answer."""
        import httpx

        address = self.whereabouts.address
        patience = httpx.Timeout(timeout, connect=connect_s or timeout)
        try:
            answer = self._http.request(method, path, timeout=patience, **more)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            if "CERTIFICATE" in str(error).upper() or "SSL" in str(error).upper():
                raise WireError(
                    f"no TLS with the coordinator at {address} ({error})",
                    hint="give the certificate authority: --ca FILE, or BOREALIS_CA",
                ) from None
            raise WireError(f"no coordinator at {address}", hint=how_to_start(self.whereabouts)) from None
        except httpx.TimeoutException:
            raise WireError(
                f"the coordinator at {address} did not answer within {timeout:.0f} s", hint="see its log"
            ) from None
        except httpx.HTTPError as error:
            raise WireError(
                f"the connection to the coordinator at {address} broke ({type(error).__name__})",
                hint="try again; does it speak https?",
            ) from None
        status = answer.status_code
        try:
            if status < 400:
                return answer.json() if answer.content else {}
            complaint = error_of(Problem.decode(answer.content))
            complaint.status = status  # type: ignore[attr-defined]  # 503: later it may go well
        except (ValueError, WireError):
            hint = "is another program using that port?"
            complaint = WireError(f"what answers at {address} is no coordinator (status {status})", hint=hint)
        raise complaint

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class CoordinatorClient(CoordinatorRequests):
    """A coordinator as a node sees it, which reports to it, and claims what it takes over."""

    def heartbeat(self, status: bytes) -> None:
        """A node is there, and this is on it. Raises the coordinator's own error where it refuses the node."""
        headers = {"content-type": "application/json"}
        try:
            self.ask("POST", "/v1/nodes", content=status, headers=headers, timeout=TIMINGS.heartbeat_s)
        except BorealisError as error:
            if getattr(error, "status", None) in REFUSALS:
                raise
            where, why = self.whereabouts.url, error.__context__ or error.message  # httpx's word, if it has one
            raise UnreachableError(f"the coordinator at {where} does not answer: {why}") from error

    def claim(self, claims: Sequence[Claim]) -> list[Claimed] | None:
        """What the coordinator says to claims; None if it says nothing in time, or nothing that makes sense."""
        body, wait = [one.model_dump(mode="json") for one in claims], TIMINGS.claim_s
        try:
            answer = self.ask("POST", "/v1/claims", json=body, timeout=wait, connect_s=TIMINGS.claim_connect_s)
            claimed = TypeAdapter(list[Claimed]).validate_python(answer)
        except (BorealisError, ValidationError):
            return None
        return claimed if len(claimed) == len(claims) else None


def _trust(whereabouts: Whereabouts) -> Any:
    import ssl

    try:
        return ssl.create_default_context(cafile=whereabouts.ca)
    except (OSError, ssl.SSLError) as error:
        raise WireError(
            f"cannot use the certificate authority '{whereabouts.ca}' ({error})", hint="give a file with certificates"
        ) from None
