"""A diagram, and how it shall run on a cluster: in the same words on the command line, in Python and over HTTP."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from borealis.diagram.protection import ProtectOptions
from borealis.errors import DiagramError
from borealis.message import first_mistake

MOST = 1024  # units, buckets


class DeployOptions(ProtectOptions, total=False):
    """What may be given beside the diagram; see `Deployment`."""

    cut: Collection[str]
    place: Mapping[str, str]
    units: int | None
    buckets: int
    backup: Mapping[str, str]
    pin: bool
    replace: bool


class Deployment(BaseModel):
    """What to deploy, and how. What is None is as the diagram says, or as it is by default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    yaml: str = Field(description="the diagram")
    cut: tuple[str, ...] = Field(default=(), description="boxes before which to cut")
    place: dict[str, str] = Field(default={}, description="inputs, boxes or outputs to the nodes they shall be on")
    units: int = Field(default=1, ge=1, le=MOST, description="cut each connected part into about so many")
    buckets: int = Field(default=1, ge=1, le=MOST, description="into which each stateful box splits its state")
    ha: str | None = Field(
        default=None,
        description="none, amnesia, passive, active, replicas, upstream-backup or storage, for all units",
    )
    guarantee: str | None = Field(default=None, description="gap, no-loss or precise, for all units")
    interval: str | None = Field(default=None, description="between checkpoints or trimming messages, as '500 ms'")
    checkpoint: str | None = Field(default=None, description="with ha: passive: interval, sweeping or min-max")
    replay: int | None = Field(default=None, ge=1, description="a checkpoint is due after so many rows at the latest")
    extent: float | None = Field(default=None, description="with ha: storage: of a log behind its base, in bases; 2")
    base_work: str | None = Field(default=None, description="with ha: storage: of each period for a base, as '20 ms'")
    base_period: str | None = Field(default=None, description="with ha: storage: that period, as '100 ms'")
    ping: str | None = Field(default=None, description="between two pings of a primary, as '100 ms'")
    misses: int | None = Field(default=None, ge=1, description="pings in a row until it is held to be dead")
    patience: str | None = Field(default=None, description="for one that accepts connections, as '5 seconds'")
    without_backup: str | None = Field(default=None, description="refuse or degrade, where no node is left")
    merge: str | None = Field(default=None, description="how several streams are read: arrival or time")
    bucket: str | None = Field(default=None, description="of time, with merge: time, as '100 ms'")
    delay: str | None = Field(default=None, description="within which there is an answer, tentative if need be: 3 s")
    delay_of: str | None = Field(default=None, description="of each unit, or of a whole path: unit or path")
    during_failure: str | None = Field(default=None, description="process or delay what comes meanwhile")
    during_stabilization: str | None = Field(default=None, description="process, delay or suspend, until corrected")
    reconcile: str | None = Field(default=None, description="local, or with ha: replicas also partner")
    keep: str | None = Field(default=None, description="of each input for the right answers, as '512 MB'; with delay")
    keep_time: str | None = Field(default=None, description="the same, for so long, as '10 minutes'")
    when_full: str | None = Field(default=None, description="wait, or with amnesia drop-oldest, which is a gap")
    replicas: int | None = Field(default=None, description="with ha: replicas: how many copies answer, two or more")
    backups: int | None = Field(default=None, description="with ha: passive: how many, one to three; 1")
    backup: dict[str, str] = Field(default={}, description="units to the nodes their backups shall be on")
    pin: bool = Field(default=False, description="units stay where they are put: none moves by itself")
    replace: bool = Field(default=False, description="end what runs under its name first, with its state and streams")

    @classmethod
    def of(cls, yaml: str, options: DeployOptions) -> Deployment:
        """With options as a program gives them; a DiagramError says what is wrong with one.

        >>> Deployment.of("name: d", {"ha": "passive", "units": None}).ha
        'passive'
        >>> Deployment.of("name: d", {"units": 0})
        Traceback (most recent call last):
        borealis.errors.DiagramError: units=0: Input should be greater than or equal to 1
        """
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        try:
            return cls(yaml=yaml, **given)
        except ValidationError as error:
            where, what, given_there = first_mistake(error, "options")
            raise DiagramError(f"{where}={given_there!r}: {what}") from None

    @property
    def protection(self) -> ProtectOptions:
        """What is given of the protection of all units."""
        given = {name: getattr(self, name) for name in ProtectOptions.__annotations__}
        return cast(ProtectOptions, {name: value for name, value in given.items() if value is not None})

    def to_json(self) -> dict[str, Any]:
        """What is not as it is by default."""
        return self.model_dump(mode="json", exclude_defaults=True)
