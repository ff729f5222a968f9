"""The commands: what each does, and its module, which declares its options and is imported when it is called."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from inspect import getdoc
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from borealis.cli.ending import DEBUG
from borealis.cli.options import for_typer

ALONE = {
    "run": "Run a diagram until its inputs end.",
    "explain": "Show a diagram: its units, each box's columns, class and place, the Spark plans; or what protection "
    "gives it.",
    "check": "Validate a diagram, its structure first, then its types.",
    "bench": "Measure on this machine, side by side with plain Structured Streaming where it can do the same.",
    "sim": "Run clusters in simulated time while nodes, networks and disks fail, and judge what clients saw.",
    "demo": "Watch ten minutes' worth of packets go through a diagram, live, and see the result checked.",
    "sample": "Make files to try things with: packets, and the diagram of the demo that computes over them.",
    "cat": "Show the rows of files that Borealis reads or writes; exit code 1 if one is damaged.",
}
WITH_A_CLUSTER = {
    "up": "Start a coordinator and nodes on this machine, and wait until they are ready; or what is missing of them.",
    "down": "Stop the cluster of this home: what 'up' and 'restart' started, and what was started by hand beside it.",
    "deploy": "Run a diagram on the cluster.",
    "undeploy": "Stop a diagram; its state and streams are gone then.",
    "send": "Send the rows of a file to an input, or follow a topic of Kafka or a directory for ever.",
    "tail": "Show a stream's rows as they come, or put them into a topic or files.",
    "ls": "List the streams: their columns, where they are served, and how many tuples they had.",
    "describe": "Show one stream: its columns, who serves it, what is held, and how far each named reader is.",
    "forget": "Keep nothing for a named reader any more: one that never comes back stops the stream when its queue is "
    "full.",
    "forget-node": "No longer show a node that is dead and will not come back.",
    "status": "Show nodes, units and streams: where they are, rates, queues, lag, boundaries.",
    "move": "Move a running unit, with its state, to another node.",
    "kill": "End a node of this machine as a power cut would (kill -9).",
    "cut": "Cut a node off from a stream that its units read, to try what happens; 'up --allow-faults' allows it.",
    "heal": "Let a node read a stream again that it was cut off from.",
    "restart": "Start a node of this home's cluster again that has ended, or its coordinator, and wait until it is "
    "ready.",
    "logs": "Show the log of a node of this home's cluster, or of its coordinator.",
    "node": "Run a node in the foreground.",
    "coordinator": "Run a coordinator in the foreground.",
}
TOGETHER = {  # modules of several commands; any other command has its own
    "explain": ("explain", "check"),
    "foreground": ("node", "coordinator"),
    "deploy": ("deploy", "undeploy", "move"),
    "streams": ("ls", "describe", "forget"),
    "faults": ("cut", "heal"),
    "status": ("status", "forget-node"),
    "parts": ("down", "restart", "logs", "kill"),
}


class Commands(TyperGroup):
    """The commands of the program. To list them takes no module of theirs, to call one its own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for commands, panel in ((ALONE, None), (WITH_A_CLUSTER, "A cluster")):
            for name, text in commands.items():
                self.commands[name] = TyperCommand(name, help=text, rich_help_panel=panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed and loaded(ctx, listed), rest

    def get_params(self, ctx: Any) -> Any:
        return _plain(super().get_params(ctx))


def loaded(ctx: Any, listed: Any) -> Any:
    """A command from its module. What its docstring says comes after what the list says."""
    module = next((module for module, names in TOGETHER.items() if listed.name in names), listed.name)
    function = getattr(import_module(f"borealis.cli.{module}"), listed.name.replace("-", "_"))
    one = typer.Typer(add_completion=False, rich_markup_mode="rich")
    one.command(listed.name, help=f"{listed.help}\n\n{getdoc(function) or ''}".rstrip())(for_typer(function))
    command = get_command(one)
    _plain([*command.params, command.get_help_option(ctx)])
    return command


def _plain(options: Iterable[Any]) -> list[Any]:
    """A flag has no value, so `--help` shows no type behind it."""
    found = list(options)
    for option in found:
        if getattr(option, "is_flag", False):
            option.metavar = ""
    return found


app = typer.Typer(
    cls=Commands,
    help="Continuous queries on Apache Spark that stay fast and correct.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
