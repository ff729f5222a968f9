"""A PostgreSQL server of one's own, from the machine's packages: for benchmarks, and for tests."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from borealis.hosts import free_ports

USER = "postgres"


def binaries() -> Path | None:
    """Where Debian, or the path, has initdb and pg_ctl; the newest version."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda p: float(p.parts[-3]))
    on_path = shutil.which("pg_ctl")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


class Server:
    """A server on a loopback port of its own; nobody but this machine's processes can reach it."""

    def __init__(self, root: Path, settings: Mapping[str, str] = {"fsync": "off"}) -> None:
        self.root, self.data, self.settings = root, root / "data", settings
        (self.port,) = free_ports(1)
        bin_ = binaries()
        assert bin_ is not None
        self._bin = bin_
        self._prefix: list[str] = []
        if os.geteuid() == 0:  # the server refuses to run as root
            who = pwd.getpwnam(USER)
            os.chown(root, who.pw_uid, who.pw_gid)
            self._prefix = ["runuser", "-u", USER, "--"]
        root.chmod(0o755)
        self._do("initdb", "-D", str(self.data), "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C")

    @property
    def url(self) -> str:
        """As a box takes it."""
        return f"postgresql+psycopg://{USER}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = f"-p {self.port} -h 127.0.0.1 -k {self.root} -c max_connections=40"
        options += "".join(f" -c {name}={value}" for name, value in self.settings.items())
        self._do("pg_ctl", "-D", str(self.data), "-o", options, "-l", str(self.root / "log"), "-w", "start")

    def stop(self) -> None:
        """Stop it as a crash would: whatever is under way is lost."""
        self._do("pg_ctl", "-D", str(self.data), "-m", "immediate", "-w", "stop")

    def run(self, *statements: str) -> list[tuple[object, ...]]:
        """Statements one by one, each committed at once; what the last one gives."""
        import psycopg

        url = self.url.replace("+psycopg", "")
        with psycopg.connect(url, autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return list(cursor.fetchall()) if cursor.description else []

    def _do(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [*self._prefix, str(self._bin / program), *arguments],
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if program == "initdb" else subprocess.DEVNULL,  # a server would keep it open
            stderr=subprocess.STDOUT,
            timeout=120,
            check=False,
        )
        log = self.root / "log"
        assert done.returncode == 0, f"{program}: {done.stdout!r} {log.read_text() if log.exists() else ''}"
