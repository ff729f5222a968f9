"""What several commands begin with: a checked diagram, a Spark session."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from borealis.cli.ending import STOP
from borealis.errors import BorealisError, MachineError

if TYPE_CHECKING:
    from borealis.diagram.model import Diagram


def load(path: Path) -> Diagram:
    """The diagram in a file, complete and sound; without Spark, so that a slip shows at once."""
    from borealis.diagram.model import Diagram

    diagram = Diagram.load(path)
    try:
        diagram.validate()
    except BorealisError as error:
        raise type(error)(f"{path}: {error.message}", hint=error.hint) from error
    return diagram


def start_spark(master: str | None = None) -> Any:
    """A Spark session, started without a word on the terminal."""
    from borealis.spark.quiet import log_file
    from borealis.spark.session import session

    try:
        spark = session(master)
    except BorealisError:
        raise
    except Exception as error:
        log = log_file()
        gone = "JAVA_GATEWAY_EXITED" in str(error) and log is not None  # then only the log says why
        why = _last_words(log.read_text("utf-8", "replace") if gone and log else str(error))
        hint = f"is '{master}' a Spark master?" if master else "see what Spark wrote"
        raise MachineError(f"Spark did not start: {why or type(error).__name__}", hint=hint) from error
    STOP.listen()
    return spark


def _last_words(text: str) -> str:
    """The line of a Java failure that says why."""
    lines = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith(("at ", "..."))]
    telling = [line for line in lines if "Exception" in line or line.lower().startswith("error")]
    last = (telling or lines or [""])[-1]
    return re.sub(r'^(Exception in thread "\w+" |: )?([\w.]+(Exception|Error): )?', "", last)[:200]
