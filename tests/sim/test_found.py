"""What simulated runs have found, each by its name: the plan that failed passes since the defect is mended."""

from __future__ import annotations

import pytest

from borealis.sim.plan import Fault, Plan
from borealis.sim.programs import Programs
from borealis.sim.seeds import Stage

NODES = ("node1", "node2", "node3")


def plan(
    seed: int,
    diagram: str,
    cuts: tuple[str, ...],
    way: tuple[str, str],
    *faults: Fault,
    durable: bool = False,
    lean: bool = False,
) -> Plan:
    return Plan(seed, diagram, cuts, *way, durable, NODES, 15.0, faults, lean)


FOUND = {
    # a primary that neither its backup nor the coordinator answered went on alone, and acknowledged what was lost
    "acknowledged behind a cut": plan(
        20,
        "merging",
        (),
        ("upstream-backup", "precise"),
        Fault(2.728, 3.163, "pause", ("node3",)),
        Fault(4.761, 8.305, "cut off", ("node1",)),
    ),
    # a primary that was paused while its backup took over gave all it found when it went on, under its own ids
    "what was given after a long sleep": plan(
        900580,
        "single",
        ("second", "third"),
        ("amnesia", "gap"),
        Fault(3.38, 4.88, "slow", ("node3",), 10.0),
        Fault(4.272, 4.625, "kill", ("node3",), 0.0022),
        Fault(4.419, 9.935, "pause", ("node2",)),
    ),
    # a unit that had moved took all its output for delivered: its backup began behind what the next one's lacked
    "moved, and dead with its reader": plan(
        900311,
        "routed",
        ("fewer", "again"),
        ("upstream-backup", "gap"),
        Fault(3.586, 3.586, "move", ("node3",)),
        Fault(3.913, 4.845, "wipe", ("node3",), 0.0035),
    ),
    # an active standby had its dead primary forgotten where its own name was not known yet
    "an input that forgets its reader": plan(
        901977,
        "single",
        ("third",),
        ("active", "precise"),
        Fault(2.108, 2.534, "kill", ("node1",)),
        Fault(2.108, 7.108, "kill successor", (), 0.008),
        Fault(3.338, 4.020, "cut pair", ("node1", "node3")),
        Fault(6.680, 11.680, "kill successor", (), 0.03),
        durable=True,
        lean=True,
    ),
    "windows counted behind a cut": plan(
        26, "single", ("third",), ("upstream-backup", "no-loss"), Fault(6.218, 9.620, "cut off", ("node1", "node2"))
    ),
    # a claim that was under way when its node had given it up was granted: no node ran the unit then
    "an old claim is granted": plan(
        13,
        "merging",
        ("paired", "third"),
        ("upstream-backup", "no-loss"),
        Fault(6.467, 9.149, "cut off", ("node1", "node2")),
    ),
    "an old claim of entry points is granted": plan(
        34,
        "paired",
        (),
        ("active", "no-loss"),
        Fault(3.569, 4.071, "cut pair", ("coordinator", "node2")),
        Fault(4.387, 8.020, "cut off", ("node2", "node3")),
    ),
    # where tuples may be lost anyway, both sides of a cut went on, under the same incarnation
    "two primaries of one incarnation": plan(
        5000,
        "sampled",
        ("near",),
        ("passive", "gap"),
        Fault(2.494, 4.175, "cut one way", ("node1",)),
        Fault(6.390, 8.905, "cut off", ("node1", "node2")),
    ),
    # a backup that builds its state again did not know clients by their names, and kept nothing for them
    "a named reader that comes late": plan(
        6020,
        "routed",
        ("again",),
        ("upstream-backup", "no-loss"),
        Fault(4.100, 6.404, "cut off", ("node2",)),
        lean=True,
    ),
    "a named reader behind two one-way cuts": plan(
        1046,
        "merging",
        ("third",),
        ("upstream-backup", "no-loss"),
        Fault(2.287, 4.835, "cut one way", ("node2",)),
        Fault(6.858, 9.543, "cut one way", ("node3",)),
        lean=True,
    ),
    # the last word of a primary that was dead made its backup ready, after the backup had looked whether it was
    "a primary's last word": plan(
        102,
        "merging",
        (),
        ("upstream-backup", "precise"),
        Fault(3.655, 3.924, "kill", ("node1",), 0.0293),
        Fault(3.655, 8.655, "kill successor", (), 0.002),
        Fault(4.599, 4.599, "break connections", (), 0.95),
        durable=True,
    ),
    # a claim of a process that had died was granted, and the backup, which had everything, refused
    "a claim of the dead": plan(
        20049,
        "counted",
        ("counted",),
        ("passive", "precise"),
        Fault(3.069, 7.003, "cut one way", ("node2", "node3")),
        Fault(4.138, 8.100, "cut off", ("node1",)),
        Fault(4.507, 6.621, "kill", ("node1",), 0.0341),
    ),
    # where a stream is taken up in its midst, the boundary that stands there closed nothing, and a box failed
    "a boundary that stands": plan(
        86,
        "sampled",
        (),
        ("passive", "gap"),
        Fault(3.215, 6.776, "cut off", ("node1",)),
        Fault(6.579, 11.579, "kill successor", (), 0.012),
        durable=True,
        lean=True,
    ),
    # a backup of an earlier pair was waited for, whose claims are refused
    "a backup of an earlier pair": plan(
        65,
        "routed",
        ("fewer",),
        ("active", "precise"),
        Fault(1.468, 4.719, "cut one way", ("node2", "node3")),
        Fault(2.878, 4.378, "slow", ("node1",), 10.0),
        Fault(3.296, 4.160, "kill", ("node1",), 0.0245),
    ),
    # a new primary whose disk fails when it makes the log it had as a backup survive
    "a disk that fails in a takeover": plan(
        134,
        "routed",
        (),
        ("passive", "precise"),
        Fault(2.239, 2.239, "failing disk", ("node2",), 3.0),
        Fault(2.427, 3.461, "wipe", ("node1",)),
        durable=True,
    ),
    # a unit was moved to a node that stood by for it once: that copy was taken for the one that had moved
    "a move to a former backup": plan(
        436,
        "routed",
        ("fewer",),
        ("passive", "gap"),
        Fault(3.633, 5.806, "cut one way", ("node3",)),
        Fault(5.243, 5.243, "move", ("node3",)),
        Fault(6.162, 10.540, "pause", ("node1",)),
        durable=True,
        lean=True,
    ),
    # a log whose disk had failed once took nothing more, before its node was started again
    "a disk that fails twice": plan(
        5004,
        "paired",
        ("paired",),
        ("upstream-backup", "no-loss"),
        Fault(2.755, 2.755, "failing disk", ("node1",), 2.0),
        durable=True,
    ),
    # a node that came back with a damaged log could not even stand by, for which the log is not needed
    "a backup with a damaged log": plan(
        1015,
        "counted",
        (),
        ("passive", "precise"),
        Fault(3.0, 3.5, "flipped bit", ("node1",)),
        Fault(6.0, 6.5, "flipped bit", ("node2",)),
        durable=True,
    ),
    # a backup that begins at its first tuple again took another life of its input for the one it had results of
    "another life of an input": plan(
        100125,
        "counted",
        ("counted",),
        ("upstream-backup", "precise"),
        Fault(4.295, 4.725, "kill", ("node3",)),
        Fault(4.308, 5.308, "kill", ("node1",)),
        Fault(6.349, 7.848, "kill", ("node2",)),
    ),
    # a unit whose node had just died lost its backup first, and then did not move
    "a move from a dead node": plan(
        201156,
        "routed",
        (),
        ("upstream-backup", "precise"),
        Fault(1.789, 2.219, "kill", ("node1",)),
        Fault(1.904, 1.904, "move", ("node3",)),
        durable=True,
        lean=True,
    ),
    # a node that had been paused took over what the other had gone on with alone before it died
    "a takeover behind a pause": plan(
        300411,
        "merging",
        ("second", "paired"),
        ("upstream-backup", "no-loss"),
        Fault(2.530, 6.936, "pause", ("node1",)),
        Fault(6.269, 6.630, "kill", ("node3",)),
        Fault(6.641, 8.374, "kill", ("coordinator",)),
        lean=True,
    ),
    # the backup of a primary that had just died was replaced, and so could not take over
    "a backup that is replaced too early": plan(
        300411,
        "merging",
        ("second", "paired"),
        ("upstream-backup", "no-loss"),
        Fault(2.530, 6.936, "pause", ("node1",)),
        Fault(6.335, 7.335, "kill", ("node2",)),
        lean=True,
    ),
    # a unit that had just moved to a node was dropped there, for the copy that the node had had before
    "a move to where a deposed copy was": plan(
        500392,
        "merging",
        ("paired",),
        ("upstream-backup", "gap"),
        Fault(2.055, 5.389, "cut off", ("node1", "node2")),
        Fault(4.145, 4.145, "move", ("node1",)),
        lean=True,
    ),
    # the backup of a unit that had begun from nothing, behind a jump, went on with ids from before it
    "a backup behind a jump": Plan(
        450569,
        "tens",
        ("hundreds",),
        "upstream-backup",
        "gap",
        True,
        NODES,
        3.0,
        (
            Fault(1.629, 1.912, "kill", ("node3",), 0.0074),
            Fault(1.717, 1.853, "kill", ("node2",)),
            Fault(1.717, 6.717, "kill successor", (), 0.011),
            Fault(1.738, 5.615, "pause", ("node1",)),
        ),
        True,
    ),
    # a backup that was granted its place, and lost its power before it took it, lost what its primary had synced
    "a backup that loses its power in a takeover": plan(
        9,
        "counted",
        (),
        ("passive", "precise"),
        Fault(2.0, 4.0, "power cut", ("node1",)),
        Fault(2.07, 4.0, "power cut", ("node2",)),
        durable=True,
    ),
    # a node was killed twice, and a heartbeat of the second process came while the third was being let in: it ended
    "a heartbeat of the dead that was under way": plan(
        950139,
        "tens",
        ("tens",),
        ("passive", "no-loss"),
        Fault(1.589, 2.79, "kill", ("node2",), 0.0015),
        Fault(2.168, 2.309, "kill", ("node2",)),
        Fault(2.557, 3.557, "kill", ("node1",)),
        Fault(5.758, 6.146, "kill", ("node1",), 0.0021),
        Fault(5.758, 10.758, "kill successor", (), 0.02),
        Fault(6.869, 7.045, "kill", ("node3",)),
        durable=True,
        lean=True,
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_it_is_mended(programs: Programs, name: str) -> None:
    verdict = Stage(programs).judge(FOUND[name], False, None)
    assert verdict.faults == [], "\n".join(verdict.lines[-60:])
