"""Files and topics as one word each, with their options behind a question mark."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from borealis.errors import InputError, did_you_mean

SCHEME = "kafka"
STDIN = "-"
QUERY = re.compile(r"[a-z_]+=[^&]*(&[a-z_]+=[^&]*)*")
FLAGS = ("header", "sort")  # options of files that are on or off


def flag(place: str, name: str, value: str) -> bool:
    """An option that is on or off.

    >>> flag("a.csv", "header", "false")
    False
    """
    if value not in ("true", "false"):
        raise InputError(f"{place}: {name}={value} is neither true nor false", hint=f"write {name}=false")
    return value == "true"


def file_options(text: str) -> tuple[str, dict[str, Any]]:
    """A file's name, and its options. A question mark that has no options behind it is part of the name, or a pattern.

    >>> file_options("a.txt.gz?format=csv&delimiter=%20&header=false&null=NA&null=-")
    ('a.txt.gz', {'format': 'csv', 'delimiter': ' ', 'header': False, 'nulls': ('NA', '-')})
    >>> file_options("packets-?.csv")
    ('packets-?.csv', {})
    """
    name, mark, query = text.rpartition("?")
    if not mark or not QUERY.fullmatch(query) or Path(text).exists():
        return text, {}
    options: dict[str, Any] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key == "null":
            options["nulls"] = (*options.get("nulls", ()), value)
        elif key in options:
            raise InputError(f"{name} has the option '{key}' twice", hint="keep one of them")
        else:
            options[key] = flag(name, key, value) if key in FLAGS else value
    return name, options


@dataclass(frozen=True)
class TopicAddress:
    """A topic as one word: kafka://host:port,host:port/topic?option=value. Options with a dot go to librdkafka."""

    brokers: str
    topic: str
    options: dict[str, str]
    settings: dict[str, str] = field(repr=False)

    @classmethod
    def parse(cls, text: str, known: tuple[str, ...]) -> TopicAddress:
        """Taken apart; `known` are the options that it may have.

        >>> TopicAddress.parse("kafka://a:9092,b:9092/packets?format=csv&security.protocol=SSL", ("format",))
        TopicAddress(brokers='a:9092,b:9092', topic='packets', options={'format': 'csv'})
        """
        url = urlsplit(text)
        topic = unquote(url.path.strip("/"))
        if url.scheme != SCHEME or not url.netloc or not topic or "/" in topic:
            raise InputError(
                f"'{text.partition('?')[0]}' is no topic",
                hint="write kafka://host:port/topic, or kafka://a:9092,b:9092/topic",
            )
        pairs = dict(parse_qsl(url.query, keep_blank_values=True))
        options = {name: value for name, value in pairs.items() if "." not in name}
        for name in options:
            if name not in known:
                raise InputError(
                    f"a topic takes no option '{name}' (has: {', '.join(known)})", hint=did_you_mean(name, known)
                )
        return cls(url.netloc, topic, options, {n: v for n, v in pairs.items() if "." in n})


def is_topic(value: object) -> bool:
    return isinstance(value, str) and value.startswith(f"{SCHEME}://")


def shown(text: str) -> str:
    """An address of a topic without its settings; anything else as it is.

    >>> shown("kafka://a:9092/t?sasl.password=geheim"), shown("out.csv")
    ('kafka://a:9092/t', 'out.csv')
    """
    return text.partition("?")[0] if is_topic(text) else text
