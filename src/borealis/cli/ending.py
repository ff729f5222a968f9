"""How a command ends: an exit code, and for a failure one line on stderr.

0 done, 1 a defect of ours (for `cat`: a damaged file), 2 something the user can mend, 130 and 143 stopped by a signal,
141 the reader of stdout has gone.
"""

from __future__ import annotations

import atexit
import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

from borealis.clock import WALL
from borealis.errors import BorealisError, MachineError, OutputError, TrainError

DEFECT, USER, PIPE_CLOSED = 1, 2, 141
DEBUG = "--debug"
LOOK_EVERY_S = 0.2  # for a signal, while a command waits for something else
FULL = (errno.ENOSPC, errno.EDQUOT)


class Stopped(BaseException):
    """A signal asked this process to end; not an error, so that nothing mistakes it for one."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.exit_code = 128 + signal_number


class Stop:
    """A wish to stop that is granted at the next safe point instead of anywhere; the second wish is granted at once."""

    def __init__(self) -> None:
        self._wished: int | None = None
        self._deferred = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self._deferred or self._wished is not None:
            raise Stopped(number)
        self._wished = number

    @contextmanager
    def deferred(self) -> Iterator[Stop]:
        """Within, signals wait for `point`."""
        self._deferred = True
        try:
            yield self
        finally:
            self._deferred = False

    def point(self) -> None:
        """A safe point: stop here if that is wished."""
        if self._wished is not None:
            raise Stopped(self._wished)

    def sleep(self, seconds: float) -> None:
        """Wait; all of it is a safe point."""
        until = WALL.now() + seconds
        self.point()
        while (left := until - WALL.now()) > 0:
            WALL.sleep(min(left, LOOK_EVERY_S))
            self.point()

    def listen(self) -> None:
        """Take the signals over, also from Spark, which would cancel its jobs and raise wherever the program stands."""
        if threading.current_thread() is threading.main_thread():  # no other may
            signal.signal(signal.SIGINT, self)
            signal.signal(signal.SIGTERM, self)


STOP = Stop()


class PipeClosedError(OutputError):
    """The reader of our stdout has gone, as it may: the command ends without a word."""


def run_app(arguments: Sequence[str]) -> int:
    debug = DEBUG in arguments
    rest = [a for a in arguments if a != DEBUG]  # wherever the user wrote it, it is the option of `borealis`
    try:
        STOP.listen()
        from borealis.cli.app import app

        code = app([DEBUG, *rest] if debug else rest, prog_name="borealis", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (Stopped, KeyboardInterrupt) as stop:
        return stop.exit_code if isinstance(stop, Stopped) else 130
    except (PipeClosedError, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python complains once more when it flushes stdout
        return PIPE_CLOSED
    except BaseException as error:
        if debug:
            traceback.print_exc()
        code, line = code_and_line(error)
        if line:
            print(line, file=sys.stderr)
        return code


def leave(code: int) -> NoReturn:
    """End this process, but do not take Python apart: a thread that a library still runs in C++ would abort it then."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(BrokenPipeError, ValueError):  # its reader has gone, or it was closed
            stream.flush()
    os._exit(code)


def code_and_line(error: BaseException) -> tuple[int, str]:
    if isinstance(error, SystemExit):
        return (error.code, "") if isinstance(error.code, int) else (DEFECT, str(error.code or ""))
    if isinstance(error, BorealisError):
        hints = [error.hint] if error.hint else []
        if _wants_log(error) and (log := _kept_log()):
            hints.append(f"Spark's log is {log}")
        return USER, _line(error.message, "; ".join(hints))
    if hasattr(error, "format_message"):  # Typer's own: a wrong option, a missing argument
        where = getattr(getattr(error, "ctx", None), "command_path", None) or "borealis"
        message = str(error.format_message())  # nothing, where the help has just been shown
        return int(getattr(error, "exit_code", USER)), _line(message, f"see {where} --help") if message else ""
    if isinstance(error, OSError) and error.filename is not None:  # the machine says no: full, forbidden, not there
        hint = "make room and start again" if error.errno in FULL else "check that it is there and may be used"
        return USER, _line(f"cannot use '{error.filename}': {error.strerror}", hint)
    hints = [f"this is a defect of Borealis: run it again with {DEBUG} to see where"]
    if log := _kept_log():
        hints.append(f"Spark's log is {log}")
    first_line = next(iter(str(error).strip().splitlines()), "no message")[:300]
    return DEFECT, _line(f"unexpected {type(error).__name__}: {first_line}", "; ".join(hints))


def _line(message: str, hint: str) -> str:
    message = " ".join(message.split()).rstrip(".")
    stop = "" if message.endswith(("?", "!")) else "."
    return f"error: {message}{stop} Hint: {' '.join(hint.split())}" if hint else f"error: {message}"


def _wants_log(error: BorealisError) -> bool:
    """Whether only Spark's log can say more: not where the error is a worker's, in our words."""
    if "Spark's log is" in error.message:
        return False
    return isinstance(error, MachineError) or (isinstance(error, TrainError) and error.message.startswith("a train"))


def _kept_log() -> Any:
    """Spark's log if there is one, but without importing Spark for that."""
    quiet = sys.modules.get("borealis.spark.quiet")
    return None if quiet is None else quiet.keep_log()
