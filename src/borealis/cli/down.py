"""`borealis down`: stop what was started from this home, also by hand or what is left of it; nothing else."""

from __future__ import annotations

from borealis.cli import processes
from borealis.cli.options import Json
from borealis.cli.screen import answer, console
from borealis.cli.words import plural
from borealis.client.cluster_config import ClusterRecord, find, home, read_record, record_path
from borealis.errors import BorealisError


def down(json: Json = False) -> None:
    record = read_record()
    if record is None:
        answer(json, {"stopped": [], "killed": []}, f"no cluster of {home()} runs")
        return
    running = [part.name for part in record.parts if processes.alive(part)]
    others = _others(record)
    err = console(stderr=True)
    killed = processes.stop(record.parts, say=None if json else lambda text: err.print(text, style="yellow"))
    record_path().unlink(missing_ok=True)
    stopped = [name for name in running if name not in killed]
    gone = len(record.parts) - len(running)
    words = [f"stopped {plural(len(running), 'process', 'processes')}"]
    words += [f"{', '.join(killed)} killed"] if killed else []
    words += [f"{gone} had ended before"] if gone else []
    answer(json, {"stopped": stopped, "killed": killed, "others": others}, "; ".join(words))
    for other in () if json else others:
        err.print(f"still running, for it was not started from this home: {other}", style="yellow", soft_wrap=True)


def _others(record: ClusterRecord) -> list[str]:
    """What else belongs to the cluster, started from elsewhere; that is to be stopped there."""
    from borealis.client.coordinator import CoordinatorClient  # here: a home without a cluster does not wait for it

    try:
        with CoordinatorClient(find(record.coordinator)) as coordinator:
            status = coordinator.status()
    except BorealisError:
        return []  # the coordinator has ended
    ours = {part.pid for part in record.parts}
    found = {"coordinator": status.coordinator.pid} | {node.node: node.pid for node in status.nodes if node.alive}
    return [f"{name} (pid {pid})" for name, pid in found.items() if pid not in ours]
