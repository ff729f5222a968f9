"""What Spark does with expressions that a diagram may not hold: they are refused since it would do just that."""

from __future__ import annotations

from pathlib import Path

import pytest
from py4j.java_gateway import get_field
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from borealis.diagram.harmless import BEGINNING, require_harmless
from borealis.errors import DiagramError

SECRET = "hunter2"
PROPERTY = "borealis.test.secret"
GET = f"('java.lang.System', 'getProperty', '{PROPERTY}')"

READING = {
    "java_method": f"java_method{GET}",
    "reflect": f"system.builtin.`reflect`{GET}",
    "a name put together": f"IDENTIFIER('try_' || 'reflect'){GET}",
    "a comment that ends early": f"/* /*+ */ java_method{GET} --*/",
    "a variable": f"'${{system:{PROPERTY}}}'",
    "select": "(SELECT max(value) FROM text.`@`)",
    "a long s": "(\u017felect max(value) FROM text.`@`)",
    "from": "(FROM text.`@`)",
    "table": "(TABLE text.`@`)",
    "with": "(WITH x AS (TABLE text.`@`) TABLE x)",
    "values": "(VALUES 'a' INTERSECT VALUES 'b' UNION ALL TABLE text.`@`)",
    "map": "(MAP 1. USING 'cat @' AS (x))",
    "reduce": "(REDUCE (1) USING 'cat @' AS (x))",
}


@pytest.mark.long
def test_what_is_refused_would_have_been_done(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "secret.txt"
    file.write_text(f"{SECRET}\n", encoding="utf-8")
    own = spark.newSession()  # with Spark's own default, which ours turns off
    own.conf.set("spark.sql.variable.substitute", "true")
    java = spark._jvm
    assert java is not None
    java.System.setProperty(PROPERTY, SECRET)
    one = own.range(1)
    try:
        for way, text in READING.items():
            text = text.replace("@", str(file))
            assert one.select(F.expr(text).alias("x")).collect() == [(SECRET,)], way
            with pytest.raises(DiagramError):
                require_harmless(text)
    finally:
        java.System.clearProperty(PROPERTY)
    variable = READING["a variable"]
    assert spark.range(1).select(F.expr(variable).alias("x")).collect() == [(variable.strip("'"),)]


def test_every_beginning_of_a_query_is_known(spark: SparkSession) -> None:
    java = spark._jvm
    assert java is not None
    parser = java.org.apache.spark.sql.catalyst.parser.SqlBaseParser
    grammar = parser._ATN
    query = get_field(grammar, "ruleToStartState")[list(parser.ruleNames).index("query")]
    begins = {parser.VOCABULARY.getSymbolicName(token) for token in grammar.nextTokens(query).toList()}
    assert begins == BEGINNING | {"MAP", "REDUCE", "LEFT_PAREN"}
