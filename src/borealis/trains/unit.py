"""A running unit: hands out trains, takes what came of them, and commits each as a whole or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from borealis.compile.company import gives_nothing
from borealis.compile.unit import Compiled
from borealis.connectors.sink import Sink
from borealis.connectors.source import LiveSource, Source
from borealis.diagram.differences import differences, sentence
from borealis.diagram.spec import Input, Spec
from borealis.errors import BorealisError, TrainError
from borealis.kernels.flow import Bounds, Flow
from borealis.machine import HERE, Machine
from borealis.state.commits import CommitLog
from borealis.state.log import Key, StateLog
from borealis.streams.id_gaps import HOP, above
from borealis.streams.queue import OutputQueue
from borealis.trains.commit_point import CommitPoint
from borealis.trains.fork import Fork
from borealis.trains.forking import FORKS, DelayBound
from borealis.trains.handover import Handover
from borealis.trains.header import Manifest, Standing, TrainHeader, TrainInput, TrainInputs
from borealis.trains.input_manager import InputManager
from borealis.trains.intake import Admission
from borealis.trains.merge_order import Determinant
from borealis.trains.merging import Replay
from borealis.trains.notices import TROUBLES, Troubles
from borealis.trains.progress import Progress
from borealis.trains.rehearsals import Rehearsals
from borealis.trains.relay import SectionSource, StreamInput
from borealis.trains.results import Arrived, Reason, train_bounds
from borealis.trains.sections import beyond, queue_section
from borealis.trains.sinks import Sinks
from borealis.trains.train import Train, cursors_from_json, cursors_to_json, pack, unpack

RESULTS = "results"  # under a unit's directory
SWEEP_TRAINS = 256  # between looks for results of attempts that died
ROOM_S = 0.1  # how long a commit waits for room in a queue before it looks whether the run is over


@dataclass(frozen=True)
class UnitOptions:
    """How a unit runs."""

    admission: Admission = field(default_factory=Admission)
    state: Path | None = None  # where commits are kept; None: in memory
    headers: bool = False  # outputs carry the header columns
    bucket_us: int | None = None  # several streams are read by time, by such buckets; None: as they arrive
    bound: DelayBound | None = None  # on how long what is pending waits for what is missing; None: for ever


class UnitRun:
    """One unit from its sources to its sinks. `spark.query.Query` drives it; it knows no Spark itself.

    A unit of a cluster has `feeds` (streams) instead of the diagram's inputs, and `queues` instead of sinks; with
    `resume` it goes on where another node's run of it was frozen.
    """

    def __init__(
        self,
        name: str,
        spec: Spec,
        compiled: Compiled,
        sources: Mapping[str, Source | SectionSource],
        sinks: Mapping[str, Sink],
        options: UnitOptions,
        *,
        feeds: Sequence[StreamInput] | None = None,
        queues: Mapping[str, OutputQueue] | None = None,
        resume: Handover | None = None,
        machine: Machine = HERE,
    ) -> None:
        self.name, self.spec, self.compiled, self.options = name, spec, compiled, options
        self.machine, self._clock = machine, machine.clock
        self.queues = dict(queues or {})
        if options.headers and not compiled.headers:
            raise ValueError("outputs with headers need compile_unit(..., headers=True)")
        self.sinks = Sinks(sinks, {name: outlet.schema for name, outlet in compiled.outlets.items()}, options.headers)
        live = {n: s for n, s in sources.items() if isinstance(s, LiveSource)}
        self.progress = Progress(name, live=live, clock=self._clock)
        self.scratch = machine.disk.scratch(name)
        self.done = machine.threads.event()
        self.failure: BorealisError | None = None
        self.troubles = Troubles(self.scratch / TROUBLES, self._clock)
        self._handed: dict[int, float] = {}  # when each train under way was handed to Spark
        self._committing = machine.threads.condition(machine.threads.rlock())
        self.closed = False
        self.fork: Fork | None = None
        self._coming: Fork | None = None  # one that may begin
        self._log = StateLog(self.scratch / "state", compiled.tables, machine)
        self._commits: CommitLog | None = None
        self._committed = 0
        self._rows = 0  # tuples in all committed trains, here and wherever the unit ran before
        self.writer_id = machine.chance.token()  # whatever goes on from this run's state goes on under the same
        self.rehearsals = Rehearsals(self._log, machine)
        self._begun = 0  # the last train that was logged before it was run
        self._ids = dict.fromkeys((*compiled.outlets, *(f"{name} refused" for name in compiled.counted)), 0)
        (self.scratch / "program.json").write_text(json.dumps(compiled.program.to_json()))
        try:
            header = None
            if resume is not None:
                header = resume.header
                self._go_on_after(header, resume.state)
                self.writer_id = str(header.get("writer_id", self.writer_id))
                self._count_on(self._rows)
            if options.state is not None:
                header = self._recover()
            self.sinks.open(header, self._committed)
        except BaseException:
            self._let_go()
            raise
        inputs: Sequence[Input | StreamInput] = spec.inputs if feeds is None else feeds
        self.manager = InputManager(
            inputs,
            sources,
            {i.name: compiled.inputs[i.name] for i in inputs},
            spec.paces(),
            self.scratch / "trains",
            cursors=cursors_from_json(header["cursors"]) if header else None,
            next_cause=header["next_cause"] if header else 0,
            trains=self._committed,
            admission=options.admission,
            times=compiled.times,
            gives_nothing=gives_nothing(compiled.program),
            bucket_us=options.bucket_us,
            bound=options.bound,
            on_fork=self._begin_fork,
            on_prepare=self._prepare_fork,
            on_recovery=self._recover_queues,
            machine=machine,
        )
        self.progress.rows_read = self.manager.rows_read
        self._header_now = header or self._header(Train(0, self.manager.cursors(), 0, 0, False), {}, 0)
        self.watch: Callable[[CommitPoint, Mapping[Key, bytes]], None] | None = None  # called after each commit
        self.reason: Reason | None = None
        self._jumps = False  # ids go on behind a hole, as soon as inputs are merged freely
        self._repeats = False  # readers may have what another made of the same input
        self._passed: tuple[Determinant, ...] = ()
        self._silent = False  # the last train was
        # a train that changes something outside must be the same when it is run again, also where that takes its rows
        outside = any(box.outside for box in spec.boxes)
        self._may_wait = any(hasattr(box, "database") for box in spec.boxes)  # and tell so
        self._waits_for_commits = outside or self._may_wait or options.bound is not None  # with each train
        self._keeps_trains = outside and options.state is not None and not self.manager.deterministic
        if self.manager.finished:
            self.done.set()
        elif self._keeps_trains:
            self._put_back()

    def _put_back(self) -> None:
        """Begin with the train that an earlier run had begun and not committed."""
        assert self._commits is not None
        if (begun := self._commits.begun()) is not None:
            train, header = unpack(begun)
            if train.number == self._committed + 1:
                self.manager.put_back(train, header)

    def _go_on_after(self, header: dict[str, Any], state: Mapping[Key, bytes]) -> None:
        self._committed = self.progress.resumed_after = int(header["train"])
        self._ids |= header["ids"]
        self.progress.errors, self._rows = header.get("errors", 0), int(header.get("rows", 0))
        self._log.load(self._committed, state)

    def _count_on(self, rows: int) -> None:
        """Show the figures of the run whose state this is, and count on from there."""
        self._rows = self.progress.rows_in = rows
        self.progress.trains, self.progress.state_bytes = self._committed, self._log.size()
        self.progress.rows_out = {name: self._ids[name] for name in self.queues}

    def _recover(self) -> dict[str, Any] | None:
        assert self.options.state is not None
        spec = self.spec
        belongs = {"diagram": spec.fingerprint(), "buckets": self.compiled.program.buckets}
        self._commits = CommitLog(
            self.options.state,
            belongs,
            self.compiled.tables,
            lambda before: sentence(differences(Spec.from_yaml(before), spec)),
            spec.to_yaml(),
            self.machine,
        )
        found = self._commits.recover()
        self.writer_id = self._commits.writer_id(self.writer_id)
        if found.header is None:
            return None
        self._go_on_after(found.header, found.state)
        self.progress.rows_out = {name: self._ids[name] for name in self.sinks}
        return found.header

    def start(self) -> None:
        self.manager.start()

    # -- what the Spark source asks

    def committed(self) -> int:
        return self._committed

    @property
    def in_train(self) -> bool:
        """Whether Spark has a train that is not committed."""
        return bool(self._handed)

    def next_train(self, after: int, wait: float, *, forks: bool = False) -> int | None:
        if (rehearsal := self.rehearsals.next()) is not None:
            return rehearsal
        number = self.manager.next_train(after, wait, forks=forks)
        if number is not None:
            self._handed.setdefault(number, self._clock.now())
        return number

    def next_ahead(self, number: int) -> int | None:
        """The number of the train behind one that is not committed yet, if there is one that hangs on nothing of that
        but the state.
        """
        if self._waits_for_commits or self.rehearsals.due or self._repeats or self._jumps:
            return None
        if number < 0 or self.manager.train(number).final:  # a rehearsal is no train
            return None
        ahead = self.manager.next_train(number, 0.0)
        if ahead is not None:
            self._handed.setdefault(ahead, self._clock.now())
        return ahead

    def plan(self, number: int, *, inline: bool = False) -> TrainHeader:
        header: TrainInputs
        if number < 0 or number % FORKS == 0:
            header = self._nothing()
        else:
            self._handed.setdefault(number, self._clock.now())
            header = self.manager.header(number, files=not inline)
            if self._repeats and self.manager.train(number).leaps:  # from here on the input may be another
                self._repeats, self._jumps = False, True
                self.renew_writer_id()
            if self._keeps_trains and self._begun != number:
                assert self._commits is not None
                self._commits.keep(pack(self.manager.train(number), header))
                self._begun = number
        log = self._log_of(number)
        made: TrainHeader = {
            "train": header["train"],
            "inputs": header["inputs"],
            "program": f"{self.scratch}/program.json",
            "state": str(log.root),
            "manifest": None if inline else log.manifest(),
            "results": f"{self.scratch}/{RESULTS}/{number}",  # where workers put what is too large for the JVM
            "diagram": self.spec.name,
            "writer_id": self.writer_id,
            "troubles": f"{self.scratch}/{TROUBLES}",
        }
        if "rehearsal" in header:
            made["rehearsal"] = True
        if number >= FORKS:
            made["fork"] = number
        if forks := [str(fork.log.root) for fork in (self.fork, self._coming) if fork is not None]:
            made["forks"] = forks
        return made

    def _log_of(self, number: int) -> StateLog:
        """The state log of the line that a train is of."""
        if number < FORKS:
            return self._log
        for fork in (self.fork, self._coming):
            if fork is not None and fork.serial == number // FORKS:
                return fork.log
        raise TrainError("its fork was dropped before this train was run")

    def manifest(self, number: int) -> Manifest:
        """Where the state is that a train starts from, for workers that do not have it."""
        return self._log_of(number).manifest()

    def standing(self, number: int) -> Standing:
        """Which state that is: what was run from it before can go on from there."""
        log = self._log_of(number)
        return str(log.root), log.train, log.loads

    def rehearse(self) -> None:
        """Run a train of nothing as soon as possible: workers stay, or become, ready for the next."""
        self.rehearsals.ask()
        self.nudge()

    def nudge(self) -> None:
        self.manager.nudge()

    def _nothing(self) -> TrainInputs:
        """What workers must know of a rehearsal; the state it sees stays where it is until that is over."""
        with self._committing:
            self.rehearsals.begin()
            inputs: dict[str, TrainInput] = {}
            for name in self.compiled.inputs:
                if name not in self.cursors():
                    continue
                time, at = self.manager.time_columns()[name], self.cursors()[name]["boundary"]
                inputs[name] = {"time": time, "standing": at, "cause": [], "bound": [], "rows": None, "late": None}
            return {"train": self._committed + 1, "inputs": inputs, "rehearsal": True}

    # -- the commit

    def commit(self, result: pa.Table | Arrived) -> None:
        """Take what came of the next train: outputs to the sinks, deltas to the log, cursors forward; one step.

        A query that starts before there is anything to read begins with a micro-batch that is no train.
        """
        if isinstance(result, pa.Table) and not result.num_rows:
            return
        arrived = result if isinstance(result, Arrived) else Arrived(iter(result.to_batches()))
        assert arrived.train is not None
        if "rehearsal" in arrived.train:
            self.rehearsals.done()  # without the lock: its holder may wait for just this
            return
        if "fork" in arrived.train:
            self._commit_tentatively(arrived)
            return
        for queue in self.queues.values():  # none may block halfway; only commits fill them, so room stays room
            while not queue.has_room(ROOM_S) and not self.closed:
                continue
        with self._committing:  # a run may be closed from another thread
            if self.closed:
                raise TrainError("the run was closed while this train was under way")
            self._commit(arrived)
            self._committing.notify_all()

    def _commit(self, arrived: Arrived) -> None:
        assert arrived.train is not None
        self.rehearsals.end()  # one that was cut short
        train = self.manager.train(arrived.train["train"])
        if train.number != self._committed + 1:
            raise RuntimeError(f"train {train.number} came after train {self._committed}")
        if self._jumps and train.free:
            self._jumps = False
            for queue in self.queues.values():
                queue.jump_to(beyond(queue, queue.next_id))
        elif train.jumps and not train.silent:  # readers hear of what this unit has heard of
            for queue in self.queues.values():
                queue.jump_to(above(queue.next_id, HOP))
        self.progress.jumps += train.jumps
        arrived.explain(self.progress, self.reason)
        bounds = train_bounds(self.compiled.program, arrived.train)
        queues = {} if train.silent else self.queues
        sections = {
            name: queue_section((queue.next_id, queue.boundary), self._flow(name, arrived, bounds))
            for name, queue in queues.items()
        }
        deltas, files = arrived.deltas()
        for name in self.sinks:
            flow = self._flow(name, arrived, bounds)
            if len(flow):
                self.sinks.write(name, flow, self._ids[name])
                self._ids[name] += len(flow)
            self.progress.rows_out[name] = self._ids[name]
        for name, outlet in self.compiled.counted.items():
            self._ids[f"{name} refused"] += len(arrived.flow(outlet.tag, outlet.schema, Bounds()))
            self.progress.refused[name] = self._ids[f"{name} refused"]
        positions = self.sinks.flush(self._commits is not None)
        rows = self._rows + train.rows
        if self._commits is not None:
            self._commits.commit(self._header(train, positions, rows), deltas)
            self.sinks.positions = positions  # whatever fails from here on: a restart finds this train committed
        self._log.commit(train.number, deltas, files)
        for name, piece in sections.items():  # last: what is in a queue cannot be taken back
            if len(piece) or len(piece.bound):
                self.queues[name].append(piece)
            self.progress.rows_out[name] = self.progress.rows_out.get(name, self._ids[name]) + len(piece)
            self._ids[name] = piece.stop
        self._committed, self.sinks.positions, self._rows = train.number, positions, rows
        self._header_now = self._header(train, positions, rows)
        self.sinks.committed()
        self._passed, self._silent = train.order, train.silent
        if self.watch is not None:
            self.watch(self.step(), {key: bytes(data) for key, data in deltas.items()})
        self.manager.release(train.number)
        if any(packet.file is not None for packet in arrived.packets) or train.number % SWEEP_TRAINS == 0:
            self._sweep(train.number + 1)
        if self._may_wait:
            shutil.rmtree(self.scratch / TROUBLES, ignore_errors=True)  # a worker may have died before its own passed
        ms = (self._clock.now() - self._handed.pop(train.number)) * 1000
        self.progress.note(train.rows, ms, train.cursors, self._log.size())
        if self._commits is not None and self._commits.wants_base():
            self._commits.rebase(self._header_now, self._log.whole())
        if self._coming is not None:  # the trunk has left where it would begin
            self._coming.close()
            self._coming = None
        if self.fork is not None and (train.final or self.manager.is_corrected()):
            self.end_fork()
        self.manager.settle()
        if train.final:
            self.done.set()

    def _sweep(self, under_way: int) -> None:
        """Remove results, but those of a train that is under way; those of attempts that died are among them."""
        with suppress(FileNotFoundError):
            for path in (self.scratch / RESULTS).iterdir():
                if path.name != str(under_way):
                    shutil.rmtree(path, ignore_errors=True)

    def _flow(self, name: str, arrived: Arrived, bounds: Mapping[str, Bounds]) -> Flow:
        outlet = self.compiled.outlets[name]
        return arrived.flow(outlet.tag, outlet.schema, bounds[outlet.flow])

    def _header(self, train: Train, positions: Mapping[str, int], rows: int) -> dict[str, Any]:
        return {
            "train": train.number,
            "cursors": cursors_to_json(train.cursors),
            "next_cause": train.next_cause,
            "sinks": dict(positions),
            "places": self.sinks.places,
            "ids": dict(self._ids),
            "errors": self.progress.errors,
            "rows": rows,
        }

    # -- forks

    def _begin_fork(self, serial: int | None) -> None:
        """What follows is tentative, as long as the trunk waits for what is missing; None: it is not.

        What was tentative before is void.
        """
        before, self.fork = self.fork, None
        if serial is not None:
            if self._coming is None or self._coming.serial != serial:
                self._prepare_fork(serial)
            self.fork, self._coming = self._coming, None
            assert self.fork is not None
            self.fork.since = self._clock.now()
        for queue in self.queues.values():
            if self.fork is None:
                queue.drop_fork()
            else:
                queue.fork(self.fork.name)
        if before is not None:
            before.close()

    def _prepare_fork(self, serial: int) -> None:
        """One may begin, where the trunk stands now."""
        if self._coming is not None:
            self._coming.close()
        name = self.machine.chance.token()
        self._coming = Fork(name, serial, self._log.fork(serial), self._clock.now())

    def end_fork(self) -> None:
        """All that was tentative is void; harmless if nothing was."""
        if self.fork is not None:
            self.manager.end_fork()
            self._begin_fork(None)

    def _recover_queues(self) -> None:
        """All that was tentative is corrected by what is committed."""
        for queue in self.queues.values():
            queue.recover()

    def _commit_tentatively(self, arrived: Arrived) -> None:
        """Take what came of a train of the fork: to the tentative ends of the streams, and into the fork's own log."""
        assert arrived.train is not None
        number = arrived.train["fork"]
        with self._committing:
            fork = self.fork
            if fork is None or fork.serial != number // FORKS:
                return
            arrived.explain(fork.progress, self.reason)
            bounds = train_bounds(self.compiled.program, arrived.train)
            deltas, files = arrived.deltas()
            fork.log.commit(number % FORKS, deltas, files)
            for name, queue in self.queues.items():
                if queue.tail is not None:
                    place = queue.tail.held.next, queue.tail.held.boundary
                    section = queue_section(place, self._flow(name, arrived, bounds))
                    queue.append_tentative(replace(section, fork=fork.name))
                    fork.tuples += len(section)
            self.manager.release(number)
            self._handed.pop(number, None)
            shutil.rmtree(self.scratch / RESULTS / str(number), ignore_errors=True)
            self._committing.notify_all()

    # -- protection

    def step(self) -> CommitPoint:
        """Where everything stands after the last commit."""
        header = self._header_now
        return CommitPoint(
            self._committed,
            header["next_cause"],
            cursors_from_json(header["cursors"]),
            {name: (queue.next_id, queue.boundary) for name, queue in self.queues.items()},
            self._passed,
            self._clock.now(),
            self._silent,
            self.writer_id,
            self._rows,
        )

    def between_trains(self) -> AbstractContextManager[bool]:
        """Nothing is committed meanwhile."""
        return self._committing

    def whole_state(self) -> Callable[[], dict[Key, bytes]]:
        """A way to all state tables as of now; to be asked between trains, and called once, whenever."""
        return self._log.whole()

    def load(self, step: CommitPoint, state: Mapping[Key, bytes]) -> None:
        """While standing by: be where another run was, with all its state."""
        with self._committing:
            self._log.load(step.train, state)
            self._stand_at(step)

    def extend(self, step: CommitPoint, deltas: Mapping[Key, bytes]) -> None:
        """While standing by: what changed there up to a later train."""
        with self._committing:
            self._log.extend(step.train, deltas)
            self._stand_at(step)

    def _stand_at(self, step: CommitPoint) -> None:
        self._committed = self.progress.resumed_after = step.train
        self.writer_id = step.writer_id or self.machine.chance.token()
        self._ids |= {name: place[0] for name, place in step.outputs.items()}
        self._header_now = self._header(Train(step.train, dict(step.inputs), step.next_cause, 0, False), {}, step.rows)
        self._count_on(step.rows)

    def resume(
        self, begin: CommitPoint, replays: Sequence[Replay] = (), *, jump: bool = False, repeats: bool = False
    ) -> None:
        """End standing by: read from there, first as the replays say. The state is what `load` and `extend` said.

        If it repeats what a dead primary did, readers may have had some of that. It comes under the same ids then, as
        long as the input is the same: not behind ids that were left out, since the unit upstream died, too.
        """
        self._jumps, self._repeats = jump, repeats
        self.manager.begin_at(begin.inputs, begin.next_cause, begin.train)
        self.manager.replay(replays)
        self.manager.go_live()
        if self.manager.finished:
            self.done.set()

    def renew_writer_id(self) -> None:
        """From the next train on, causes may stand for other tuples than those of the run whose state this is."""
        self.writer_id = self.machine.chance.token()

    def jump(self) -> None:
        """Ids go on behind a hole as soon as there is no replay to follow."""
        self._jumps = True

    # -- moving elsewhere

    def freeze(self, seconds: float) -> Handover:
        """Stop at a train boundary and give away all there is; `thaw` undoes it. Nothing is committed in between."""
        if self.manager.is_replaying or self._jumps:
            raise TrainError(f"unit '{self.name}' is recovering", hint="try again in a moment")
        handed = self.manager.pause()
        try:
            with self._committing:
                if not self._committing.wait_for(lambda: self._committed >= handed or self.closed, seconds):
                    late = f"unit '{self.name}' did not finish its train within {seconds:g} s"
                    raise TrainError(late, hint="try again later")
                queues = {name: queue.snapshot() for name, queue in self.queues.items()}
                return Handover(self._header_now | {"writer_id": self.writer_id}, self._log.whole()(), queues)
        except BaseException:
            self.manager.resume()
            raise

    def thaw(self) -> None:
        self.manager.resume()

    def cursors(self) -> dict[str, Any]:
        """Where every input stands after the last committed train."""
        cursors: dict[str, Any] = self._header_now["cursors"]
        return cursors

    # -- the end

    def close(self, complete: bool) -> None:
        """Stop reading and make the outputs whole, also after a failure or in the midst of a train."""
        with self._committing:
            self.closed = True
            self._committing.notify_all()
        self.manager.stop()
        try:
            self.sinks.close(complete)
        finally:
            self._let_go()

    def _let_go(self) -> None:
        for fork in (self.fork, self._coming):
            if fork is not None:
                fork.log.close()
        self._log.close()
        if self._commits is not None:
            self._commits.close()
        shutil.rmtree(self.scratch, ignore_errors=True)
