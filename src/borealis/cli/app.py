"""The commands and their options; what they do is in a file each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from borealis.cli.ending import DEBUG
from borealis.cli.help import Commands

app = typer.Typer(
    cls=Commands,
    help="Continuous queries on Apache Spark that stay fast and correct.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Yaml = Annotated[Path, typer.Argument(metavar="DIAGRAM", help="The diagram, a YAML file.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else.")]
Coordinator = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="The coordinator; BOREALIS_COORDINATOR, or what 'up' started, if left out."),
]
TokenFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The file with the cluster's token; BOREALIS_TOKEN if left out.")
]
Ca = Annotated[Path | None, typer.Option(metavar="FILE", help="Who signed the cluster's certificates (PEM).")]
TlsCert = Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate for TLS (PEM).")]
TlsKey = Annotated[Path | None, typer.Option(metavar="FILE", help="The certificate's key (PEM).")]
TlsCa = Annotated[Path | None, typer.Option(metavar="FILE", help="Who signed the others' certificates (PEM).")]
Host = Annotated[str, typer.Option(help="The address to listen at; others need a token.")]
CLUSTER = "A cluster"
Master = Annotated[
    str | None, typer.Option(metavar="URL", help="Spark's master; all cores of this machine if left out.")
]


def _version(wanted: bool) -> None:
    if wanted:
        from borealis.version import __version__

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
        from borealis.spark.quiet import keep_log

        keep_log()


@app.command()
def run(
    diagram: Yaml,
    input: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="NAME=PATH",
            help="From where: a file (FILE?format=csv&delimiter=%20), folder, glob or topic; watch:DIR; - for stdin.",
        ),
    ] = None,
    output: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="NAME=PATH",
            help="Where to: a file, a folder (ends in /), a topic, or - for stdout.",
        ),
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
def explain(
    diagram: Yaml,
    ha: Annotated[
        str | None,
        typer.Option(
            metavar="APPROACH", help="Show only protection: with amnesia, passive, active or upstream-backup."
        ),
    ] = None,
    guarantee: Annotated[str | None, typer.Option(metavar="WHAT", help="gap, no-loss or precise.")] = None,
    place: Annotated[
        list[str] | None, typer.Option(metavar="NAME=NODE", help="With --ha: as if it were deployed so.")
    ] = None,
    cut: Annotated[list[str] | None, typer.Option(metavar="BOX", help="With --ha: begin a new unit here.")] = None,
    units: Annotated[int | None, typer.Option(min=1, help="With --ha: cut into about so many units.")] = None,
    json: Json = False,
) -> None:
    """Show a diagram: its units, each box's columns, class and place, the Spark plans; or what protection gives it."""
    from borealis.cli.explain import explain_command
    from borealis.cli.explain_ha import Asked

    explain_command(diagram, Asked(ha, guarantee, cut or (), units, place or ()), json)


@app.command()
def check(diagram: Yaml, json: Json = False) -> None:
    """Validate a diagram, its structure first, then its types."""
    from borealis.cli.check import check_command

    check_command(diagram, json)


@app.command()
def bench(
    experiment: Annotated[
        str, typer.Argument(help="engine, latency, wire, chain, start, recovery, overhead, protected or io: see above.")
    ] = "engine",
    json: Json = False,
    only: Annotated[list[str] | None, typer.Option(metavar="QUERY", help="Only these: q1,q3 (or repeated).")] = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs of each, of which the median counts.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Less data: a smoke test, not a figure.")] = False,
    kills: Annotated[int | None, typer.Option(min=1, help="recovery: kills of each; 5 if left out.")] = None,
    approach: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="recovery, overhead: only these: passive,active.")
    ] = None,
    diagram: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="recovery, overhead: only these: aggregate,union.")
    ] = None,
    interval: Annotated[
        str | None, typer.Option(metavar="TIME", help="recovery: between checkpoints, or trimming messages.")
    ] = None,
    rate: Annotated[
        list[int] | None, typer.Option(min=100, help="latency: rows a second, only these (repeated).")
    ] = None,
    plot: Annotated[
        str | None, typer.Option(metavar="FILE", help="latency, recovery, overhead: a picture, too.")
    ] = None,
) -> None:
    """Measure on this machine, side by side with plain Structured Streaming where it can do the same.

    \b
    engine    one node: rows per second and time of a train
    latency   the age of results at 100 to 100,000 rows/s, beside Spark's micro-batches and its real-time mode
    wire      one stream from process to process
    chain     three nodes in a row beside one
    start     how long 'borealis up --nodes 3' takes
    recovery  how long readers hear nothing when a node is killed
    overhead  what protection costs while all is well
    protected three protected diagrams side by side for twelve minutes, with a kill in the middle
    io        from Kafka to Kafka, and into PostgreSQL
    """
    from borealis.cli.bench import bench_command, names

    more: dict[str, object] = {"kills": kills, "interval": interval, "plot": plot, "rate": tuple(rate or ())}
    more |= {"approach": names(approach), "diagram": names(diagram)}
    bench_command(experiment, json, names(only), runs, quick, more)


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(min=1, max=600, help="How long packets come in.")] = 30,
    fast: Annotated[bool, typer.Option("--fast", help="As fast as they can be computed, not at a live pace.")] = False,
) -> None:
    """Watch ten minutes' worth of packets go through a diagram, live, and see the result checked."""
    from borealis.cli.demo import demo_command

    demo_command(seconds, fast)


@app.command()
def sample(
    path: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...", help="packets.parquet (or .csv, .jsonl, .arrow); traffic.yaml for a diagram."
        ),
    ],
    seconds: Annotated[
        float, typer.Option(min=1, max=36_000, help="How long the packets were sent: 500 a second.")
    ] = 60,
) -> None:
    """Make files to try things with: packets, and the diagram of the demo that computes over them."""
    from borealis.cli.sample import sample_command

    sample_command(path, seconds)


@app.command()
def cat(
    path: Annotated[
        list[str], typer.Argument(metavar="PATH...", help="Files, or folders of them: Parquet, CSV, JSON lines, Arrow.")
    ],
    limit: Annotated[int | None, typer.Option(min=1, help="So many rows; all if left out.")] = None,
    tail: Annotated[bool, typer.Option("--tail", help="The last rows: 10, or as --limit says.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Only columns and counts.")] = False,
) -> int:
    """Show the rows of files that Borealis reads or writes; exit code 1 if one is damaged."""
    from borealis.cli.cat import CatOptions, cat_command

    return cat_command(path, CatOptions(limit, tail, json, schema))


@app.command(rich_help_panel=CLUSTER)
def up(
    nodes: Annotated[int | None, typer.Option(min=1, max=64, help="How many nodes; one if left out.")] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A cluster.yaml: what of it is on this machine is started.")
    ] = None,
    host: Annotated[str | None, typer.Option(metavar="NAME", help="Which host of the file this machine is.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The coordinator's; 7470 if left out, 0 for a free one.")
    ] = None,
    cores_per_node: Annotated[int | None, typer.Option(min=1, help="Spark tasks at a time on each node.")] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep catalog and logs of durable inputs here, for a later 'up'.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Protect the cluster with the token in this file.")
    ] = None,
    wait: Annotated[float, typer.Option(min=1, help="Seconds until all must be ready.")] = 180,
    json: Json = False,
) -> None:
    """Start a coordinator and nodes on this machine, and wait until they are ready; or what is missing of them."""
    from borealis.cli.up import UpOptions, up_command

    up_command(UpOptions(nodes, config, host, port, cores_per_node, data, token_file, wait, json))


@app.command(rich_help_panel=CLUSTER)
def down(json: Json = False) -> None:
    """Stop the cluster of this home: what 'up' and 'restart' started, and what was started by hand beside it."""
    from borealis.cli.down import down_command

    down_command(json)


@app.command(rich_help_panel=CLUSTER)
def deploy(
    diagram: Yaml,
    place: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NODE", help="Put an input, a box or an output on this node."),
    ] = None,
    cut: Annotated[list[str] | None, typer.Option(metavar="BOX", help="Begin a new unit at this box.")] = None,
    units: Annotated[int | None, typer.Option(min=1, help="Cut each connected part into about so many units.")] = None,
    buckets: Annotated[
        int, typer.Option(min=1, max=1024, help="How many parts of the keys are computed side by side.")
    ] = 1,
    ha: Annotated[
        str | None,
        typer.Option(
            metavar="APPROACH",
            help="Protect all units: amnesia, passive, active, upstream-backup; none. As the file says if left out.",
        ),
    ] = None,
    guarantee: Annotated[
        str | None, typer.Option(metavar="WHAT", help="What readers see after a failure: gap, no-loss, precise.")
    ] = None,
    interval: Annotated[
        str | None, typer.Option(metavar="TIME", help="Between checkpoints, or trimming messages: '500 ms'.")
    ] = None,
    ping: Annotated[str | None, typer.Option(metavar="TIME", help="Between two pings of a primary: '100 ms'.")] = None,
    misses: Annotated[
        int | None, typer.Option(min=1, help="Missed pings in a row until it is held to be dead.")
    ] = None,
    without_backup: Annotated[
        str | None, typer.Option(metavar="refuse|degrade", help="What to do if no node is left for a backup.")
    ] = None,
    backup: Annotated[
        list[str] | None, typer.Option(metavar="UNIT=NODE", help="Put the backup of a unit on this node.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="End what runs under its name first; its state and streams are gone then.")
    ] = False,
    coordinator: Coordinator = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    json: Json = False,
) -> None:
    """Run a diagram on the cluster."""
    from borealis.cli.deploy import deploy_command
    from borealis.cli.reaching import Reach, pairs
    from borealis.diagram.deployment import DeployOptions

    options = DeployOptions(
        cut=cut or [],
        place=pairs("--place", place or [], "per_source=node2"),
        units=units,
        buckets=buckets,
        ha=ha,  # type: ignore[typeddict-item]  # Deployment checks it
        guarantee=guarantee,  # type: ignore[typeddict-item]  # Deployment checks it
        interval=interval,
        ping=ping,
        misses=misses,
        without_backup=without_backup,  # type: ignore[typeddict-item]  # Deployment checks it
        backup=pairs("--backup", backup or [], "u2=node3"),
        replace=replace,
    )
    deploy_command(diagram, options, Reach(coordinator, token_file, ca), json)


@app.command(rich_help_panel=CLUSTER)
def undeploy(
    name: Annotated[str, typer.Argument(help="The diagram's name.")],
    coordinator: Coordinator = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    json: Json = False,
) -> None:
    """Stop a diagram; its state and streams are gone then."""
    from borealis.cli.reaching import Reach
    from borealis.cli.undeploy import undeploy_command

    undeploy_command(name, Reach(coordinator, token_file, ca), json)


@app.command(rich_help_panel=CLUSTER)
def send(
    stream: Annotated[str, typer.Argument(help="An input of a running diagram: packets, or traffic/packets.")],
    file: Annotated[
        str,
        typer.Argument(
            help="A file (FILE?format=csv), folder or glob; kafka://host:port/topic; watch:DIR; - for stdin."
        ),
    ],
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Rows per second; as fast as they go if left out.")
    ] = None,
    publisher: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Send under this name: started again, it goes on where it was."),
    ] = None,
    batch_rows: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help="Rows per batch; keep it when going on under a name.")
    ] = None,
    end: Annotated[bool, typer.Option("--end", help="End the stream behind the last row.")] = False,
    time: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="For kafka: and watch:, the input's time, if it has several TIMESTAMPs."),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="For watch:, remember here which files were sent: each only once."),
    ] = None,
    coordinator: Coordinator = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    json: Json = False,
) -> None:
    """Send the rows of a file to an input, or follow a topic of Kafka or a directory for ever."""
    from borealis.cli.reaching import Reach
    from borealis.cli.send import SendOptions, send_command

    options = SendOptions(rate, publisher, batch_rows, end, json, time, state)
    send_command(stream, file, options, Reach(coordinator, token_file, ca))


@app.command(rich_help_panel=CLUSTER)
def tail(
    stream: Annotated[str, typer.Argument(help="An output, input or box: per_source, or traffic/per_source.")],
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="oldest, newest or a tuple id. If left out: newest; with --reader or --to where that was, or oldest.",
        ),
    ] = None,
    reader: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Read under this name: what is not shown yet is kept for the next time."),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="End after so many rows.")] = None,
    headers: Annotated[bool, typer.Option("--headers", help="Show the header columns of tuples, too.")] = False,
    coordinator: Coordinator = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON lines.")] = False,
    to: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="Into a topic instead, exactly once: kafka://host:port/topic."),
    ] = None,
) -> None:
    """Show a stream's rows as they come, or put them into a topic."""
    from borealis.cli.reaching import Reach
    from borealis.cli.tail import TailOptions, tail_command

    options = TailOptions(start, reader, limit, headers, json, to)
    tail_command(stream, options, Reach(coordinator, token_file, ca))


@app.command(rich_help_panel=CLUSTER)
def ls(
    coordinator: Coordinator = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    json: Json = False,
) -> None:
    """List the streams: their columns, where they are served, and how many tuples they had."""
    from borealis.cli.reaching import Reach
    from borealis.cli.streams import ls_command

    ls_command(Reach(coordinator, token_file, ca), json)


@app.command(rich_help_panel=CLUSTER)
def describe(
    stream: Annotated[str, typer.Argument(help="An output, input or box: per_source, or traffic/per_source.")],
    coordinator: Coordinator = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    json: Json = False,
) -> None:
    """Show one stream: its columns, who serves it, what is held, and how far each named reader is."""
    from borealis.cli.reaching import Reach
    from borealis.cli.streams import describe_command

    describe_command(stream, Reach(coordinator, token_file, ca), json)


@app.command(rich_help_panel=CLUSTER)
def forget(
    stream: Annotated[str, typer.Argument(help="The stream: per_source, or traffic/per_source.")],
    reader: Annotated[str, typer.Argument(help="Its reader that will not come back.")],
    coordinator: Coordinator = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    json: Json = False,
) -> None:
    """Keep nothing for a named reader any more: one that never comes back stops the stream when its queue is full."""
    from borealis.cli.forget import forget_command
    from borealis.cli.reaching import Reach

    forget_command(stream, reader, Reach(coordinator, token_file, ca), json)


@app.command(rich_help_panel=CLUSTER)
def forget_node(
    node: Annotated[str, typer.Argument(help="The node, which is dead.")],
    coordinator: Coordinator = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    json: Json = False,
) -> None:
    """No longer show a node that is dead and will not come back."""
    from borealis.cli.forget import forget_node_command
    from borealis.cli.reaching import Reach

    forget_node_command(node, Reach(coordinator, token_file, ca), json)


@app.command(rich_help_panel=CLUSTER)
def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again every second, until stopped.")] = False,
    coordinator: Coordinator = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    json: Json = False,
) -> None:
    """Show nodes, units and streams: where they are, rates, queues, lag, boundaries."""
    from borealis.cli.reaching import Reach
    from borealis.cli.status import status_command

    status_command(watch, Reach(coordinator, token_file, ca), json)


@app.command(rich_help_panel=CLUSTER)
def move(
    unit: Annotated[str, typer.Argument(help="The unit: u2, or traffic/u2.")],
    node: Annotated[str, typer.Argument(help="Where it shall run.")],
    diagram: Annotated[str | None, typer.Option(metavar="NAME", help="Of which diagram, if several run.")] = None,
    coordinator: Coordinator = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    json: Json = False,
) -> None:
    """Move a running unit, with its state, to another node."""
    from borealis.cli.move import move_command
    from borealis.cli.reaching import Reach

    move_command(unit, node, diagram, Reach(coordinator, token_file, ca), json)


@app.command(rich_help_panel=CLUSTER)
def kill(
    node: Annotated[str, typer.Argument(help="The node.")],
    coordinator: Coordinator = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    json: Json = False,
) -> None:
    """End a node of this machine as a power cut would (kill -9)."""
    from borealis.cli.kill import kill_command
    from borealis.cli.reaching import Reach

    kill_command(node, Reach(coordinator, token_file, ca), json)


@app.command(rich_help_panel=CLUSTER)
def restart(
    name: Annotated[str, typer.Argument(metavar="NODE", help="The node, or coordinator.")],
    wait: Annotated[float, typer.Option(min=1, help="Seconds until it must be ready.")] = 180,
    json: Json = False,
) -> None:
    """Start a node of this home's cluster again that has ended, or its coordinator, and wait until it is ready."""
    from borealis.cli.restart import restart_command
    from borealis.cli.starting import Patience

    restart_command(name, Patience(wait, json))


@app.command(rich_help_panel=CLUSTER)
def logs(
    name: Annotated[str, typer.Argument(metavar="NODE", help="The node, or coordinator.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="And what comes, until stopped.")] = False,
    lines: Annotated[int | None, typer.Option("--lines", "-n", min=1, help="The last lines; all if left out.")] = None,
) -> None:
    """Show the log of a node of this home's cluster, or of its coordinator."""
    from borealis.cli.logs import logs_command

    logs_command(name, follow, lines)


@app.command(rich_help_panel=CLUSTER)
def node(
    coordinator: Coordinator = None,
    name: Annotated[str | None, typer.Option(help="Its name; from host and process if left out.")] = None,
    master: Master = None,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="For other nodes and clients; 0: a free one.")] = 0,
    http_port: Annotated[int, typer.Option(min=0, max=65535, help="For metrics; 0: a free one.")] = 0,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Where durable inputs keep their logs.")] = None,
    cores: Annotated[int | None, typer.Option(min=1, help="Spark tasks at a time, where no master is given.")] = None,
    conf: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="A setting for Spark.")] = None,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Run a node in the foreground."""
    from borealis.cli.node import NodeArguments, Protection, node_command

    given = NodeArguments(name, coordinator, master, host, port, http_port, data, cores, conf or [])
    node_command(given, Protection(token_file, tls_cert, tls_key, tls_ca))


@app.command(rich_help_panel=CLUSTER)
def coordinator(
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where it listens.")] = 7470,
    catalog: Annotated[Path | None, typer.Option(metavar="FILE", help="What shall run, in SQLite.")] = None,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Run a coordinator in the foreground."""
    from borealis.cli.coordinator import coordinator_command
    from borealis.cli.node import Protection

    coordinator_command(host, port, catalog, Protection(token_file, tls_cert, tls_key, tls_ca))
