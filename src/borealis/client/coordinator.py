"""The coordinator as its clients see it: questions and orders over HTTP, its complaints raised as they are there."""

from __future__ import annotations

from types import TracebackType
from typing import Any
from urllib.parse import quote

from borealis.client.cluster_config import Whereabouts, how_to_start
from borealis.diagram.deployment import Deployment
from borealis.errors import WireError
from borealis.wire.endpoints import Location
from borealis.wire.messages import Problem
from borealis.wire.problems import error_of

TIMEOUT_S = 10.0
DEPLOY_TIMEOUT_S = 180.0  # types are checked by Spark, and units start before the answer comes
MOVE_TIMEOUT_S = 180.0


class Coordinator:
    """One coordinator. Safe to use from several threads."""

    def __init__(self, whereabouts: Whereabouts) -> None:
        import httpx  # here, so that `import borealis` does not wait for it

        self.whereabouts = whereabouts
        headers = {"authorization": f"Bearer {whereabouts.token}"} if whereabouts.token else {}
        self._http = httpx.Client(
            base_url=whereabouts.url,
            headers=headers,
            timeout=TIMEOUT_S,
            verify=_trust(whereabouts) if whereabouts.tls else False,
            trust_env=False,  # a proxy has no business between a cluster and its client
        )

    def locate(self, stream: str) -> Location:
        """Where a stream is, by its full or short name."""
        found = self.ask("GET", "/v1/locate", params={"stream": stream})
        try:
            fallback = found.get("fallback")
            return Location(
                str(found["stream"]),
                str(found["address"]),
                bool(found["entry"]),
                str(fallback) if fallback else None,
            )
        except (KeyError, TypeError, AttributeError):
            raise WireError(f"the coordinator's answer on '{stream}' is incomplete: {str(found)[:80]}") from None

    def deploy(self, deployment: Deployment) -> dict[str, Any]:
        """Order a diagram to run."""
        answer: dict[str, Any] = self.ask("POST", "/v1/diagrams", json=deployment.to_json(), timeout=DEPLOY_TIMEOUT_S)
        return answer

    def undeploy(self, name: str) -> dict[str, Any]:
        """Order a diagram to stop."""
        answer = self.ask("DELETE", f"/v1/diagrams/{quote(name, safe='')}", timeout=DEPLOY_TIMEOUT_S)
        return answer if isinstance(answer, dict) else {}

    def move(self, unit: str, node: str, diagram: str | None) -> dict[str, Any]:
        """Order a unit to another node."""
        body = {"node": node} | ({"diagram": diagram} if diagram else {})
        answer = self.ask("POST", f"/v1/units/{quote(unit, safe='')}/move", json=body, timeout=MOVE_TIMEOUT_S)
        return answer if isinstance(answer, dict) else {}

    def status(self) -> dict[str, Any]:
        """All the coordinator knows."""
        answer: dict[str, Any] = self.ask("GET", "/v1/status")
        return answer

    def nodes(self) -> list[dict[str, Any]]:
        """Every node it knows, alive or not."""
        return _listed(self.ask("GET", "/v1/nodes"), "nodes")

    def forget_node(self, name: str) -> None:
        """Have a dead node forgotten."""
        self.ask("DELETE", f"/v1/nodes/{quote(name, safe='')}", params={"only_dead": "true"})

    def streams(self) -> list[dict[str, Any]]:
        """Every stream that is served."""
        return _listed(self.ask("GET", "/v1/streams"), "streams")

    def ask(self, method: str, path: str, *, timeout: float = TIMEOUT_S, **more: Any) -> Any:
        """One request; the JSON of the answer."""
        import httpx

        address = self.whereabouts.address
        try:
            answer = self._http.request(method, path, timeout=timeout, **more)
        except httpx.ConnectError as error:
            if "CERTIFICATE" in str(error).upper() or "SSL" in str(error).upper():
                raise WireError(
                    f"no TLS with the coordinator at {address} ({error})",
                    hint="give the certificate authority: --ca FILE, or BOREALIS_CA",
                ) from None
            raise WireError(f"no coordinator at {address}", hint=how_to_start(self.whereabouts)) from None
        except httpx.ConnectTimeout:
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
        if answer.status_code >= 400:
            raise self._complaint(answer.content, answer.status_code)
        if not answer.content:
            return {}
        try:
            return answer.json()
        except ValueError:
            raise self._stranger(answer.status_code) from None

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _complaint(self, content: bytes, status: int) -> Exception:
        try:
            problem = Problem.decode(content)
        except WireError:
            return self._stranger(status)
        error = error_of(problem)
        error.status = status  # type: ignore[attr-defined]  # 503: later it may go well
        return error

    def _stranger(self, status: int) -> WireError:
        hint = "is another program using that port?"
        return WireError(f"what answers at {self.whereabouts.address} is no coordinator (status {status})", hint=hint)


def _listed(answer: Any, what: str) -> list[dict[str, Any]]:
    found = answer.get(what) if isinstance(answer, dict) else answer
    if not isinstance(found, list):
        raise WireError(f"the coordinator's answer has no list of {what}: {str(answer)[:80]}")
    return found


def _trust(whereabouts: Whereabouts) -> Any:
    import ssl

    try:
        return ssl.create_default_context(cafile=whereabouts.ca)
    except (OSError, ssl.SSLError) as error:
        raise WireError(
            f"cannot use the certificate authority '{whereabouts.ca}' ({error})", hint="give a file with certificates"
        ) from None
