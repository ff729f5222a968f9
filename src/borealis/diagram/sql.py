"""Spark SQL text taken apart just far enough: its pieces, calls of aggregates, columns of a schema.

Nothing here knows types or columns; Spark does, later. Where this module is unsure it leaves text as it found it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from borealis.diagram.names import require_distinct, require_free
from borealis.errors import DiagramError, did_you_mean

# Every name by which an aggregate is called, to the one that the rest of the program knows it by.
_PLAIN_AGGREGATES = (
    *("count", "sum", "avg", "min", "max", "first", "last", "stddev", "stddev_pop", "var_samp", "var_pop"),
    *("max_by", "min_by", "percentile", "mode", "collect_list", "collect_set", "bool_and", "bool_or"),
    *("corr", "covar_pop", "covar_samp"),
)
AGGREGATES = {name: name for name in _PLAIN_AGGREGATES}
_OFFER = f"use one of {', '.join(AGGREGATES)}, median, count_if, approx_count_distinct"
AGGREGATES |= {"mean": "avg", "std": "stddev", "stddev_samp": "stddev", "variance": "var_samp", "median": "percentile"}
AGGREGATES |= {"any_value": "first", "first_value": "first", "last_value": "last", "array_agg": "collect_list"}
AGGREGATES |= {"every": "bool_and", "any": "bool_or", "some": "bool_or"}
AGGREGATES |= {"count_if": "count", "approx_count_distinct": "count_distinct"}
# How many arguments those take that do not take just one, at least and at most, and this in words.
_TAKES = dict.fromkeys(("max_by", "min_by", "corr", "covar_pop", "covar_samp"), (2, 2, "two arguments"))
_TAKES |= dict.fromkeys(("mode", "approx_count_distinct"), (1, 2, "one argument"))
_TAKES |= {"percentile": (2, 2, "a column and a percentage"), "count": (1, 1, "* or one argument")}
_SAME_WITHOUT = frozenset(("min", "max", "collect_set", "bool_and", "bool_or"))  # DISTINCT changes nothing


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Aggregates of Spark that no kernel computes: named here so that the error can name them, too.
OTHER_AGGREGATES = words(
    """approx_percentile bit_and bit_or bit_xor histogram_numeric kurtosis listagg percentile_approx
    percentile_cont percentile_disc skewness string_agg try_avg try_sum"""
)

DEPTH_MAX = 200  # parentheses in parentheses; no user writes more by hand

PLACEHOLDER = "__a"

_TOKEN = re.compile(
    r"""(?P<space>\s+)
    | (?P<comment>--(?:\\\n|[^\r\n])*)
    | (?P<string>[rR]'[^']*'|[rR]"[^"]*"|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    | (?P<name>`(?:[^`]|``)*`)
    | (?P<word>\w+)
    | (?P<symbol><=>|<=|>=|<>|!=|==|=>|->|::|\|\||.)""",
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    """A piece of SQL text; the pieces of a text, joined, are the text."""

    kind: str  # space, comment, string, name (in backticks), word, symbol
    text: str

    @property
    def plain(self) -> str:
        """The word in lower case, or the symbol; the name without its backticks."""
        return self.name.lower()

    @property
    def name(self) -> str:
        """The text, without the backticks of a name."""
        return self.text[1:-1].replace("``", "`") if self.kind == "name" else self.text

    @property
    def solid(self) -> bool:
        return self.kind not in ("space", "comment")

    @property
    def nameable(self) -> bool:
        """Whether it can name a column or a function."""
        return self.kind in ("word", "name")


class CallText(NamedTuple):
    """An aggregate: a function by its one name, and its arguments as texts; none is `count(*)`."""

    function: str
    arguments: tuple[str, ...] = ()
    parameter: str = ""  # of `percentile`: a number, or `array(...)` of numbers

    @property
    def text(self) -> str:
        """As Spark reads it.

        >>> CallText("count_distinct", ("a", "b")).text
        'count(DISTINCT a, b)'
        """
        if self.function == "count_distinct":
            return f"count(DISTINCT {', '.join(self.arguments)})"
        inner = [*self.arguments, *([self.parameter] if self.parameter else [])]
        return f"{self.function}({', '.join(inner) or '*'})"


def tokens(text: str) -> list[Token]:
    """The pieces of a SQL text, with every quote closed and every bracket matched.

    >>> [t.text for t in tokens("a >= 'it''s'")]
    ['a', ' ', '>=', ' ', "'it''s'"]
    """
    found = list(_scan(text))
    closers: list[str] = []
    for token in found:
        if token.kind != "symbol":
            continue
        if token.text in "([{":
            closers.append(")]}"["([{".index(token.text)])
            if len(closers) > DEPTH_MAX:
                raise DiagramError(f"brackets nested deeper than {DEPTH_MAX} in '{short(text)}'", hint="simplify it")
        elif token.text in ")]}" and (not closers or closers.pop() != token.text):
            raise DiagramError(f"a '{token.text}' without its opening bracket in '{short(text)}'", hint="count them")
    if closers:
        raise DiagramError(f"a '{closers[-1]}' is missing in '{short(text)}'", hint="close every bracket")
    return found


def split_all(exprs: Mapping[str, str]) -> tuple[list[CallText], dict[str, str]]:
    """The distinct aggregates over several named expressions, and each expression over them."""
    calls: list[CallText] = []
    finals = {}
    for name, expression in exprs.items():
        try:
            finals[name], calls = split_aggregates(expression, calls)
        except DiagramError as e:
            raise DiagramError(f"'{name}': {e.message}", hint=e.hint) from None
    return calls, finals


def split_aggregates(text: str, calls: Sequence[CallText] = ()) -> tuple[str, list[CallText]]:
    """The expression around the aggregates, and the aggregates: `__a<i>` stands for the i-th.

    With `calls`, numbering goes on after them, and a call that is among them is not repeated.

    >>> outer, found = split_aggregates("sum(a) / COUNT(*) + sum( a )")
    >>> outer, [call.text for call in found]
    ('__a0 / __a1 + __a0', ['sum(a)', 'count(*)'])
    """
    found = list(calls)
    keys = [_key(call.text) for call in found]
    outer: list[Token] = []
    pieces = tokens(text)
    for token in pieces:
        if token.nameable and token.plain.startswith("__"):
            raise DiagramError(f"the name '{token.text}' in '{short(text)}' is reserved", hint="rename it with a map")
    seen = False
    at = 0
    while at < len(pieces):
        name = _called(pieces, at)
        if name in OTHER_AGGREGATES:
            raise DiagramError(f"no aggregate '{name}' in '{short(text)}'", hint=_OFFER)
        if name not in AGGREGATES:
            outer.append(pieces[at])
            at += 1
            continue
        opening = following(pieces, at + 1)
        closing = closing_of(pieces, opening)
        call = _read_call(name, pieces[opening + 1 : closing], text)
        _refuse_suffix(name, pieces, closing + 1, text)
        key = _key(call.text)
        if key not in keys:
            keys.append(key)
            found.append(call)
        outer.append(Token("word", f"{PLACEHOLDER}{keys.index(key)}"))
        seen = True
        at = closing + 1
    if not seen:
        near = [did_you_mean(name, AGGREGATES) for at in range(len(pieces)) if (name := _called(pieces, at))]
        raise DiagramError(f"no aggregate in '{short(text)}'", hint="".join(near[:1]) or _OFFER)
    return render(outer), found


def columns_of_ddl(text: str) -> list[tuple[str, str]]:
    """The (name, type) of each column of a schema text; the types are Spark's to check.

    >>> columns_of_ddl("ts TIMESTAMP, d DECIMAL(10, 2), `odd name` INT")
    [('ts', 'TIMESTAMP'), ('d', 'DECIMAL(10, 2)'), ('odd name', 'INT')]
    """
    pieces = tokens(text)
    if not meaningful(pieces):
        raise DiagramError("no columns", hint='write them as in "ts TIMESTAMP, src STRING"')
    columns = []
    for part in split_commas(pieces, angles=True):
        solid = meaningful(part)
        if not solid:
            raise DiagramError(f"an empty place between commas in '{short(text)}'", hint="drop the extra comma")
        first = solid[0]
        if not first.nameable:
            raise DiagramError(f"'{render(part)}' is not a column", hint="write a name and a type, such as src STRING")
        name = first.name
        if len(solid) == 1:
            raise DiagramError(
                f"column '{name}' has no type", hint=f"write a type after it, such as {first.text} STRING"
            )
        if solid[1].kind != "word":
            hint = f"write {first.text} STRING; a name with spaces or signs goes between `backticks`"
            raise DiagramError(f"'{render(part)}' is not a name and a type", hint=hint)
        columns.append((name, render(part[part.index(first) + 1 :])))
    for name, _ in columns:
        require_free(name)
    require_distinct(name for name, _ in columns)
    return columns


def calls(text: str) -> list[str]:
    """The functions that a text calls, in lower case, from left to right.

    >>> calls("Upper(a) || concat('f(x)', b)")
    ['upper', 'concat']
    """
    pieces = tokens(text)
    return [name for at in range(len(pieces)) if (name := _called(pieces, at))]


def _scan(text: str) -> Iterator[Token]:
    at = 0
    while at < len(text):
        if text.startswith("/*", at):
            end = _comment_end(text, at)
            yield Token("comment", text[at:end])
            at = end
            continue
        match = _TOKEN.match(text, at)
        assert match is not None  # the last alternative takes any character
        if match.group() in ("'", '"', "`"):
            raise DiagramError(f"an unclosed {match.group()} in '{short(text)}'", hint="close the quote")
        yield Token(match.lastgroup or "symbol", match.group())
        at = match.end()


def _comment_end(text: str, at: int) -> int:
    """Where the comment that starts here ends; Spark lets comments hold comments."""
    depth = 0
    for match in re.compile(r"/\*|\*/").finditer(text, at):
        depth += 1 if match.group() == "/*" else -1
        if depth == 0:
            return match.end()
    raise DiagramError(f"an unclosed /* in '{short(text)}'", hint="close the comment with */")


def is_empty(text: str) -> bool:
    """Whether there is nothing in it but spaces and comments."""
    return not meaningful(tokens(text))


def meaningful(pieces: Sequence[Token]) -> list[Token]:
    """Without spaces and comments."""
    return [t for t in pieces if t.solid]


def render(pieces: Sequence[Token]) -> str:
    """The text again, without comments and with single spaces; two words never grow together."""
    out: list[str] = []
    gap = False
    before = ""
    for token in pieces:
        if not token.solid:
            gap = True
            continue
        if out and (gap or (token.kind == before == "word")):
            out.append(" ")
        out.append(token.text)
        gap, before = False, token.kind
    return "".join(out)


def _key(text: str) -> str:
    """Equal for texts that Spark reads alike: case of words and spaces do not count."""
    return " ".join(t.text.lower() if t.kind == "word" else t.text for t in meaningful(tokens(text)))


def short(text: str) -> str:
    """A text as errors show it."""
    flat = " ".join(text.split())
    return flat if len(flat) <= 60 else flat[:57] + "..."


def following(pieces: Sequence[Token], at: int) -> int:
    """The place of the next piece that means something, or the end."""
    while at < len(pieces) and not pieces[at].solid:
        at += 1
    return at


def preceding(pieces: Sequence[Token], at: int) -> str:
    """The nearest meaningful text before this place."""
    while at > 0 and not pieces[at - 1].solid:
        at -= 1
    return pieces[at - 1].text if at else ""


def _called(pieces: Sequence[Token], at: int) -> str:
    """The function that is called here, in lower case, or nothing."""
    if not pieces[at].nameable:
        return ""
    opening = following(pieces, at + 1)
    before = preceding(pieces, at).lower()
    called = opening < len(pieces) and pieces[opening].text == "(" and before != "."
    listed = before in ("like", "ilike") and pieces[at].plain in ("any", "some", "all")  # s LIKE ANY ('a%', 'b%')
    return pieces[at].plain if called and not listed else ""


def closing_of(pieces: Sequence[Token], opening: int) -> int:
    """The place of the bracket that closes this one; `tokens` has made sure that it exists."""
    depth = 0
    for at in range(opening, len(pieces)):
        if pieces[at].kind == "symbol":
            depth += (pieces[at].text in "([{") - (pieces[at].text in ")]}")
            if depth == 0:
                return at
    raise AssertionError("brackets are balanced")


def split_commas(pieces: Sequence[Token], *, angles: bool = False) -> list[list[Token]]:
    """What stands between commas outside of all brackets; `angles` are brackets in a type."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in pieces:
        if token.kind == "symbol":
            if token.text == "," and depth == 0:
                parts.append([])
                continue
            depth += (token.text in "([{") - (token.text in ")]}")
            if angles:
                depth += token.text.count("<") - token.text.count(">")
        parts[-1].append(token)
    return parts


def _read_call(name: str, inner: Sequence[Token], text: str) -> CallText:
    """An aggregate that is called with this between its brackets, or an error that says why it is none."""
    where = f"in '{short(text)}'"
    for at in range(len(inner)):
        nested = _called(inner, at)
        if nested in AGGREGATES or nested in OTHER_AGGREGATES:
            hint = "aggregate twice: a second aggregate box over this one's result"
            raise DiagramError(f"aggregate '{nested}' inside aggregate '{name}' {where}", hint=hint)
    solid = meaningful(inner)
    function = AGGREGATES[name]
    if len(solid) > 1 and solid[0].plain in ("distinct", "all") and solid[0].kind == "word":
        word = solid[0].text.upper()
        if word == "ALL" or name != "count":
            needless = word == "ALL" or function in _SAME_WITHOUT
            hint = f"leave {word} out" if needless else "only count takes it; collect_set(x) has the distinct values"
            raise DiagramError(f"{word} in '{name}' {where} is not supported", hint=hint)
        function = "count_distinct"
        inner = inner[inner.index(solid[0]) + 1 :]
    arguments = [render(part).strip() for part in split_commas(inner)] if solid else []
    if "*" in arguments and (name, function, arguments) != ("count", "count", ["*"]):
        raise DiagramError(f"'*' in '{name}' {where} means nothing", hint="only count takes *: count(*)")
    least, most, wanted = _TAKES.get(name, (1, 1, "one argument"))
    if function == "count_distinct" and name == "count":
        least, most, wanted = 1, 100, "columns after DISTINCT"
    if not least <= len(arguments) <= most or not all(arguments):
        hint = f"write {name}({'column, other' if least == 2 else 'column'})"
        hint = f"write {name}(column, 0.5)" if name == "percentile" else hint
        raise DiagramError(f"'{name}' takes {wanted}, not {len(arguments)}, {where}", hint=hint)
    if name == "percentile":
        percentages(arguments[1])
        return CallText(function, (arguments[0],), arguments[1])
    if name == "median":
        return CallText(function, (arguments[0],), "0.5")
    if name == "count_if":
        return CallText(function, (f"CASE WHEN {arguments[0]} THEN 1 END",))
    if name in ("mode", "approx_count_distinct"):  # what else they take chooses among answers; here there is one
        arguments = arguments[:1]
    return CallText(function, () if arguments == ["*"] else tuple(arguments))


def plain_column(text: str, columns: list[str]) -> str | None:
    """The column that an expression merely names, if it does no more."""
    name = text.strip()
    bare = name[1:-1] if len(name) > 2 and name[0] == name[-1] == "`" else name
    return next((c for c in columns if c.lower() == bare.lower()), None)


def percentages(text: str) -> list[float]:
    """What `percentile` is asked for: one number between 0 and 1, or several in `array(...)`.

    >>> percentages("array(0.25, .5)")
    [0.25, 0.5]
    """
    pieces = meaningful(tokens(text))
    several = len(pieces) > 1 and pieces[0].plain == "array" and pieces[1].text in ("(", "[")
    parts = split_commas(pieces[2:-1]) if several else [pieces]
    try:
        found = [float("".join(t.text for t in part).rstrip("dDfF")) for part in parts]
    except ValueError:
        found = []
    if not found or not all(0 <= p <= 1 for p in found):
        hint = "write numbers between 0 and 1: percentile(x, 0.95) or percentile(x, array(0.5, 0.95))"
        raise DiagramError(f"'{short(text)}' is not a percentage", hint=hint)
    return found


def _refuse_suffix(name: str, pieces: Sequence[Token], at: int, text: str) -> None:
    at = following(pieces, at)
    word = pieces[at].plain if at < len(pieces) and pieces[at].kind == "word" else ""
    hints = {
        "filter": f"move the condition inside: {name}(CASE WHEN condition THEN column END)",
        "over": "the window is the box's own: give it as over=window(...)",
        "ignore": "drop the nulls with a filter box first",
        "respect": "leave it out, it is the default",
        "within": "leave it out: percentile(x, 0.5), mode(x)",
    }
    if word in hints:
        raise DiagramError(f"{word.upper()} after '{name}' in '{short(text)}' is not supported", hint=hints[word])
