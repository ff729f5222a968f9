"""Options that several commands have, and classes of options as parameters of commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from typer import Argument, Option

from borealis.errors import BorealisError, ClusterError

if TYPE_CHECKING:
    from borealis.client.client import Client
    from borealis.wire.auth import Security

Yaml = Annotated[Path, Argument(metavar="DIAGRAM", help="The diagram, a YAML file.")]
StreamName = Annotated[str, Argument(help="An output, input or box: per_source, or traffic/per_source.")]
Json = Annotated[bool, Option("--json", help="Print JSON on stdout, and nothing else.")]
JsonRows = Annotated[bool, Option("--json", help="Print JSON lines.")]
Host = Annotated[str, Option(help="The address to listen at; others need a token.")]
Master = Annotated[str | None, Option(metavar="URL", help="Spark's master; all cores of this machine if left out.")]
Coordinator = Annotated[
    str | None,
    Option(metavar="HOST:PORT", help="The coordinator; BOREALIS_COORDINATOR, or what 'up' started, if left out."),
]
TokenFile = Annotated[
    Path | None, Option(metavar="FILE", help="The file with the cluster's token; BOREALIS_TOKEN if left out.")
]
Pem = Path | None
Names = list[str] | None


@dataclass(frozen=True)
class ClusterOptions:
    """Which cluster a command talks to, and the right to do so."""

    coordinator: Coordinator = None
    token_file: TokenFile = None
    ca: Annotated[Pem, Option(metavar="FILE", help="Who signed the cluster's certificates (PEM).")] = None

    def client(self) -> Client:
        """A client of that cluster; nothing is sent yet."""
        from borealis.client.client import connect
        from borealis.client.cluster_config import read_token

        return connect(self.coordinator, read_token(self.token_file), ca=self.ca)


@dataclass(frozen=True)
class SecurityOptions:
    """How a process of a cluster is protected: its token and certificates."""

    token_file: TokenFile = None
    tls_cert: Annotated[Pem, Option(metavar="FILE", help="Certificate for TLS (PEM).")] = None
    tls_key: Annotated[Pem, Option(metavar="FILE", help="The certificate's key (PEM).")] = None
    tls_ca: Annotated[Pem, Option(metavar="FILE", help="Who signed the others' certificates (PEM).")] = None

    def security(self, token: str | None) -> Security:
        """Read from their files; `token` where no file is given."""
        from borealis.client.cluster_config import read_token
        from borealis.wire.auth import Security

        if (self.tls_cert is None) != (self.tls_key is None):
            raise ClusterError("--tls-cert and --tls-key go together", hint="give both")
        ca = self.tls_ca or self.tls_cert
        return Security(token=read_token(self.token_file) or token, cert=self.tls_cert, key=self.tls_key, ca=ca)


def for_typer(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command as Typer takes it: for a parameter that is a class of options, its fields stand in its place."""
    hints = get_type_hints(command, include_extras=True)
    parameters = signature(command).parameters
    classes = {name: hints[name] for name in parameters if is_dataclass(hints[name])}
    taken: list[Parameter] = []
    for name, parameter in parameters.items():
        if name in classes:
            kinds = get_type_hints(classes[name], include_extras=True)
            of_class = signature(classes[name]).parameters.values()
            taken += [one.replace(annotation=kinds[one.name], kind=Parameter.KEYWORD_ONLY) for one in of_class]
        else:
            taken.append(parameter.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY))

    def call(**given: Any) -> Any:
        made = {name: cls(**{one.name: given.pop(one.name) for one in fields(cls)}) for name, cls in classes.items()}
        return command(**given, **made)

    call.__signature__ = Signature(taken)  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in taken}
    return call


StorageUri = Annotated[
    str | None,
    Option(metavar="URI", help="Keep units and catalog here: a directory, s3://bucket/folder, hdfs://..."),
]
AllowFaults = Annotated[
    bool, Option("--allow-faults", help="Let 'borealis cut' cut nodes off from streams, to try what happens.")
]

PoolSize = Annotated[
    int | None,
    Option(
        "--pool",
        min=0,
        max=64,
        metavar="N",
        help="Started queries each node keeps for units it may take over; 1 if left out.",
    ),
]


def arguments(command: str, **options: Any) -> list[str]:
    """`borealis COMMAND ...` with these options, wherever that is typed; those that are None are left out.

    >>> arguments("node", name="node1", cores=None, tls_cert=Path("/c.pem"), conf=["a=1", "b=2"], allow_faults=True)
    ['node', '--name', 'node1', '--tls-cert', '/c.pem', '--conf', 'a=1', '--conf', 'b=2', '--allow-faults']
    """
    made = [command]
    for name, value in options.items():
        for one in value if isinstance(value, list) else [] if value is None else [value]:
            text = [] if one is True else [str(one.absolute() if isinstance(one, Path) else one)]
            made += [f"--{name.replace('_', '-')}", *text]
    return made


def pairs(option: str, given: Sequence[str] | None, example: str, what: str = "VALUE") -> dict[str, str]:
    """`NAME=VALUE` options as a dict. To say the same twice is no mistake, but for a PATH."""
    found: dict[str, str] = {}
    for pair in given or ():
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            raise BorealisError(f"{option} '{pair}' is not NAME={what}", hint=f"write {option} {example}")
        if name in found and (found[name] != value or what == "PATH"):
            raise BorealisError(f"{option} {name} is given twice", hint="keep one of them")
        found[name] = value
    return found
