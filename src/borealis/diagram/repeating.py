"""Expressions that give something else the next time: no backup comes to the same, and no row can be taken back."""

from __future__ import annotations

from borealis.diagram import sql
from borealis.diagram.boxes import Box

# Spark SQL that gives something else the next time; a seed does not help, it counts rows of a partition
UNREPEATABLE_CALLS = frozenset(
    {"rand", "random", "randn", "randstr", "uniform", "uuid", "shuffle", "now", "curdate", "current_timestamp"}
    | {"current_date", "current_time", "localtime", "localtimestamp", "aes_encrypt", "spark_partition_id"}
    | {"monotonically_increasing_id", "input_file_name", "input_file_block_start", "input_file_block_length"}
)
UNREPEATABLE_WITHOUT_ARGUMENT = frozenset({"unix_timestamp"})
UNREPEATABLE_WORDS = frozenset({"current_timestamp", "current_date", "current_time", "localtime", "localtimestamp"})


def unrepeatable(box: Box) -> str:
    """The first function in its expressions that gives something else the next time; empty if there is none.

    >>> from borealis.diagram.boxes.filter import Filter
    >>> unrepeatable(Filter(name="some", sources=("a",), predicate="RAND() < 0.1")), unrepeatable(
    ...     Filter(name="some", sources=("a",), predicate="rand < 0.1")
    ... )
    ('rand', '')
    """
    for expression in box.expressions:
        solid = [token for token in sql.tokens(expression) if token.solid]
        texts = ["", *(token.text for token in solid), "", ""]
        for at, token in enumerate(solid, 1):
            before, after, second = texts[at - 1], texts[at + 1], texts[at + 2]
            word = token.plain if token.nameable and before != "." else ""
            if after == "(" and (
                word in UNREPEATABLE_CALLS or (second == ")" and word in UNREPEATABLE_WITHOUT_ARGUMENT)
            ):
                return word
            if token.kind == "word" and after != "." and word in UNREPEATABLE_WORDS:
                return word
    return ""
