"""Whether `loops` can be used: its machine code is there already, so that no train waits until it is made.

`python -m borealis.spark.archive` makes it (the Makefile's set-up does) for this Python, numba and processor. Where it
is not there, kernels do without, and give the same.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

LOOPS = Path(__file__).with_name("loops.py")


def caches() -> Path:
    """Where things are kept that are made once for all sessions."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "borealis"


@cache
def loops() -> ModuleType | None:
    """The compiled loops, if they are there."""
    return _with_cache_at(home) if (home := _home()) is not None and (home / "made").exists() else None


def make_loops() -> Path | None:
    """Compile all loops, and keep them: where. None where there is no numba."""
    caches().mkdir(parents=True, exist_ok=True)
    home = _home()
    if home is None:
        return None
    home.mkdir(parents=True, exist_ok=True)
    _with_cache_at(home)
    (home / "made").touch()
    loops.cache_clear()
    return home


def _home() -> Path | None:
    """Where the loops lie for this Python, this numba, this text of them and this processor."""
    if not caches().exists() or importlib.util.find_spec("numba") is None:
        return None
    from importlib.metadata import version  # which takes its time to load

    import llvmlite.binding as llvm

    stamp = LOOPS.stat()
    parts = [sys.version, version("numba"), str(LOOPS), str(stamp.st_mtime_ns), str(stamp.st_size)]
    parts += [llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()]
    return caches() / f"loops-{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:16]}"


def _with_cache_at(home: Path) -> ModuleType:
    import numba

    others, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(home)
    try:
        return importlib.import_module("borealis.kernels.loops")  # which compiles what is not there
    finally:
        numba.config.CACHE_DIR = others
