"""`borealis down`: stop what `up` started here, also what is left of a broken cluster; nothing else."""

from __future__ import annotations

import json

from borealis.cli import processes
from borealis.cli.watching import console
from borealis.cli.words import plural
from borealis.emit.whereabouts import home, read_record, record_path


def down_command(as_json: bool) -> None:
    """Ask each process to end, and end those that do not."""
    record = read_record()
    if record is None:
        if as_json:
            print(json.dumps({"stopped": [], "killed": []}))
        else:
            print(f"no cluster of {home()} runs")
        return
    running = [part.name for part in record.parts if processes.alive(part)]
    err = console(stderr=True)
    killed = processes.stop(record.parts, say=None if as_json else lambda text: err.print(text, style="yellow"))
    record_path().unlink(missing_ok=True)
    stopped = [name for name in running if name not in killed]
    if as_json:
        print(json.dumps({"stopped": stopped, "killed": killed}))
        return
    gone = len(record.parts) - len(running)
    words = [f"stopped {plural(len(running), 'process', 'processes')}"]
    words += [f"{', '.join(killed)} killed"] if killed else []
    words += [f"{gone} had ended before"] if gone else []
    print("; ".join(words))
