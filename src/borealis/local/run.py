"""Run a whole diagram in this process, from its sources to its sinks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import pyarrow as pa

from borealis.clock import WALL, Clock
from borealis.compile.unit import compile_unit
from borealis.connectors.python.sink import TableSink
from borealis.connectors.python.source import SequenceSource
from borealis.connectors.sink import Sink
from borealis.connectors.sinks import as_sink
from borealis.connectors.source import LiveSource, Source
from borealis.connectors.sources import SortedSource, as_source
from borealis.diagram import passes
from borealis.diagram.cut import check_outputs, cut, part_of
from borealis.diagram.model import Diagram
from borealis.diagram.spec import Input, Spec
from borealis.disk import make_directory
from borealis.errors import BorealisError, BorealisWarning, OutputError, plural
from borealis.kernels.kinds import standing
from borealis.kernels.time_of import TimeOf
from borealis.local import display
from borealis.machine import HERE, Machine
from borealis.spark.frames import as_frame_source, is_frame
from borealis.spark.query import Query
from borealis.spark.session import require, session
from borealis.trains.intake import Admission
from borealis.trains.progress import Progress
from borealis.trains.unit import UnitOptions, UnitRun

LOOK_S = 0.05  # how often a run looks whether it is over


@dataclass
class Result:
    """What a run did, and the outputs that were given nowhere to go."""

    units: list[Progress]
    tables: dict[str, pa.Table]
    spark: Any

    def __getitem__(self, output: str) -> pa.Table:
        """An output that was collected in memory, as an Arrow table."""
        if output not in self.tables:
            raise KeyError(f"output '{output}' was not collected (collected: {', '.join(self.tables) or 'none'})")
        return self.tables[output]

    def table(self, output: str) -> pa.Table:
        """What stands of an output after all changes: without the rows that were deleted or replaced later."""
        return standing(self[output])

    def rows(self, output: str) -> list[dict[str, Any]]:
        """An output as a list of dicts."""
        table = self[output]
        try:
            rows: list[dict[str, Any]] = table.to_pylist()
        except (OverflowError, ValueError) as error:  # a time that Python's datetime cannot hold
            raise OutputError(
                f"output '{output}', {_unfit(table)}, which no Python datetime can hold",
                hint=f"take the Arrow table, result['{output}'], or its first rows by printing the result",
            ) from error
        return rows

    def pandas(self, output: str | None = None) -> Any:
        """An output as a pandas DataFrame; without a name, the only one there is."""
        if output is None:
            if len(self.tables) != 1:
                names = ", ".join(self.tables) or "none"
                raise OutputError(f"which output? Collected are: {names}", hint="name one: result.pandas('...')")
            [output] = self.tables
        return self[output].to_pandas()

    def __repr__(self) -> str:
        return "\n\n".join([self._head(), *(display.text_of(name, table) for name, table in self.tables.items())])

    def _repr_html_(self) -> str:
        tables = "".join(display.html_of(name, table) for name, table in self.tables.items())
        return f"<p>{escape(self._head())}</p>{tables}"

    def _head(self) -> str:
        summary = self.to_json()
        rows, late = summary["rows_in"], sum(summary["late"].values())
        elsewhere = [f"{n:,} to {name}" for name, n in summary["rows_out"].items() if name not in self.tables and n]
        parts = [f"{plural(rows, 'row')} in", *([f"{late:,} late"] if late else []), *elsewhere]
        return f"Result: {', '.join(parts)}"

    def dataframe(self, output: str) -> Any:
        """An output as a PySpark DataFrame."""
        return self.spark.createDataFrame(self[output])

    def to_json(self) -> dict[str, Any]:
        """The summary, for machines."""
        units = [u.to_json() for u in self.units]
        return {
            "rows_in": sum(u["rows_in"] for u in units),
            "rows_out": {k: v for u in units for k, v in u["rows_out"].items()},
            "late": {k: v for u in units for k, v in u["late"].items()},
            "dead_letters": {k: v for u in units for k, v in u["dead_letters"].items()},
            "errors": {u["unit"]: u["errors"] for u in units if u["errors"]},
            "refused": {k: v for u in units for k, v in u["refused"].items()},
            "seconds": max((u["seconds"] for u in units), default=0.0),
            "units": units,
            "warnings": [w for u in self.units for w in u.warnings()],
        }


def run(
    diagram: Diagram | Spec,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any] | None = None,
    *,
    state: str | Path | None = None,
    buckets: int = 1,
    admission: Admission | None = None,
    headers: bool = False,
    spark: Any = None,
    watch: Callable[[list[Progress]], None] | None = None,
    clock: Clock = WALL,
) -> Result:
    """Run a diagram until its inputs end. With `state`, a run that was killed goes on where it had committed.

    An input is a path, `replay(...)`, a topic, rows or a data frame (pandas, Polars, Arrow, PySpark). Outputs that are
    not named are collected in memory: `run(...)["per_source"]`. Late tuples and records that could not be read are
    counted in a BorealisWarning at the end.
    """
    spec = passes.checked(diagram.spec if isinstance(diagram, Diagram) else diagram)
    sinks = _sinks(spec, outputs or {}, None if state is None else Path(state))
    spec.check_inputs(inputs, "give it: inputs={{'{name}': 'file.parquet'}}")
    found = {name: value if is_frame(value) else as_source(value) for name, value in inputs.items()}
    for name, source in found.items():
        if isinstance(source, SequenceSource):
            source.check(spec.input(name).names)
    spark = require(spark or session())
    machine = HERE if clock is None else Machine(clock)
    runs: list[UnitRun] = []
    queries: list[Query] = []
    complete = False
    try:
        for piece in cut(spec, local=True):
            part = part_of(spec, piece)
            compiled = compile_unit(part, spark, buckets, headers=headers, errors=piece.errors)
            home = None if state is None else Path(state) / piece.name
            options = UnitOptions(admission or Admission(), home, headers)
            mine = {i.name: _source(i, compiled.times[i.name], found[i.name], state) for i in part.inputs}
            theirs = {name: sink for name, sink in sinks.items() if name in compiled.outlets}
            one = UnitRun(piece.name, part, compiled, mine, theirs, options, machine=machine)
            one.progress.ends = (*mine.values(), *theirs.values(), one.troubles)
            runs.append(one)
            queries.append(Query(spark, compiled, one, one.commit, one.scratch))
        for one, query in zip(runs, queries, strict=True):
            if not one.done.is_set():
                one.start()
                query.start()
        _attend(runs, queries, watch)
        complete = True
    finally:
        _close(runs, queries, complete)
    tables = {name: sink.table() for name, sink in sinks.items() if isinstance(sink, TableSink)}
    result = Result([r.progress for r in runs], tables, spark)
    for warning in result.to_json()["warnings"]:
        warnings.warn(warning, BorealisWarning, stacklevel=2)
    return result


def _unfit(table: pa.Table) -> str:
    """The first value that is no Python value."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        for row, value in enumerate(column):
            try:
                value.as_py()
            except (OverflowError, ValueError):
                shown = value.cast(pa.string()).as_py() if pa.types.is_timestamp(value.type) else "a time"
                return f"row {row + 1}: column '{name}' is {shown}"
    return "some row"


def _source(one: Input, time: TimeOf, value: Any, state: str | Path | None) -> Source:
    name = one.name
    if is_frame(value):
        return as_frame_source(value, name, None if state is None else Path(state) / f"{name}.frame", time)
    source: Source = value
    if isinstance(source, SortedSource):
        source.time = time
    elif isinstance(source, LiveSource):
        source.begin(name, time, None if state is None else Path(state), one.key)
    return source


def _attend(runs: list[UnitRun], queries: list[Query], watch: Callable[[list[Progress]], None] | None) -> None:
    """Wait for all units; the first failure ends the run."""
    while not all(r.done.is_set() for r in runs):
        for one, query in zip(runs, queries, strict=True):
            if one.done.is_set():
                continue
            failure = query.failure()
            if failure is not None:
                raise failure
            # a source that failed ends the run only when all that came before it is committed
            broken = one.manager.failure
            if broken is not None and one.manager.next_train(one.committed(), 0) is None:
                raise broken
            one.sinks.check()
            one.done.wait(LOOK_S)
        if watch is not None:
            watch([r.progress for r in runs])
    if watch is not None:
        watch([r.progress for r in runs])


def _close(runs: list[UnitRun], queries: list[Query], complete: bool) -> None:
    errors: list[BorealisError] = []
    for query in queries:
        query.stop()
    for one in runs:
        try:
            one.close(complete)
        except BorealisError as error:
            errors.append(error)
    if errors and complete:
        raise errors[0]


def _sinks(spec: Spec, outputs: Mapping[str, Any], state: Path | None) -> dict[str, Sink]:
    check_outputs(spec, outputs)
    if state is not None:
        make_directory(state)
    given = {name: as_sink(value, state and state / f"{name}.journal") for name, value in outputs.items()}
    return given | {output.name: TableSink() for output in spec.outputs if output.name not in given}
