"""How to reach Kafka's brokers: settings, and patience while brokers are away."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from borealis.clock import WALL, Clock
from borealis.diagram.durations import parse, show
from borealis.errors import BorealisError, DiagramError, InputError, MachineError, did_you_mean, times

GIVE_UP = "2 minutes"  # without an answer from any broker
VARIABLE = re.compile(r"\$\{(\w+)\}")
LOGIN = "check security.protocol, sasl.* and ssl.* in the settings"
START = (
    "start the broker, check the address and, if it wants a login or TLS, security.protocol in the settings; "
    "or wait longer with give_up='10 minutes'; nothing is lost"
)
OURS = ("bootstrap.servers", "group.id", "transactional.id", "enable.auto.commit", "auto.offset.reset")

T = TypeVar("T")
log = logging.getLogger("borealis.kafka")


def confluent() -> Any:
    """The client library, or a word on how to get it."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise MachineError(
            "Kafka needs the package confluent-kafka", hint="pip install 'confluent-kafka>=2.11,<3'"
        ) from error
    return confluent_kafka


@dataclass(frozen=True)
class KafkaTimings:
    ask_s: float = 2.0  # one question to a broker
    pause_s: float = 0.2  # between two questions to brokers that do not answer
    probe_s: float = 1.0  # between two looks whether brokers are back
    reconnect_ms: int = 2_000  # the longest pause before the library tries a broker again
    # readers
    record_s: float = 0.1  # for the first record of a batch; also how soon a wish to stop is heard
    hold_s: float = 5.0  # how long a partition that does not deliver may hold the others back
    new_partitions_s: float = 30.0  # between two looks for partitions that were added
    full_ms: int = 10  # how soon the library fetches again when its queue was full; its own choice is a second
    # writers
    offsets_s: float = 20.0  # to send the position; the library itself may wait for ever
    commit_s: float = 60.0  # one attempt to end a transaction; a broker that dies in its midst is noticed only then
    room_s: float = 0.1  # for room in the library's own queue
    silent_ms: int = 10_000  # a request without an answer; calls within a transaction come back no sooner
    retry_ms: int = 5  # the library's own: a broker not done with the last transaction takes the next in a moment
    met_s: float = 0.25  # a broker that committed so lately is not asked whether it is there
    flush_s: float = 0.5  # between two looks at letters that are still under way


@dataclass(frozen=True)
class Brokers:
    """Where a cluster of brokers is. `settings` go to librdkafka as they are; their values are never shown."""

    addresses: str
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    give_up: str = GIVE_UP
    timings: KafkaTimings = field(default_factory=KafkaTimings)

    def __post_init__(self) -> None:
        if not self.addresses:
            raise InputError("no brokers are named", hint="give their addresses: brokers='localhost:9092'")
        for name in self.settings:
            if name in OURS:
                raise InputError(f"the setting '{name}' is not for users", hint="leave it out: it is chosen here")
        _ = self.give_up_s

    @property
    def give_up_s(self) -> float:
        """How long to wait for brokers that are away."""
        try:
            return parse(self.give_up) / 1e6
        except DiagramError as error:
            raise InputError(f"give_up: {error.message}", hint=error.hint) from None

    def conf(self, **ours: Any) -> dict[str, Any]:
        """Settings for a client; underscores in our own stand for dots. Its own log is off: `Presence` says more."""
        given = {name: _filled(name, value) for name, value in self.settings.items()}
        mine = {name.replace("_", "."): value for name, value in ours.items()}
        return (
            {"log_level": 0, "reconnect.backoff.max.ms": self.timings.reconnect_ms}
            | mine
            | given
            | {"bootstrap.servers": self.addresses, "logger": log}
        )


def _filled(name: str, value: Any) -> Any:
    """A setting with variables of the environment put in."""
    if not isinstance(value, str):
        return value

    def variable(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            raise InputError(
                f"the setting '{name}' names the variable {match[1]}, which is not set", hint=f"export {match[1]}=..."
            )
        return os.environ[match[1]]

    return VARIABLE.sub(variable, value)


class Presence:
    """Whether brokers answer: logs once when they are lost and once when they are back, and gives up in time.

    A login that is refused before any was taken is an error at once: the library itself would try it for ever.
    """

    def __init__(self, what: str, brokers: Brokers, kind: type[BorealisError], clock: Clock = WALL) -> None:
        self._what, self._brokers, self._kind = what, brokers, kind
        self._clock = clock
        self._stopped = threading.Event()
        self.lost_since: float | None = None  # None: they answer
        self._tries = 0
        self._said = ""  # by the library, of its connections
        self._denied = False  # a broker is there, and does not take the login
        self._met = False  # a broker has answered before

    def client(self, kind: str, heard: Callable[[Any], object], **settings: Any) -> Any:
        """A `Consumer` or `Producer` of the library; what it refuses of the settings is shown without their values."""
        kafka = confluent()
        try:
            return getattr(kafka, kind)(self._brokers.conf(**settings) | {"error_cb": heard})
        except kafka.KafkaException as error:
            match = re.search(r'property[: ]+"([^"]+)"', str(error))
            wrong = "has a value that is refused" if "No such" not in str(error) else "is unknown"
        if match is None:
            raise self._kind(f"{self._what}: the settings are refused", hint="check settings=...: names and values")
        raise self._kind(
            f"{self._what}: the setting '{match[1]}' {wrong}", hint="see librdkafka's CONFIGURATION.md for all settings"
        )

    @property
    def note(self) -> str:
        """What a user should know now; empty if all is well."""
        since = self.lost_since
        if since is None:
            return ""
        lost = f"{self._what}: {self._wrong} for {self._clock.now() - since:.0f} s, tried {times(self._tries)}"
        return lost + (f" ({self._said})" if self._said else "")

    @property
    def _wrong(self) -> str:
        return f"no {'login' if self._denied else 'broker'} at {self._brokers.addresses}"

    def heard(self, error: Any) -> bool:
        """What the library says of its connections, which is more than it says to who asks; whether it is of those."""
        kafka = confluent()
        codes = kafka.KafkaError
        if error.code() not in away(kafka):
            return False
        if error.code() != codes._ALL_BROKERS_DOWN:
            self._denied = error.code() in (codes._AUTHENTICATION, codes._SSL)
            self._said = _words(error.str())
        return True

    def lost(self, why: str) -> None:
        """No broker answered; raises when that has lasted too long."""
        now = self._clock.now()
        self._tries += 1
        why = self._said or why
        if self._denied and not self._met:
            raise self._kind(f"{self._what}: cannot log in at {self._brokers.addresses} ({why})", hint=LOGIN)
        if self.lost_since is None:
            self.lost_since = now
            log.warning("%s: %s (%s), trying again", self._what, self._wrong, why)
        if now - self.lost_since >= self._brokers.give_up_s:
            waited = show(round(self._brokers.give_up_s * 1e6))
            lost = f"{self._what}: {self._wrong} for {waited}, tried {times(self._tries)} ({why})"
            raise self._kind(lost, hint=LOGIN if self._denied else START)

    def found(self) -> None:
        if self.lost_since is not None:
            away = self._clock.now() - self.lost_since
            log.warning("%s: the broker is back after %.1f s", self._what, away)
            self.lost_since = None
        self._met, self._tries, self._said, self._denied = True, 0, "", False

    def ask(self, question: Callable[[], T], unanswered: Callable[[Any], None]) -> T:
        """Ask until a broker answers, or `stop`; what it refuses is raised as the library has it.

        What `unanswered` is given may be better in a moment: it says whether that is a loss.
        """
        kafka = confluent()
        while True:
            try:
                answer = question()
                self.found()
                return answer
            except kafka.KafkaException as error:
                code = error.args[0]
                if code.fatal() or code.txn_requires_abort() or not (code.retriable() or code.code() in away(kafka)):
                    raise
                unanswered(code)
            self.pause()

    def pause(self) -> None:
        self.check()
        self._stopped.wait(self._brokers.timings.pause_s)

    def stop(self) -> None:
        """Wait no more; from any thread."""
        self._stopped.set()

    def check(self) -> None:
        """Raise if there is no more waiting for brokers."""
        if self._stopped.is_set():
            raise self._kind(f"{self._what}: stopped while waiting for a broker", hint="start again to go on")

    def topic(self, name: str, list_topics: Callable[..., Any]) -> Any:
        """What brokers say of a topic; an error if there is none, or not for us."""
        found = list_topics(name).topics[name]
        if found.error is None:
            return found
        if found.error.code() == confluent().KafkaError.UNKNOWN_TOPIC_OR_PART:
            known = sorted(other for other in list_topics().topics if not other.startswith("__") and other != name)
            hint = did_you_mean(name, known) or f"make the topic first; there are: {', '.join(known)}"
            raise self._kind(f"{self._what}: there is no topic '{name}'", hint=hint)
        raise self._kind(f"{self._what}: topic '{name}': {found.error.str()}", hint="check the access rights")


def away(kafka: Any) -> tuple[int, ...]:
    """What the library calls brokers that do not answer, or not to us, or that have just come back."""
    e = kafka.KafkaError
    gone = (e._TRANSPORT, e._ALL_BROKERS_DOWN, e._TIMED_OUT, e._RESOLVE, e._AUTHENTICATION, e._SSL)
    return *gone, e.NOT_COORDINATOR, e.COORDINATOR_NOT_AVAILABLE, e.COORDINATOR_LOAD_IN_PROGRESS


def _words(said: str) -> str:
    """What the library said, without the name of the connection before and its statistics behind.

    >>> _words("sasl_ssl://a:9092/bootstrap: SASL authentication error: Who? (after 3ms in state AUTH)")
    'SASL authentication error: Who?'
    """
    return re.sub(r"^\S+/\w+: |:?\s*\((?:after|in state).*", "", said)
