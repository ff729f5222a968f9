"""One measured job in a process and a JVM of its own: `python job.py '{"do": "native.live", ...}'` prints JSON."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any


def do(what: str, **given: Any) -> Any:
    """Run a job by its name. Spark is imported only by the jobs that need it."""
    module, _, verb = what.partition(".")
    return getattr(importlib.import_module(module), verb)(**given) if verb else make(**given)


def make(to: str, files: int, rows: int, rows_per_ms: int, stream: int = 0, keys: int = 0, touched: int = 0) -> int:
    """Write input files; with `keys`, such that every `rows` rows touch the same number of them."""
    import workload

    if not keys:
        workload.write_files(Path(to), files, rows, rows_per_ms, stream)
        return files
    Path(to).mkdir(parents=True)
    for i in range(files):
        workload.write(Path(to, f"{i:05}.parquet"), workload.rows_touching(i * rows, rows, keys, touched), rows)
    return files


def main() -> None:
    """The last line on standard output is the result; whatever libraries print goes to standard error."""
    answer = os.dup(1)
    os.dup2(2, 1)
    given = json.loads(sys.argv[1])
    result = do(given.pop("do"), **given)
    with os.fdopen(answer, "w") as out:
        json.dump(result, out)


if __name__ == "__main__":
    main()
