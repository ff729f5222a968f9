"""How `--help` shows options: a flag has no value, so no type stands behind it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typer.core import TyperGroup


class Commands(TyperGroup):
    """The commands of the program."""

    def get_params(self, ctx: Any) -> Any:
        """Its own options."""
        return _plain(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """One command; its options are as bare as those of all."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _plain([*command.params, command.get_help_option(ctx)])
        return command


def _plain(options: Iterable[Any]) -> list[Any]:
    found = list(options)
    for option in found:
        if getattr(option, "is_flag", False):
            option.metavar = ""
    return found
