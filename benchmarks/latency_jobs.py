"""Jobs of `bench latency`: scripts in processes of their own that are fed and answer with lines of JSON."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from .measuring import end_session

LINES_KEPT = 4  # of a trace, for the reader of an error


class NotPossibleError(Exception):
    """What an engine says that it cannot do."""


class Job:
    """A script in a process and a session of its own, of which nothing is left at the end."""

    def __init__(self, script: str, *given: str) -> None:
        self.what = script
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed by `end`
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(script)), *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            bufsize=1,
            env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._answers: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, name=f"listen-{script}", daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def tell(self, what: Any) -> None:
        """A line for it to read."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def answer(self, seconds: float) -> Any:
        """Its next line; None at its end. Raises what became of it if it failed."""
        try:
            line = self._answers.get(timeout=max(0.0, seconds))
        except queue.Empty:
            raise TimeoutError(f"{self.what} said nothing for {seconds:.0f} s: {self.trace()}") from None
        if line is not None:
            said = json.loads(line)
            if isinstance(said, dict) and "not_possible" in said:
                raise NotPossibleError(said["not_possible"])
            return said
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        if self._process.returncode:
            raise RuntimeError(f"{self.what} failed: {self.trace()}")
        return None

    def check(self) -> None:
        """Raises if it has ended."""
        if self._process.poll() is not None:
            self.answer(1.0)
            raise RuntimeError(f"{self.what} ended too soon: {self.trace()}")

    def trace(self) -> str:
        """The last that it said."""
        self._said.seek(0)
        return " | ".join([line.strip() for line in self._said.read().splitlines() if line.strip()][-LINES_KEPT:])

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_session(self._process)
        self._said.close()


class Patience:
    """Time that is left."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def left(self) -> float:
        """In seconds, at least none."""
        return max(0.0, self._until - time.monotonic())
