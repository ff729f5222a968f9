"""How to reach Kafka's brokers: settings, addresses as people write them, and patience while brokers are away."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from borealis.clock import Clock, WallClock
from borealis.diagram.durations import parse, show
from borealis.errors import BorealisError, DiagramError, InputError, MachineError, did_you_mean, times

SCHEME = "kafka"
GIVE_UP = "2 minutes"  # without an answer from any broker
PAUSE_S = 0.2  # between two questions to brokers that do not answer
RECONNECT_MS = 2_000  # the longest pause before the library tries a broker again
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
class Brokers:
    """Where a cluster of brokers is. `settings` go to librdkafka as they are; their values are never shown."""

    addresses: str
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    give_up: str = GIVE_UP

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
        """Settings for a client; underscores in our own stand for dots. Its own log is off: `Presence` tells more."""
        given = {name: _filled(name, value) for name, value in self.settings.items()}
        mine = {name.replace("_", "."): value for name, value in ours.items()}
        return (
            {"log_level": 0, "reconnect.backoff.max.ms": RECONNECT_MS}
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


@dataclass(frozen=True)
class Address:
    """A topic as one word: kafka://host:port,host:port/topic?option=value. Options with a dot go to librdkafka."""

    brokers: str
    topic: str
    options: dict[str, str]
    settings: dict[str, str] = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> Address:
        """Taken apart.

        >>> Address.parse("kafka://a:9092,b:9092/packets?format=csv&security.protocol=SSL")
        Address(brokers='a:9092,b:9092', topic='packets', options={'format': 'csv'})
        """
        url = urlsplit(text)
        topic = unquote(url.path.strip("/"))
        if url.scheme != SCHEME or not url.netloc or not topic or "/" in topic:
            raise InputError(
                f"'{_no_secrets(text)}' is no topic",
                hint="write kafka://host:port/topic, or kafka://a:9092,b:9092/topic",
            )
        pairs = dict(parse_qsl(url.query, keep_blank_values=True))
        options = {name: value for name, value in pairs.items() if "." not in name}
        return cls(url.netloc, topic, options, {n: v for n, v in pairs.items() if "." in n})

    def check_options(self, known: tuple[str, ...]) -> None:
        """Refuse an option that nobody knows."""
        for name in self.options:
            if name not in known:
                raise InputError(
                    f"a topic takes no option '{name}' (has: {', '.join(known)})", hint=did_you_mean(name, known)
                )


def is_topic(value: object) -> bool:
    """Whether this is the address of a topic."""
    return isinstance(value, str) and value.startswith(f"{SCHEME}://")


def shown(text: str) -> str:
    """An address of a topic without its settings; anything else as it is.

    >>> shown("kafka://a:9092/t?sasl.password=geheim"), shown("out.csv")
    ('kafka://a:9092/t', 'out.csv')
    """
    return _no_secrets(text) if is_topic(text) else text


def _no_secrets(text: str) -> str:
    return text.partition("?")[0]


def refused(error: Any, what: str, kind: type[BorealisError]) -> BorealisError:
    """What librdkafka says of settings, without their values."""
    said = str(error)
    match = re.search(r'property[: ]+"([^"]+)"', said)
    if match is None:
        return kind(f"{what}: the settings are refused", hint="check settings=...: their names and values")
    why = "is unknown" if "No such" in said else "has a value that is refused"
    return kind(f"{what}: the setting '{match[1]}' {why}", hint="see librdkafka's CONFIGURATION.md for all settings")


class Presence:
    """Whether brokers answer: tells once when they are lost and once when they are back, and gives up in time.

    A login that is refused before any was taken is an error at once: the library itself would try it for ever.
    """

    def __init__(self, what: str, brokers: Brokers, kind: type[BorealisError], clock: Clock | None = None) -> None:
        self._what, self._brokers, self._kind = what, brokers, kind
        self._clock = clock or WallClock()
        self._since: float | None = None
        self._tries = 0
        self._said = ""  # by the library, of its connections
        self._denied = False  # a broker is there, and does not take the login
        self._met = False  # a broker has answered before

    @property
    def note(self) -> str:
        """What a user should know now; empty if all is well."""
        since = self._since
        if since is None:
            return ""
        told = f"for {self._clock.now() - since:.0f} s, tried {times(self._tries)}"
        return f"{self._what}: {self._wrong} {told}" + (f" ({self._said})" if self._said else "")

    @property
    def _wrong(self) -> str:
        return f"no {'login' if self._denied else 'broker'} at {self._brokers.addresses}"

    @property
    def is_lost(self) -> bool:
        return self._since is not None

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
        """Nobody answered; raises when that has lasted too long."""
        now = self._clock.now()
        self._tries += 1
        why = self._said or why
        if self._denied and not self._met:
            raise self._kind(f"{self._what}: cannot log in at {self._brokers.addresses} ({why})", hint=LOGIN)
        if self._since is None:
            self._since = now
            log.warning("%s: %s (%s), trying again", self._what, self._wrong, why)
        if now - self._since >= self._brokers.give_up_s:
            waited = show(round(self._brokers.give_up_s * 1e6))
            told = f"{self._what}: {self._wrong} for {waited}, tried {times(self._tries)} ({why})"
            raise self._kind(told, hint=LOGIN if self._denied else START)

    def found(self) -> None:
        if self._since is not None:
            away = self._clock.now() - self._since
            log.warning("%s: the broker is back after %.1f s", self._what, away)
            self._since = None
        self._met, self._tries, self._said, self._denied = True, 0, "", False

    def ask(self, question: Callable[[], T], stopped: threading.Event, unanswered: Callable[[Any], None]) -> T:
        """Ask until a broker answers, or `stopped`; what it refuses is raised as the library has it.

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
            self.check(stopped)
            stopped.wait(PAUSE_S)

    def check(self, stopped: threading.Event) -> None:
        """Raise if there is no more waiting for brokers."""
        if stopped.is_set():
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
    """What the library calls brokers that do not answer, or not to us."""
    codes = kafka.KafkaError
    return (
        codes._TRANSPORT,
        codes._ALL_BROKERS_DOWN,
        codes._TIMED_OUT,
        codes._RESOLVE,
        codes._AUTHENTICATION,
        codes._SSL,
    )


def _words(said: str) -> str:
    """What the library said, without the name of the connection before and its statistics behind.

    >>> _words("sasl_ssl://a:9092/bootstrap: SASL authentication error: Who? (after 3ms in state AUTH)")
    'SASL authentication error: Who?'
    """
    return re.sub(r"^\S+/\w+: |:?\s*\((?:after|in state).*", "", said)
