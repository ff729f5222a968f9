"""Spark SQL text taken apart just far enough: calls of aggregates, equalities of a join, columns of a schema.

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
_PAIRS = frozenset(("max_by", "min_by", "corr", "covar_pop", "covar_samp"))  # of two arguments
_SAME_WITHOUT = frozenset(("min", "max", "collect_set", "bool_and", "bool_or"))  # DISTINCT changes nothing


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Aggregates of Spark that no kernel computes: named here so that the error can name them, too.
OTHER_AGGREGATES = _words(
    """approx_percentile bit_and bit_or bit_xor histogram_numeric kurtosis listagg percentile_approx
    percentile_cont percentile_disc skewness string_agg try_avg try_sum"""
)

DEPTH_MAX = 200  # parentheses in parentheses; nobody writes more by hand

PLACEHOLDER = "__a"

# Words that may stand bare beside `left.x` in one side of an equality without being a column.
_PLAIN = _words(
    """and array as bigint binary boolean both case cast char date day days decimal div double else end escape
    false float for from hour hours in int integer interval is leading like long map microsecond microseconds
    millisecond milliseconds minute minutes month months not null or second seconds short smallint string struct
    then timestamp timestamp_ltz timestamp_ntz tinyint to trailing true varchar week weeks when year years"""
)
# At the top of a conjunct these make `a = b` a part of something else: `NOT a = b`, `a = b IS NULL`, `a = b < c`.
_LOOSER = _words("not ! is in like ilike rlike regexp between exists or and any all some")
_COMPARISONS = frozenset(("<", ">", "<=", ">=", "<>", "!=", "<=>"))

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
        if self.kind == "name":
            return self.text[1:-1].replace("``", "`").lower()
        return self.text.lower()

    @property
    def solid(self) -> bool:
        """Whether it means anything."""
        return self.kind not in ("space", "comment")

    @property
    def nameable(self) -> bool:
        """Whether it can name a column or a function."""
        return self.kind in ("word", "name")


class Call(NamedTuple):
    """An aggregate: a function by its one name, and its arguments as texts; none is `count(*)`."""

    function: str
    arguments: tuple[str, ...] = ()
    parameter: str = ""  # of `percentile`: a number, or `array(...)` of numbers

    @property
    def text(self) -> str:
        """As Spark reads it.

        >>> Call("count_distinct", ("a", "b")).text
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
                raise DiagramError(f"brackets nested deeper than {DEPTH_MAX} in '{_short(text)}'", hint="simplify it")
        elif token.text in ")]}" and (not closers or closers.pop() != token.text):
            raise DiagramError(f"a '{token.text}' without its opening bracket in '{_short(text)}'", hint="count them")
    if closers:
        raise DiagramError(f"a '{closers[-1]}' is missing in '{_short(text)}'", hint="close every bracket")
    return found


def split_all(exprs: Mapping[str, str]) -> tuple[list[Call], dict[str, str]]:
    """The distinct aggregates over several named expressions, and each expression over them."""
    calls: list[Call] = []
    finals = {}
    for name, expression in exprs.items():
        try:
            finals[name], calls = split_aggregates(expression, calls)
        except DiagramError as e:
            raise DiagramError(f"'{name}': {e.message}", hint=e.hint) from None
    return calls, finals


def split_aggregates(text: str, calls: Sequence[Call] = ()) -> tuple[str, list[Call]]:
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
            raise DiagramError(f"the name '{token.text}' in '{_short(text)}' is reserved", hint="rename it with a map")
    seen = False
    at = 0
    while at < len(pieces):
        name = _called(pieces, at)
        if name in OTHER_AGGREGATES:
            raise DiagramError(f"no aggregate '{name}' in '{_short(text)}'", hint=_OFFER)
        if name not in AGGREGATES:
            outer.append(pieces[at])
            at += 1
            continue
        opening = _next(pieces, at + 1)
        closing = _closing(pieces, opening)
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
        raise DiagramError(f"no aggregate in '{_short(text)}'", hint="".join(near[:1]) or _OFFER)
    return _render(outer), found


def split_join(text: str) -> tuple[list[tuple[str, str]], str | None]:
    """The equalities between left and right, as (left, right), and what else is asked; both keep `left.`, `right.`.

    >>> split_join("right.k = left.k AND left.v < right.v")
    ([('left.k', 'right.k')], 'left.v < right.v')
    """
    keys: list[tuple[str, str]] = []
    rest: list[str] = []
    for part in _conjuncts(tokens(text)):
        pair = _equality(_unwrapped(part))
        if pair:
            keys.append(pair)
        else:
            rest.append(_render(part))
    return keys, " AND ".join(rest) or None


def sides(text: str) -> list[tuple[str, str]]:
    """Every mention of a side's column, as (`left` or `right`, column).

    >>> sides("left.a = right.`b c`")
    [('left', 'a'), ('right', 'b c')]
    """
    return _mentions(_solid(tokens(text)))


def columns_of_ddl(text: str) -> list[tuple[str, str]]:
    """The (name, type) of each column of a schema text; the types are Spark's to check.

    >>> columns_of_ddl("ts TIMESTAMP, d DECIMAL(10, 2), `odd name` INT")
    [('ts', 'TIMESTAMP'), ('d', 'DECIMAL(10, 2)'), ('odd name', 'INT')]
    """
    pieces = tokens(text)
    if not _solid(pieces):
        raise DiagramError("no columns", hint='write them as in "ts TIMESTAMP, src STRING"')
    columns = []
    for part in _split_commas(pieces, angles=True):
        solid = _solid(part)
        if not solid:
            raise DiagramError(f"an empty place between commas in '{_short(text)}'", hint="drop the extra comma")
        first = solid[0]
        if not first.nameable:
            raise DiagramError(f"'{_render(part)}' is not a column", hint="write a name and a type, such as src STRING")
        name = first.text[1:-1].replace("``", "`") if first.kind == "name" else first.text
        if len(solid) == 1:
            raise DiagramError(
                f"column '{name}' has no type", hint=f"write a type after it, such as {first.text} STRING"
            )
        if solid[1].kind != "word":
            hint = f"write {first.text} STRING; a name with spaces or signs goes between `backticks`"
            raise DiagramError(f"'{_render(part)}' is not a name and a type", hint=hint)
        columns.append((name, _render(part[part.index(first) + 1 :])))
    for name, _ in columns:
        require_free(name)
    require_distinct(name for name, _ in columns)
    return columns


def arguments(pieces: Sequence[Token], opening: int) -> list[list[Token]]:
    """The arguments of the call whose bracket opens here."""
    return _split_commas(pieces[opening + 1 : _closing(pieces, opening)])


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
            raise DiagramError(f"an unclosed {match.group()} in '{_short(text)}'", hint="close the quote")
        yield Token(match.lastgroup or "symbol", match.group())
        at = match.end()


def _comment_end(text: str, at: int) -> int:
    """Where the comment that starts here ends; Spark lets comments hold comments."""
    depth = 0
    for match in re.compile(r"/\*|\*/").finditer(text, at):
        depth += 1 if match.group() == "/*" else -1
        if depth == 0:
            return match.end()
    raise DiagramError(f"an unclosed /* in '{_short(text)}'", hint="close the comment with */")


def _solid(pieces: Sequence[Token]) -> list[Token]:
    return [t for t in pieces if t.solid]


def _render(pieces: Sequence[Token]) -> str:
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
    return " ".join(t.text.lower() if t.kind == "word" else t.text for t in _solid(tokens(text)))


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 60 else flat[:57] + "..."


def _next(pieces: Sequence[Token], at: int) -> int:
    """The place of the next piece that means something, or the end."""
    while at < len(pieces) and not pieces[at].solid:
        at += 1
    return at


def _before(pieces: Sequence[Token], at: int) -> str:
    """The nearest meaningful text before this place."""
    while at > 0 and not pieces[at - 1].solid:
        at -= 1
    return pieces[at - 1].text if at else ""


def _called(pieces: Sequence[Token], at: int) -> str:
    """The function that is called here, in lower case, or nothing."""
    if not pieces[at].nameable:
        return ""
    opening = _next(pieces, at + 1)
    before = _before(pieces, at).lower()
    called = opening < len(pieces) and pieces[opening].text == "(" and before != "."
    listed = before in ("like", "ilike") and pieces[at].plain in ("any", "some", "all")  # s LIKE ANY ('a%', 'b%')
    return pieces[at].plain if called and not listed else ""


def _closing(pieces: Sequence[Token], opening: int) -> int:
    """The place of the bracket that closes this one; `tokens` has made sure that it exists."""
    depth = 0
    for at in range(opening, len(pieces)):
        if pieces[at].kind == "symbol":
            depth += (pieces[at].text in "([{") - (pieces[at].text in ")]}")
            if depth == 0:
                return at
    raise AssertionError("brackets are balanced")


def _split_commas(pieces: Sequence[Token], *, angles: bool = False) -> list[list[Token]]:
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


def _read_call(name: str, inner: Sequence[Token], text: str) -> Call:
    """An aggregate that is called with this between its brackets, or an error that says why it is none."""
    where = f"in '{_short(text)}'"
    for at in range(len(inner)):
        nested = _called(inner, at)
        if nested in AGGREGATES or nested in OTHER_AGGREGATES:
            hint = "aggregate twice: a second aggregate box over this one's result"
            raise DiagramError(f"aggregate '{nested}' inside aggregate '{name}' {where}", hint=hint)
    solid = _solid(inner)
    function = AGGREGATES[name]
    if len(solid) > 1 and solid[0].plain in ("distinct", "all") and solid[0].kind == "word":
        word = solid[0].text.upper()
        if word == "ALL" or name != "count":
            needless = word == "ALL" or function in _SAME_WITHOUT
            hint = f"leave {word} out" if needless else "only count takes it; collect_set(x) has the distinct values"
            raise DiagramError(f"{word} in '{name}' {where} is not supported", hint=hint)
        function = "count_distinct"
        inner = inner[inner.index(solid[0]) + 1 :]
    arguments = [_render(part).strip() for part in _split_commas(inner)] if solid else []
    if "*" in arguments and (name, function, arguments) != ("count", "count", ["*"]):
        raise DiagramError(f"'*' in '{name}' {where} means nothing", hint="only count takes *: count(*)")
    least, most, wanted = _takes(name, function)
    if not least <= len(arguments) <= most or not all(arguments):
        hint = f"write {name}({'column, other' if least == 2 else 'column'})"
        hint = f"write {name}(column, 0.5)" if name == "percentile" else hint
        raise DiagramError(f"'{name}' takes {wanted}, not {len(arguments)}, {where}", hint=hint)
    if name == "percentile":
        percentages(arguments[1])
        return Call(function, (arguments[0],), arguments[1])
    if name == "median":
        return Call(function, (arguments[0],), "0.5")
    if name == "count_if":
        return Call(function, (f"CASE WHEN {arguments[0]} THEN 1 END",))
    if name in ("mode", "approx_count_distinct"):  # what else they take chooses among answers; here there is one
        arguments = arguments[:1]
    return Call(function, () if arguments == ["*"] else tuple(arguments))


def _takes(name: str, function: str) -> tuple[int, int, str]:
    """How many arguments an aggregate takes, at least and at most, and this in words."""
    if function == "count_distinct" and name == "count":
        return 1, 100, "columns after DISTINCT"
    if name in ("mode", "approx_count_distinct"):
        return 1, 2, "one argument"
    if name == "percentile":
        return 2, 2, "a column and a percentage"
    if function in _PAIRS:
        return 2, 2, "two arguments"
    return 1, 1, "* or one argument" if name == "count" else "one argument"


def percentages(text: str) -> list[float]:
    """What `percentile` is asked for: one number between 0 and 1, or several in `array(...)`.

    >>> percentages("array(0.25, .5)")
    [0.25, 0.5]
    """
    pieces = _solid(tokens(text))
    several = len(pieces) > 1 and pieces[0].plain == "array" and pieces[1].text in ("(", "[")
    parts = _split_commas(pieces[2:-1]) if several else [pieces]
    try:
        found = [float("".join(t.text for t in part).rstrip("dDfF")) for part in parts]
    except ValueError:
        found = []
    if not found or not all(0 <= p <= 1 for p in found):
        hint = "write numbers between 0 and 1: percentile(x, 0.95) or percentile(x, array(0.5, 0.95))"
        raise DiagramError(f"'{_short(text)}' is not a percentage", hint=hint)
    return found


def _refuse_suffix(name: str, pieces: Sequence[Token], at: int, text: str) -> None:
    at = _next(pieces, at)
    word = pieces[at].plain if at < len(pieces) and pieces[at].kind == "word" else ""
    hints = {
        "filter": f"move the condition inside: {name}(CASE WHEN condition THEN column END)",
        "over": "the window is the box's own: give it as over=window(...)",
        "ignore": "drop the nulls with a filter box first",
        "respect": "leave it out, it is the default",
        "within": "leave it out: percentile(x, 0.5), mode(x)",
    }
    if word in hints:
        raise DiagramError(f"{word.upper()} after '{name}' in '{_short(text)}' is not supported", hint=hints[word])


def _depths(pieces: Sequence[Token]) -> list[int]:
    """How deep each piece lies in brackets and CASE..END; brackets, CASE and END count as outside."""
    depths: list[int] = []
    depth = cases = 0
    before = ""
    for token in pieces:
        opens = closes = False
        if token.kind == "symbol":
            opens, closes = token.text in "([{", token.text in ")]}"
        elif token.kind == "word" and before != ".":
            opens = token.plain == "case"
            closes = token.plain == "end" and cases > 0
            cases += opens - closes
        depth -= closes
        depths.append(depth)
        depth += opens
        if token.solid:
            before = token.text
    return depths


def _unwrapped(pieces: list[Token]) -> list[Token]:
    """The condition without brackets around all of it; a list or a subquery keeps its brackets."""
    while True:
        start, end = _next(pieces, 0), len(pieces)
        while end > start and not pieces[end - 1].solid:
            end -= 1
        pieces = pieces[start:end]
        if not pieces or pieces[0].text != "(" or _closing(pieces, 0) != len(pieces) - 1:
            return pieces
        inner = pieces[1:-1]
        solid = _solid(inner)
        if not solid or solid[0].plain in ("select", "with") or len(_split_commas(inner)) > 1:
            return pieces
        pieces = inner


def _conjuncts(pieces: list[Token]) -> list[list[Token]]:
    """The conditions that must all hold; one that is not a plain AND of others stays whole."""
    inner = _unwrapped(pieces)
    parts: list[list[Token]] = [[]]
    betweens = 0
    before = ""
    for token, depth in zip(inner, _depths(inner), strict=True):
        word = token.plain if depth == 0 and token.kind == "word" and before != "." else ""
        if token.solid:
            before = token.text
        if word == "or":
            return [pieces]
        betweens += word == "between"
        if word == "and" and betweens:
            betweens -= 1
        elif word == "and":
            parts.append([])
            continue
        parts[-1].append(token)
    if len(parts) == 1:
        return [pieces]
    if not all(_solid(part) for part in parts):
        raise DiagramError(f"an AND without a condition in '{_short(_render(pieces))}'", hint="complete or drop it")
    return [conjunct for part in parts for conjunct in _conjuncts(part)]


def _equality(pieces: list[Token]) -> tuple[str, str] | None:
    """The (left, right) of `A = B`, if that is all there is and each side keeps to one input."""
    places = []
    before = ""
    for at, (token, depth) in enumerate(zip(pieces, _depths(pieces), strict=True)):
        if depth == 0 and token.kind in ("word", "symbol") and before != ".":
            if token.plain in _LOOSER or token.text in _COMPARISONS:
                return None
            if token.text in ("=", "=="):
                places.append(at)
        if token.solid:
            before = token.text
    if len(places) != 1:
        return None
    one, other = pieces[: places[0]], pieces[places[0] + 1 :]
    match _only_side(one), _only_side(other):
        case "left", "right":
            return _render(one), _render(other)
        case "right", "left":
            return _render(other), _render(one)
    return None


def _mentions(solid: Sequence[Token]) -> list[tuple[str, str]]:
    found = []
    for at in range(len(solid) - 2):
        side, dot, column = solid[at : at + 3]
        if side.nameable and side.plain in ("left", "right") and dot.text == "." and _before(solid, at) != ".":
            name = column.text[1:-1].replace("``", "`") if column.kind == "name" else column.text
            found.append((side.plain, name))
    return found


def _is_list(pieces: Sequence[Token]) -> bool:
    """Whether it is `(a, b)`: structs compare their nulls as equal, columns do not."""
    inner = _unwrapped(list(pieces))
    return bool(inner) and inner[0].text == "(" and _closing(inner, 0) == len(inner) - 1


def _only_side(pieces: Sequence[Token]) -> str | None:
    """`left` or `right` if the expression reads from that input and certainly from no other."""
    solid = _solid(pieces)
    mentioned = {side for side, _ in _mentions(solid)}
    if len(mentioned) != 1 or _is_list(pieces):
        return None
    for at, token in enumerate(solid):
        after = solid[at + 1].text if at + 1 < len(solid) else ""
        part_of_path = _before(solid, at) == "." or (after == "." and token.plain in mentioned)
        literal = token.kind == "word" and (token.plain in _PLAIN or token.text[0].isdigit())
        if token.nameable and not part_of_path and not literal and after != "(":
            return None  # a bare name may be a column of either side
    return mentioned.pop()
