"""What a diagram may not say: code to run, files to read, variables to fill in; and what still is only a name."""

from __future__ import annotations

import pytest

from borealis.diagram import Diagram, window
from borealis.diagram.harmless import require_harmless
from borealis.errors import DiagramError

CODE = "java_method('java.lang.System', 'getenv', 'HOME')"
QUERY = "(SELECT value FROM text.`/etc/hostname`)"

REFUSED = {
    CODE: "'java_method' runs any code on the node",
    "REFLECT ( 'java.lang.System', 'exit', 1)": "'reflect' runs any code",
    "`try_reflect`('java.lang.System', 'exit', 1)": "'try_reflect' runs any code",
    "system.builtin.`Java_Method`('a', 'b')": "'java_method' runs any code",
    "\"reflect\"('a', 'b')": "'reflect' runs any code",
    "upper(/* no */ reflect/* no */('a', 'b'))": "'reflect' runs any code",
    "identifier('java' || '_method')('a', 'b')": "'identifier' hides which name it stands for",
    "\u0131dentifier('java_method')('a', 'b')": "'identifier' hides",
    "/* /*+ */ reflect('a', 'b') --*/": "a comment within a comment",
    "from_protobuf(a, 'M', '/etc/hostname')": "'from_protobuf' reads a file of the node",
    "to_protobuf(a, 'M', '/etc/hostname')": "'to_protobuf' reads a file",
    "from_xml(a, 'b INT', map('rowValidationXSDPath', '/etc/hostname'))": "'from_xml' with options can read a file",
    "schema_of_xml(a, map('rowValidationXSDPath', '/etc/hostname'))": "'schema_of_xml' with options",
    "from_avro(a, '{}', map('avroSchemaUrl', '/etc/hostname'))": "'from_avro' with options",
    QUERY: "'SELECT' is of a query within an expression",
    "a + ((\u017felect 1))": "'\u017felect' is of a query",
    "a IN (FROM text.`/etc/hostname`)": "'FROM' is of a query",
    "exists(table text.`/etc/hostname`)": "'table' is of a query",
    "( -- here\nVALUES -1 UNION ALL TABLE t)": "'VALUES' is of a query",
    "(VALUES .5 UNION ALL TABLE t)": "'VALUES' is of a query",
    "(WITH x AS (VALUES (1)) TABLE x)": "'WITH' is of a query",
    "TABLE text.`/etc/hostname`": "'TABLE' is of a query",
    "(MAP a USING 'cat /etc/hostname' AS (x))": "'USING' is of a query",
    "(REDUCE 1. USING 'cat /etc/hostname' AS (x))": "'USING' is of a query",
    "'${env:HOME}'": "'${' stands for a variable of the node",
    "a /* ${env:HOME} */": "'${' stands for a variable",
}


@pytest.mark.parametrize("text", REFUSED)
def test_refused(text: str) -> None:
    with pytest.raises(DiagramError) as e:
        require_harmless(text)
    assert e.value.message.startswith(REFUSED[text])
    assert e.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "'SELECT 1; reflect(' || \"java_method('a')\"",
        "`select` + a.select + left.`using` -- SELECT this\n",
        "a.b.from.table.values",
        "from = 'x@y' AND (table) AND coalesce(values, 1) > 2",
        "named_struct('select', 1).select",
        "reflect + java_method.x",
        "map('a', 1)['a'] + reduce(array(1), 0, (x, y) -> x + y)",
        "trim(BOTH 'x' FROM a) || extract(DAY FROM ts)",
        "a IS DISTINCT FROM b",
        "from_xml(a, 'b INT, c STRING').b + schema_of_xml('<a>1</a>')",
        "/* a comment */ a /* and one more */",
        "regexp_extract(a, '^\\\\$(.*)$', 1)",
        "1.5 + a",
    ],
)
def test_allowed(text: str) -> None:
    require_harmless(text)


def test_every_expression_of_every_box_is_looked_at() -> None:
    d = Diagram("t")
    a, b = d.input("a", "ts TIMESTAMP, k INT, v INT"), d.input("b", "ts TIMESTAMP, k INT, w INT")
    ways = {
        "map": lambda text: a.map(ts="ts", x=text),
        "filter": lambda text: a.filter(f"{text} = 1"),
        "route": lambda text: a.route(one="v > 1", two=f"{text} = 1"),
        "drop": lambda text: a.drop(where=f"{text} = 1"),
        "utility": lambda text: a.drop(utility=text, below=0.5),
        "argument": lambda text: a.aggregate(over=window("1 second"), n=f"sum({text})"),
        "around": lambda text: a.aggregate(over=window("1 second"), n=f"sum(v) + {text}"),
        "join": lambda text: a.join(b, on=f"left.k = right.k AND {text} = 1", within="1 second"),
        "resample": lambda text: a.resample(b, window="1 second", n=f"sum({text})"),
        "bsort": lambda text: a.bsort(text, buffer=3),
    }
    for way, draw in ways.items():
        for text, word in ((CODE, "'java_method' runs"), (QUERY, "'SELECT' is of a query")):
            with pytest.raises(DiagramError) as e:
                draw(text)
            assert e.value.message.startswith("box '"), way
            assert word in e.value.message, way
    assert not d.spec.boxes


def test_a_name_of_a_column_cannot_end_itself() -> None:
    a = Diagram("t").input("a", "ts TIMESTAMP")
    for name in (f"x` || {CODE} || `x", "${env:HOME}"):
        with pytest.raises(DiagramError, match="Spark reads that as its own: rename it"):
            a.map(**{name: "1"})
