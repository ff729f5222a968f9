"""`borealis run`: a diagram over files, watched, with a summary at the end."""

from __future__ import annotations

import warnings
from json import dumps
from pathlib import Path
from typing import Annotated

from typer import Option

from borealis.cli.opening import load, start_spark
from borealis.cli.options import Json, Master, Names, Yaml, pairs
from borealis.cli.screen import console
from borealis.cli.watching import Watcher, stoppable, summary
from borealis.errors import BorealisWarning


def run(
    diagram: Yaml,
    input: Annotated[
        Names,
        Option(
            "--input",
            "-i",
            metavar="NAME=PATH",
            help="From where: a file (FILE?format=csv&delimiter=%20), folder, glob or topic; watch:DIR; - for stdin.",
        ),
    ] = None,
    output: Annotated[
        Names,
        Option(
            "--output",
            "-o",
            metavar="NAME=PATH",
            help="Where to: a file, a folder (ends in /), a topic, or - for stdout.",
        ),
    ] = None,
    state: Annotated[
        Path | None, Option(metavar="DIR", help="Keep the state here: a killed run goes on where it was.")
    ] = None,
    buckets: Annotated[int, Option(min=1, help="How many parts of the keys are computed side by side.")] = 1,
    rows_per_train: Annotated[int | None, Option(min=1, help="The largest train, in tuples.")] = None,
    headers: Annotated[bool, Option("--headers", help="Write the header columns of tuples, too.")] = False,
    json: Json = False,
    master: Master = None,
) -> None:
    from borealis.cli.run_outputs import STDOUT, FirstRows, given_outputs, sink_of
    from borealis.connectors.addresses import shown
    from borealis.connectors.sources import as_source

    spec = load(diagram).validate()  # everything that can be wrong without Spark is found before Spark starts
    inputs = pairs("--input", input, "packets=packets.parquet", "PATH")
    spec.check_inputs(inputs, "add --input {name}=FILE")
    sources = {name: as_source(place) for name, place in inputs.items()}
    given = given_outputs(spec, output, json)
    sinks = {name: sink_of(place) for name, place in given.items()}
    glimpses = {} if json else {name: FirstRows() for name, place in given.items() if place is None}
    places = {name: place and shown(place) for name, place in given.items()}
    with Watcher(quiet=json) as watch:
        watch.doing("Spark is starting ...")
        spark = start_spark(master)
        from borealis.local.run import run as run_here
        from borealis.trains.intake import Admission

        admission = Admission() if rows_per_train is None else Admission(rows_most=rows_per_train)
        warnings.simplefilter("ignore", BorealisWarning)  # the summary has them
        with stoppable(watch, spec.name, places, watch.out):
            watch.doing("compiling ...")
            result = run_here(
                spec,
                sources,
                sinks | glimpses,
                state=state,
                buckets=buckets,
                admission=admission,
                headers=headers,
                spark=spark,
                watch=watch.see,
            )
    if json:
        print(dumps({"diagram": spec.name, "outputs": places} | result.to_json(), ensure_ascii=False))
        return
    out = console(stderr=STDOUT in places.values())
    below = {name: f"below; all of them with --output {name}=FILE" for name in glimpses}
    out.print(summary(spec.name, result.units, places | below, "done"))
    for name, rows in glimpses.items():
        out.print(rows.shown(name))
