"""What an expression may not hold: a diagram comes over the network, so it computes and does nothing else.

Spark SQL can call any static Java method, run a command, read any file and fill in any variable of the process. Here
all of that is refused, from the text alone. Where Spark and `sql.tokens` might read a text differently, or a word
might begin a query, the text is refused, too: a column whose name is such a word can stand in backticks.
"""

from __future__ import annotations

from collections.abc import Sequence

from borealis.diagram.sql import Token, closing_of, meaningful, split_commas, tokens
from borealis.errors import DiagramError

_RUNS = "runs any code on the node"
_READS = "reads a file of the node"
CALLS = {
    "java_method": _RUNS,
    "reflect": _RUNS,
    "try_reflect": _RUNS,
    "from_protobuf": _READS,
    "to_protobuf": _READS,
    "identifier": "hides which name it stands for",
}
# How many arguments come before the options, which can name a file.
BEFORE_OPTIONS = {"from_avro": 2, "from_xml": 2, "schema_of_xml": 1}

ANYWHERE = frozenset(("SELECT", "USING"))  # MAP and REDUCE begin a query, too, and then USING names a command
BEGINNING = frozenset(("FROM", "SELECT", "TABLE", "VALUES", "WITH"))  # of a query, at the start or behind a bracket
# What shows that such a word is the name of a column: none of these goes on with a query, or begins an expression.
_AFTER_NAME = frozenset(
    ("", ")", ",", "=", "==", "<=>", "<", ">", "<=", ">=", "<>", "!=", "||", "|", "&", "^", "/", "%")
)
VARIABLE = "${"  # Spark fills variables in before it reads a text, also within quotes


def require_harmless(text: str) -> None:
    """Refuse an expression that could do more than compute a value from a tuple.

    >>> require_harmless("upper(a.`select`) || 'SELECT'")
    >>> require_harmless("reflect('java.lang.System', 'exit', 1)")
    Traceback (most recent call last):
    ...
    borealis.errors.DiagramError: 'reflect' runs any code on the node. Hint: an expression only computes from a tuple
    """
    if VARIABLE in text:
        hint = f"an expression knows its tuple only; for the text itself write concat('$', '{VARIABLE[1:]}')"
        raise DiagramError(f"'{VARIABLE}' stands for a variable of the node", hint=hint)
    pieces = tokens(text)
    if any(t.kind == "comment" and t.text.startswith("/*") and "/*" in t.text[2:] for t in pieces):
        raise DiagramError("a comment within a comment", hint="leave one of them out")
    solid = meaningful(pieces)
    for at, token in enumerate(solid):
        if _text(solid, at + 1) == "(":
            _require_harmless_call(_name(token), solid, at + 1)
        if token.kind == "word" and not _is_field(solid, at):
            _require_no_query(token, _text(solid, at - 1), _text(solid, at + 1))


def _name(token: Token) -> str:
    """The name of a function, with or without quotes; Spark takes case lightly, and a dotless i for an I."""
    plain = token.text.strip("\"'") if token.kind == "string" else token.plain
    return plain.upper().lower()


def _require_harmless_call(name: str, solid: Sequence[Token], opening: int) -> None:
    if name in CALLS:
        raise DiagramError(f"'{name}' {CALLS[name]}", hint="an expression only computes from a tuple")
    arguments = split_commas(solid[opening + 1 : closing_of(solid, opening)]) if name in BEFORE_OPTIONS else []
    if len(arguments) > BEFORE_OPTIONS.get(name, 0):
        hint = "leave the options out, or do this before the tuples are sent"
        raise DiagramError(f"'{name}' with options can read a file of the node", hint=hint)


def _require_no_query(token: Token, before: str, after: str) -> None:
    word = token.text.upper()  # as Spark does, for which even a long s is an S
    if word in ANYWHERE or (word in BEGINNING and before in ("", "(") and after not in _AFTER_NAME):
        hint = f"a query could read files of the node, or run commands; a column of that name is written `{token.text}`"
        raise DiagramError(f"'{token.text}' is of a query within an expression", hint=hint)


def _text(solid: Sequence[Token], at: int) -> str:
    return solid[at].text if 0 <= at < len(solid) else ""


def _is_field(solid: Sequence[Token], at: int) -> bool:
    """Whether it is the `b` of `a.b`; what comes behind the number `1.` is not."""
    return _text(solid, at - 1) == "." and not _text(solid, at - 2)[:1].isdigit()
