"""The Python that Spark starts its workers with: this one, without what makes each of them slow to start.

Spark puts the zip files of PySpark it comes with before everything else. Modules in a zip file are compiled again by
every process, which takes three times as long as to load the same PySpark where it is installed, beside this package.
So workers are started by a script that leaves the zip files out.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import site
import sys
import tempfile
from pathlib import Path

import pyspark

from borealis.kernels.compiled import caches

VARIABLE = "PYSPARK_PYTHON"
SCRIPT = """\
#!/bin/sh
# Starts Python as if Spark had not put its zip files on the path; made by Borealis, and made again if it is missing.
path=
IFS=:
for part in $PYTHONPATH; do
    case "$part" in
    */pyspark.zip | */py4j-*-src.zip) ;;
    *) path="${{path:+$path:}}$part" ;;
    esac
done
export PYTHONPATH="$path"
exec {python} "$@"
"""


def names_another() -> bool:
    """Whether the user names another Python for workers than this one."""
    return os.environ.get(VARIABLE) not in (None, "", sys.executable)


def worker_python() -> str:
    """This Python, by a script that leaves the zip files out."""
    if not _is_installed() or os.name != "posix":
        return sys.executable
    text = SCRIPT.format(python=shlex.quote(sys.executable))
    path = caches() / f"python-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    try:
        if not (path.exists() and path.read_text() == text):
            path.parent.mkdir(parents=True, exist_ok=True)
            number, name = tempfile.mkstemp(dir=path.parent)
            with os.fdopen(number, "w") as file:
                file.write(text)
            os.chmod(name, 0o755)
            os.replace(name, path)
        return str(path) if os.access(path, os.X_OK) else sys.executable
    except OSError:  # a home that cannot be written to: slower, not worse
        return sys.executable


def _is_installed() -> bool:
    """Whether a fresh Python finds this very PySpark without a path to it."""
    home = Path(pyspark.__file__).resolve().parents[1]
    sites = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    return home in {Path(one).resolve() for one in sites}
