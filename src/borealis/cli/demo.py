"""`borealis demo`: packets go through a diagram at a live pace, and the result is held against plain Spark SQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console, RenderableType
from rich.text import Text
from typer import Option

from borealis.cli.opening import start_spark
from borealis.cli.screen import console, span, table
from borealis.cli.watching import Watcher, stoppable, summary
from borealis.clock import WALL
from borealis.errors import TrainError

if TYPE_CHECKING:
    import pyarrow as pa

    from borealis.diagram import Diagram
    from borealis.trains.progress import Progress

SPEED = 20  # seconds of the stream in one second of the demo: 30 s show ten minutes
TICKS_PER_SECOND = 10
WARM_UP_MOST_S = 40.0  # the first train takes as long as Spark needs to get going
TOP = 8
SHOWN_BAR = 30


def paced(packets: pa.Table, seconds: float, warm: threading.Event) -> Iterator[pa.RecordBatch]:
    """The same packets, spread evenly over so many seconds once the first of them are through; 0: at once."""
    ticks = max(1, round(seconds * TICKS_PER_SECOND))
    begin = WALL.now()
    for tick in range(ticks):
        first, last = packets.num_rows * tick // ticks, packets.num_rows * (tick + 1) // ticks
        WALL.sleep(max(0.0, begin + tick * seconds / ticks - WALL.now()))
        yield from packets.slice(first, last - first).combine_chunks().to_batches()
        if tick == 0 and seconds:
            warm.wait(WARM_UP_MOST_S)
            begin = WALL.now()


class Talkers:
    """Takes the output as a callback; remembers all of it for the check, and shows the newest window."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []

    def take(self, batch: pa.RecordBatch) -> None:
        """The output's rows, as they are committed."""
        if batch.num_rows:
            self._batches.append(batch)

    def rows(self) -> pa.Table:
        import pyarrow as pa

        return pa.Table.from_batches(self._batches) if self._batches else pa.table({})

    def show(self) -> RenderableType:
        import pyarrow.compute as pc

        if not self._batches:
            return Text("the first window is still open ...", style="dim")
        last = self._batches[-1]
        window = last.filter(pc.equal(last["window_end"], pc.max(last["window_end"])))
        newest = window.take(pc.sort_indices(window, [("kb", "descending"), ("src", "ascending")])[:TOP]).to_pylist()
        end = newest[0]["window_end"]
        title = f"top talkers, ten seconds up to {end:%H:%M:%S}"
        made = table("source", right=("packets", "kB"), title=title)
        made.add_column("", min_width=SHOWN_BAR)
        most = float(newest[0]["kb"])
        for row in newest:
            bar = "█" * max(1, round(SHOWN_BAR * float(row["kb"]) / most))
            made.add_row(row["src"], f"{row['n']:,}", f"{row['kb']:,.1f}", Text(bar, style="cyan"))
        return made


def demo(
    seconds: Annotated[float, Option(min=1, max=600, help="How long packets come in.")] = 30,
    fast: Annotated[bool, Option("--fast", help="As fast as they can be computed, not at a live pace.")] = False,
) -> None:
    from borealis.cli.sample import SOURCES, packets, traffic
    from borealis.connectors.sources import rows

    out = console()
    diagram, talkers = traffic(), Talkers()
    sent = packets(seconds * SPEED)
    pace = "as fast as they go" if fast else f"{SPEED} times as fast as they were sent"
    out.print(f"{sent.num_rows:,} packets of {SOURCES} sources, {span(seconds * SPEED * 1e6)} of them, {pace}:")
    out.print(Text(diagram.to_yaml().rstrip(), style="dim"))
    places = {"per_source": "the table above"}
    with Watcher(below=talkers.show) as watch:
        watch.doing("starting Spark ...")
        spark = start_spark()
        from borealis.local.run import run

        warm = threading.Event()
        source = rows(lambda: paced(sent, 0 if fast else seconds, warm))

        def see(units: list[Progress]) -> None:
            if any(unit.trains for unit in units):
                warm.set()
            watch.see(units)

        with stoppable(watch, diagram.name, places, out):
            result = run(diagram, {"packets": source}, {"per_source": talkers.take}, spark=spark, watch=see)
    out.print(talkers.show())
    out.print(summary(diagram.name, result.units, places, "done"))
    _check(diagram, spark, sent, talkers.rows(), out)


def _check(diagram: Diagram, spark: Any, sent: pa.Table, streamed: pa.Table, out: Console) -> None:
    """Compute the same once more in one batch, with plain Spark SQL and none of our kernels."""
    out.print(Text("and now the same in one batch, with plain Spark SQL ...", style="dim"))
    from borealis.compile.batch import batch

    began = WALL.now()
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    plain = batch(diagram, spark, {"packets": spark.createDataFrame(sent)})["per_source"].toArrow()
    took = span((WALL.now() - began) * 1e6)
    if not same_rows(streamed, plain):
        raise TrainError(
            f"the stream gave {streamed.num_rows:,} rows that are not the {plain.num_rows:,} of plain Spark SQL",
            hint="this is a defect of Borealis: please report it",
        )
    out.print(
        Text.assemble(
            ("identical", "bold green"),
            f": plain Spark SQL over all packets at once gives the same {plain.num_rows:,} rows (it took {took})",
        )
    )


def same_rows(one: pa.Table, other: pa.Table) -> bool:
    """Whether two tables hold the same rows, in whatever order."""
    if not one.num_rows or not other.num_rows:
        return bool(one.num_rows == other.num_rows)  # without rows columns may miss, too
    if one.column_names != other.column_names:
        return False
    order = [(name, "ascending") for name in one.column_names]
    fit = other.cast(one.schema)
    return bool(one.sort_by(order).combine_chunks().equals(fit.sort_by(order).combine_chunks()))
