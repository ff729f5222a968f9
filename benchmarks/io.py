"""Ways in and out, measured: `borealis bench io`.

`kafka`: Q2 of the engine's benchmark from topic to topic, beside plain Structured Streaming on the same broker.
`sql`: SQL-write to PostgreSQL, beside COPY of the same rows from the same process.
Both start a real server of their own on loopback, and stop it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from . import io_kafka, io_sql
from .measuring import Say, part_by_part

QUERIES = ("kafka", "sql")
SHOWN = ("query", "what", "ours_rows_per_s", "other", "other_rows_per_s", "ratio", "asked", "met", "equal_results")
ASKED_KAFKA = 2.0  # times native
ROWS = {"kafka": 4_000_000, "sql": 200_000}
QUICK_ROWS = {"kafka": 2_000_000, "sql": 20_000}


@dataclass(frozen=True)
class Options:
    """What to measure. `quick` shows that all of it works, and no more."""

    only: tuple[str, ...] = ()
    runs: int = 3
    quick: bool = False


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """A figure for each."""
    measured = {"kafka": _kafka, "sql": _sql}
    rows = QUICK_ROWS if options.quick else ROWS

    def part(name: str) -> list[dict[str, Any]]:
        say(f"{name}: {rows[name]:,} rows, {options.runs} runs ...")
        return [{"query": name} | measured[name](rows[name], options.runs)]

    return part_by_part({name: partial(part, name) for name in options.only or QUERIES}, say)


def _kafka(rows: int, runs: int) -> dict[str, Any]:
    facts = io_kafka.measure(rows, runs)
    return {
        "what": "Kafka to Kafka, Q2",
        "other": "plain Structured Streaming",
        "other_rows_per_s": facts["native_rows_per_s"],
        "asked": f"{ASKED_KAFKA:g} x",
        "met": facts["ratio"] >= ASKED_KAFKA and facts["equal_results"],
    } | facts


def _sql(rows: int, runs: int) -> dict[str, Any]:
    facts = io_sql.measure(rows, runs)
    return {
        "what": "SQL-write to PostgreSQL",
        "ours_rows_per_s": facts["sql_write_rows_per_second"],
        "other": "COPY",
        "other_rows_per_s": facts["copy_rows_per_second"],
        "asked": f"{facts['asked_rows_per_second']:,} rows/s",
    } | facts
