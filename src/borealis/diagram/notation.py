"""YAML as diagrams are written in it: every scalar is text, no key comes twice, nothing stands for something else,
nothing in it can run code.

Plain YAML would read the key `on` as true, the expression `1.0` as a number, and of two inputs of one name the last.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from borealis.errors import DiagramError, brief

_BREAK = re.compile(r"[\r\n\x85\u2028\u2029\ufeff]")


class PlainLoader(yaml.SafeLoader):
    """Reads a text whose size is that of what it says: an alias could repeat a list in a list in a list."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(
                None, None, f"an alias (*{brief(event.anchor)[1:-1]}): write out what it stands for", event.start_mark
            )
        return super().compose_node(parent, index)


class _Loader(PlainLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own way to say it


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012

    def ignore_aliases(self, data: Any) -> bool:
        """What stands in two places is written twice."""
        return True


class Block(dict[str, Any]):
    """A mapping that is written one key a line, however short."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise yaml.constructor.ConstructorError(None, None, "a key must be text", key_node.start_mark)
        if key in found:
            raise yaml.constructor.ConstructorError(None, None, f"'{key}' appears twice", key_node.start_mark)
        found[key] = loader.construct_object(value_node, deep=True)
    return found


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    # Line breaks, and what YAML takes for one, survive only where they are escaped.
    style = '"' if _BREAK.search(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Dumper.add_representer(str, _text)
_Dumper.add_representer(
    Block, lambda dumper, data: dumper.represent_mapping("tag:yaml.org,2002:map", data.items(), False)
)
# What YAML 1.2 would not read as text is quoted, for readers other than ours.
_NUMBER = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
for _kind, _first, _pattern in (
    ("bool", "tTfF", "true|True|TRUE|false|False|FALSE"),
    ("null", ["~", "n", "N", ""], "~|null|Null|NULL|"),
    ("int", "-+0123456789", "[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"),
    ("float", "-+.0123456789", rf"{_NUMBER}|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"),
):
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"^(?:{_pattern})$"), list(_first))


def dump(data: dict[str, Any]) -> str:
    """The text of plain data; the same data always gives the same text."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=1 << 30)


def load(text: str) -> Any:
    """The plain data in a text: dicts, lists and strings."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        place = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise DiagramError(f"bad YAML{place}: {e.problem or e.context}", hint="mend the text there") from None
    except yaml.YAMLError as e:
        raise DiagramError(f"bad YAML: {' '.join(str(e).split())}", hint="save the file as plain UTF-8 text") from None
    except RecursionError:
        raise DiagramError("bad YAML: nested too deep", hint="a diagram needs five levels") from None
