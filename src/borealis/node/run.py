"""Run a whole diagram in this process, from its sources to its sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from borealis.clock import Clock
from borealis.diagram.model import Diagram
from borealis.diagram.spec import LATE, Spec
from borealis.emit.sinks import TableSink, as_sink
from borealis.emit.sinks.base import Sink
from borealis.errors import BorealisError, OutputError, did_you_mean
from borealis.ingest.intake import Admission
from borealis.ingest.sources import as_source
from borealis.ingest.sources.base import LiveSource, Source
from borealis.ingest.times import TimeOf
from borealis.node.progress import Progress
from borealis.node.unit import UnitOptions, UnitRun
from borealis.plan.analyze import time_of
from borealis.plan.compile import compile_unit
from borealis.plan.frames import as_frame_source, is_frame
from borealis.plan.session import require, session
from borealis.plan.train import Query
from borealis.state.commits import make_directory

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

    def rows(self, output: str) -> list[dict[str, Any]]:
        """An output as a list of dicts."""
        rows: list[dict[str, Any]] = self[output].to_pylist()
        return rows

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
    clock: Clock | None = None,
) -> Result:
    """Run a diagram until its inputs end. With `state`, a run that was killed goes on where it had committed.

    Outputs that are not named are collected in memory: `run(...)["per_source"]`.
    """
    spec = diagram.validate() if isinstance(diagram, Diagram) else diagram
    sinks = _sinks(spec, outputs or {}, None if state is None else Path(state))
    spec.check_inputs(inputs, "give it: inputs={{'{name}': 'file.parquet'}}")
    spark = require(spark or session())
    runs: list[UnitRun] = []
    queries: list[Query] = []
    times = {i.name: time_of(i, spark) for i in spec.inputs}
    sources = {name: _source(name, times[name], value, state) for name, value in inputs.items()}
    complete = False
    try:
        for unit in spec.units():
            compiled = compile_unit(unit.spec, spark, buckets, headers=headers)
            home = None if state is None else Path(state) / unit.name
            options = UnitOptions(admission or Admission(), home, headers)
            mine: dict[str, Source] = {i.name: sources[i.name] for i in unit.spec.inputs}
            theirs = {name: sink for name, sink in sinks.items() if name in compiled.outlets}
            one = UnitRun(unit, compiled, mine, theirs, options, clock)
            one.progress.ends = (*mine.values(), *theirs.values(), one)
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
    return Result([r.progress for r in runs], tables, spark)


def _source(name: str, time: TimeOf, value: Any, state: str | Path | None) -> Source:
    if is_frame(value):
        return as_frame_source(value, name, None if state is None else Path(state) / f"{name}.frame")
    source = as_source(value)
    if isinstance(source, LiveSource):
        source.begin(name, time, None if state is None else Path(state))
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
            # a source that failed is told only when all that came before it is committed
            broken = one.manager.failure
            if broken is not None and one.manager.next_train(one.committed(), 0) is None:
                raise broken
            for sink in one.sinks.values():  # one that writes behind the commits may fail between them
                if (failed := getattr(sink, "failure", None)) is not None:
                    raise failed
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
    known = [o.name for o in spec.outputs] + [i.name + LATE for i in spec.inputs]
    for name in outputs:
        if name not in known:
            hint = did_you_mean(name, known) or f"it has: {', '.join(known)}"
            raise OutputError(f"diagram '{spec.name}' has no output '{name}'", hint=hint)
    if state is not None:
        make_directory(state)
    sinks: dict[str, Sink] = {}
    for name, value in outputs.items():
        sinks[name] = as_sink(value, None if state is None else state / f"{name}.journal")
    for output in spec.outputs:
        sinks.setdefault(output.name, TableSink())
    return sinks
