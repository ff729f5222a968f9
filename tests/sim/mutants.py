"""Defects that are put into the product on purpose, to see that simulated runs find them.

Most were found there once, by kills of real processes or by a law. Each changes one place: `edited` compiles a method
again with one piece of its text replaced, and fails if the text is no longer there.
"""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from borealis.coordinator import balancing, drift, layout, reconcile, spreading
from borealis.diagram.protection import Protection
from borealis.entry.log import PUBLISHER
from borealis.entry.point import Entry
from borealis.ha.backup import Backup
from borealis.ha.copies import FurtherCopies
from borealis.ha.detector import Detector
from borealis.ha.primary import Effects, Passive, Primary, Synchronous, Upstream
from borealis.node import primary as node_primary
from borealis.node.feeds import StreamFeed
from borealis.node.primary import PrimaryGuard
from borealis.node.running import RunningEntry, RunningUnit
from borealis.node.unsent import Unsent
from borealis.sim.plan import Options
from borealis.state.records import RecordFile
from borealis.streams.queue import OutputQueue
from borealis.streams.readers import Readers
from borealis.trains import forking, relay
from borealis.trains.intake import Intake
from borealis.trains.merging import ByTime
from borealis.wire.follow import Follower

SEEDS = 200  # within which each is caught
SECONDS = 8.0  # of a run that does not say more

Install = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    """A defect, the runs that may show it, and a seed that does."""

    name: str
    breaks: str
    install: Install
    options: Options
    seed: int

    @contextmanager
    def installed(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            self.install(patch)
            yield


MUTANTS: dict[str, Mutant] = {}


def mutant(seed: int, **options: Any) -> Callable[[Install], Install]:
    """Add a defect to the list; the options narrow what its runs are drawn from."""

    def add(install: Install) -> Install:
        name = install.__name__.replace("_", "-")
        usual: dict[str, Any] = {"seconds": SECONDS}
        if options.get("approach") == "passive":
            usual |= {"checkpoint": "interval", "backups": 1}
        drawn_from = Options(**usual | options)
        MUTANTS[name] = Mutant(name, inspect.getdoc(install) or "", install, drawn_from, seed)
        return install

    return add


def edited(patch: pytest.MonkeyPatch, owner: Any, name: str, old: str, new: str) -> None:
    """Replace one piece of the text of a function of a class or module."""
    function = getattr(owner, name)
    text = getattr(function, "edited_text", None) or textwrap.dedent(inspect.getsource(function))
    assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times in {name}"
    found: dict[str, Any] = {}
    flags = function.__code__.co_flags & 0x1000000  # annotations as the module has them
    text = text.replace(old, new)
    exec(compile(text, f"<{name}, edited>", "exec", flags), function.__globals__, found)
    found[name].edited_text = text  # for the next edit
    patch.setattr(owner, name, found[name])


# -- acknowledged, released or let go of too early


@mutant(2, approach="passive", guarantee="precise", kinds=("kill busy",))
def acks_at_once(patch: pytest.MonkeyPatch) -> None:
    """A primary acknowledges its inputs before the backup has what came of them."""
    patch.setattr(Passive, "_on_commit", lambda self, step: Effects(step.positions()))


@mutant(2, approach="passive", guarantee="precise", kinds=("kill busy",))
def acks_what_it_read(patch: pytest.MonkeyPatch) -> None:
    """A feed acknowledges when a train is committed, though the guard of its unit does that."""
    edited(patch, StreamFeed, "committed", "if not self.deferred:", "if True:")


@mutant(6, approach="active", kinds=("kill", "cut"))
def stray_acks(patch: pytest.MonkeyPatch) -> None:
    """Both copies of a unit acknowledge under one name: what the one has, upstream drops for the other."""
    for where in (layout, node_primary):
        patch.setattr(where, "active_reader", lambda name, _: f"{name}.1")


@mutant(6, approach="upstream-backup", guarantee="precise", kinds=("kill",))
def forgets_windows(patch: pytest.MonkeyPatch) -> None:
    """A backup begins where readers have everything, as if there were no state."""
    patch.setattr(Upstream, "_beginning", lambda self, done: done)


@mutant(0, kinds=("kill",))
def trims_for_the_fastest(patch: pytest.MonkeyPatch) -> None:
    """A stream is let go of as soon as one of its readers needs it no more."""
    edited(patch, Readers, "low", "min((reader.done", "max((reader.done")


@mutant(16, diagram="merging", approach="passive", guarantee="precise", merge="arrival", kinds=("kill busy",))
def never_holds(patch: pytest.MonkeyPatch) -> None:
    """Readers get what the backup does not have, and may come to in another order."""
    patch.setattr(Passive, "holds", False)
    patch.setattr(Synchronous, "holds", True)  # that of entry points


@mutant(28, diagram="single", approach="passive", guarantee="precise", kinds=("kill", "pause"))
def receipts_at_once(patch: pytest.MonkeyPatch) -> None:
    """An entry point answers its publishers before its backup has the batch."""
    patch.setattr(Entry, "_await_backup", lambda *_: None)


@mutant(4, kinds=("power cut",))
def receipts_before_the_disk(patch: pytest.MonkeyPatch) -> None:
    """A durable entry point answers its publishers before the batch survives a power cut."""
    text = "self.log.append(EntryStep((on_time, late), facts))"
    edited(patch, Entry, "_commit", text, text[:-1] + ", sync=False)")


@mutant(56, diagram="single", kinds=("full disk", "power cut"), seconds=15.0)
def leaves_half_a_record(patch: pytest.MonkeyPatch) -> None:
    """What a full disk took of a batch that was refused stays in the log: what comes behind it is not found again."""
    edited(patch, RecordFile, "append", "self._take_back(self.length, refusal)", "pass")


@mutant(42, approach="passive", checkpoint="sweeping", kinds=("kill", "kill twice"))
def sweeps_what_is_only_received(patch: pytest.MonkeyPatch) -> None:
    """What readers have in memory does not travel, though it dies with them: they ask the backup for it again."""
    edited(patch, OutputQueue, "acknowledged", "self._readers.acknowledged(", "self._readers.received(")


# -- takeovers that go on with too little, or with too much


@mutant(6, approach="passive", guarantee="precise", kinds=("kill",))
def loses_state(patch: pytest.MonkeyPatch) -> None:
    """A backup takes the place of its primary in the streams, without the state of its boxes."""
    edited(patch, RunningUnit, "mirror", "self.run.load(want.step, state)", "self.run.load(want.step, {})")


@mutant(2, approach="passive", guarantee="precise", kinds=("kill",))
def sends_the_last_delta(patch: pytest.MonkeyPatch) -> None:
    """Of the changes of several trains only the last goes to the backup."""
    edited(patch, Unsent, "since", "return [", "stretches = [stretches[-1][-1:]]\n    return [")


@mutant(2, approach="upstream-backup", guarantee="precise", kinds=("kill",))
def repeats_aloud(patch: pytest.MonkeyPatch) -> None:
    """What a backup does again to come to its state, its readers get again."""
    edited(patch, Backup, "_scripts", "return (Replay(to, silent=True),)", "return (Replay(to),)")


@mutant(16, diagram="merging", approach="passive", guarantee="no-loss", merge="arrival", kinds=("kill busy",))
def never_jumps(patch: pytest.MonkeyPatch) -> None:
    """A backup goes on under ids that readers may have seen with other tuples."""
    edited(patch, Backup, "take_over", "jump = self.nondeterministic and not self.precise", "jump = False")


@mutant(99, guarantee="no-loss", kinds=("kill",))
def keeps_jumps_to_itself(patch: pytest.MonkeyPatch) -> None:
    """The lost jump: a unit reads that ids jumped, and does not pass it on."""
    patch.setattr(relay, "is_jump", lambda *_: False)


@mutant(2, guarantee="precise", kinds=("kill busy",))
def forgets_publishers(patch: pytest.MonkeyPatch) -> None:
    """An entry point's backup does not hear which batches were taken since it came: they are taken twice."""
    whole = RunningEntry.merged

    def merged(self: RunningEntry, stretches: Any) -> Any:
        deltas = [delta for stretch in stretches for delta in stretch]
        return whole(self, [[{key: _without_publishers(facts) for key, facts in one.items()} for one in deltas]])

    patch.setattr(RunningEntry, "merged", merged)


def _without_publishers(facts: bytes) -> bytes:
    return json.dumps({k: v for k, v in json.loads(facts).items() if not k.startswith(PUBLISHER)}).encode()


@mutant(196, approach="active", guarantee="precise", kinds=("kill", "kill twice"))
def forgets_readers(patch: pytest.MonkeyPatch) -> None:
    """A backup does not hear which readers its streams have: it keeps nothing for them."""
    text = "self._all |= {name: Reader(*one) for name, one in facts.items()}"
    edited(patch, Readers, "become", text, "self._all.clear()")


# -- two that think they are the one


@mutant(3, guarantee="precise", replicas=2, kinds=("cut",))
def goes_on_alone(patch: pytest.MonkeyPatch) -> None:
    """A node behind a cut goes on without the coordinator's word, as if the death of the other were certain."""
    text = "self.certain = certain and now - self.last_answer <= self.pace.misses * self.pace.every_s"
    edited(patch, Detector, "refused", text, "self.certain = True")


@mutant(7, guarantee="precise", kinds=("cut",))
def ignores_refusals(patch: pytest.MonkeyPatch) -> None:
    """A primary goes on alone, though the coordinator says that its backup has taken over."""
    edited(patch, PrimaryGuard, "_partner_died", "if answer is not None and not answer.granted", "if False")


@mutant(3, kinds=("kill", "cut", "pause"))
def same_incarnation(patch: pytest.MonkeyPatch) -> None:
    """A node takes over under the incarnation of its primary."""
    edited(patch, Backup, "take_over", "self.incarnation += 1", "pass")


# -- what never happens


@mutant(0, kinds=("kill",))
def never_mends(patch: pytest.MonkeyPatch) -> None:
    """The coordinator gives no primary another backup."""
    protect = reconcile.protecting.protect
    patch.setattr(reconcile.protecting, "protect", lambda *how: None if how[2].was is not None else protect(*how))


@mutant(4, kinds=("kill",))
def deadlocks(patch: pytest.MonkeyPatch) -> None:
    """A guard takes its own lock first and then that of its trains; a commit takes them in the other order."""
    text = "with self.unit.run.between_trains(), self._lock:"
    edited(patch, PrimaryGuard, "_converse", text, "with self._lock, self.unit.run.between_trains():")


@mutant(0, approach="upstream-backup", guarantee="precise", kinds=("slow successor",))
def hasty(patch: pytest.MonkeyPatch) -> None:
    """A second takeover during the first: a primary takes a backup before it has done again what was done."""
    patch.setattr(Primary, "_is_behind", lambda self: False)


@mutant(41, merge="time", kinds=("kill",))
def reads_a_bucket_that_is_still_open(patch: pytest.MonkeyPatch) -> None:
    """What comes into it later goes behind what was read, on one copy and not on the other."""
    edited(patch, ByTime, "_limits", "reached // bucket * bucket", "(reached // bucket + 1) * bucket")


@mutant(0, merge="time", delay="0.5 s", kinds=("cut",))
def hears_of_no_undo(patch: pytest.MonkeyPatch) -> None:
    """Readers are not told that what they got was tentative, and is void."""
    edited(patch, OutputQueue, "read_any", "tail.fork != fork[0]):", "tail.fork != fork[0]) and False:")


@mutant(0, merge="time", delay="0.5 s", kinds=("cut",))
def takes_from_the_trunk(patch: pytest.MonkeyPatch) -> None:
    """What a fork reads, the trunk does not find any more."""
    edited(patch, forking, "_forked", "pending=mine", "pending=intake.pending")


@mutant(2, merge="time", delay="0.5 s", kinds=("cut",))
def forgets_what_it_spills(patch: pytest.MonkeyPatch) -> None:
    """Of what goes to the disk as one piece, the trunk finds only the first part again."""
    edited(patch, Intake, "spill", "for part in run], disk)", "for part in run[:1]], disk)")


@mutant(0, merge="time", delay="0.5 s", kinds=("cut",))
def believes_what_is_tentative(patch: pytest.MonkeyPatch) -> None:
    """What a unit upstream gave tentatively goes into the trunk as if it was stable."""
    edited(patch, forking.Forking, "take_in", "if section.stable:", "if section.stable or self.fork is None:")


# -- replicas


@mutant(0, approach="replicas", kinds=("cut",))
def goes_over_to_what_is_newest(patch: pytest.MonkeyPatch) -> None:
    """A reader that goes to a better copy takes the stream up where that copy is, and not where it was itself."""
    edited(patch, Follower, "go_to", "self.look_again()", 'self.begin("newest")\n    self.look_again()')


@mutant(9, approach="replicas", replicas=2, kinds=("cut", "kill"))
def reads_as_it_comes_in_both_copies(patch: pytest.MonkeyPatch) -> None:
    """Copies that both answer merge their streams as they arrive, each in its own order."""
    patch.setattr(Protection, "bucket_us", property(lambda self: None))


@mutant(3, approach="replicas", replicas=3, kinds=("kill",))
def leaves_the_heir(patch: pytest.MonkeyPatch) -> None:
    """Where primary and backup died the unit begins from nothing, although a further copy has all of it."""
    edited(patch, drift, "_guarded", '== "watching"]', '== "gone"]')


# -- several backups


@mutant(10, approach="passive", guarantee="precise", merge="arrival", backups=2, kinds=("kill", "pause"))
def releases_for_the_first(patch: pytest.MonkeyPatch) -> None:
    """Readers get what the first backup has, whatever the other ones lack."""
    patch.setattr(FurtherCopies, "_least_places", lambda self: dict(self._limits.get("", {})))


@mutant(87, approach="passive", guarantee="precise", backups=2, kinds=("kill", "pause"))
def acks_for_the_first(patch: pytest.MonkeyPatch) -> None:
    """Inputs are acknowledged as far as the first backup has what came of them."""
    patch.setattr(FurtherCopies, "_least", lambda self, name, upto: upto)


# -- where backups are, and units that move by themselves


@mutant(0, kinds=("kill",))
def stands_by_for_itself(patch: pytest.MonkeyPatch) -> None:
    """The backup of a unit may be on the node that runs it."""
    edited(patch, spreading, "by_share", "if node.name != work.node", "if node.name")


@mutant(1, kinds=("kill",), spread=True)
def moves_to_and_fro(patch: pytest.MonkeyPatch) -> None:
    """A unit moves although it helps nobody: it is on its way all the time, and never protected for long."""
    patch.setattr(balancing, "GAIN_LEAST", -9.0)
