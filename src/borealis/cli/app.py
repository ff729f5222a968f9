"""The commands and their options; what they do is in a file each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from borealis.cli.ending import DEBUG

app = typer.Typer(
    help="Continuous queries on Apache Spark that stay fast and correct.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Yaml = Annotated[Path, typer.Argument(metavar="DIAGRAM", help="The diagram, a YAML file.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else.")]
Master = Annotated[
    str | None, typer.Option(metavar="URL", help="Spark's master; all cores of this machine if left out.")
]


def _version(wanted: bool) -> None:
    if wanted:
        from borealis import __version__

        print(f"borealis {__version__}")
        raise typer.Exit


@app.callback()
def _borealis(
    debug: Annotated[bool, typer.Option(DEBUG, help="Show stack traces, and keep Spark's log.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    if debug:
        from borealis.plan.quiet import keep_log

        keep_log()


@app.command()
def run(
    diagram: Yaml,
    input: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", metavar="NAME=PATH", help="Where an input comes from: a file, folder or glob."),
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option("--output", "-o", metavar="NAME=PATH", help="Where an output goes: a file, or - for stdout."),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the state here: a killed run goes on where it was.")
    ] = None,
    buckets: Annotated[int, typer.Option(min=1, help="How many parts of the keys are computed side by side.")] = 1,
    rows_per_train: Annotated[int | None, typer.Option(min=1, help="The largest train, in tuples.")] = None,
    headers: Annotated[bool, typer.Option("--headers", help="Write the header columns of tuples, too.")] = False,
    json: Json = False,
    master: Master = None,
) -> None:
    """Run a diagram until its inputs end."""
    from borealis.cli.run import RunOptions, run_command

    options = RunOptions(state, buckets, rows_per_train, headers, json, master)
    run_command(diagram, input or [], output or [], options)


@app.command()
def explain(diagram: Yaml, json: Json = False) -> None:
    """Show a diagram: its units, each box's columns, class and place, and the Spark plans."""
    from borealis.cli.explain import explain_command

    explain_command(diagram, json)


@app.command()
def check(diagram: Yaml, json: Json = False) -> None:
    """Validate a diagram, its structure first, then its types."""
    from borealis.cli.check import check_command

    check_command(diagram, json)


@app.command()
def bench(
    experiment: Annotated[str, typer.Argument(help="Which benchmark.")] = "engine",
    json: Json = False,
    only: Annotated[list[str] | None, typer.Option(metavar="QUERY", help="Only these: q1,q3 (or repeated).")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs of each, of which the median counts.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Less data: a smoke test, not a figure.")] = False,
) -> None:
    """Measure, side by side with plain Structured Streaming."""
    from borealis.cli.bench import bench_command

    names = tuple(name for one in only or () for name in one.split(",") if name)
    bench_command(experiment, json, names, runs, quick)


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(min=1, max=600, help="How long packets come in.")] = 30,
    fast: Annotated[bool, typer.Option("--fast", help="As fast as they can be computed, not at a live pace.")] = False,
) -> None:
    """Watch ten minutes' worth of packets go through a diagram, live, and see the result checked."""
    from borealis.cli.demo import demo_command

    demo_command(seconds, fast)
