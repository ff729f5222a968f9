"""What an output gives of changes: against a model that goes row by row, however trains are cut."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from borealis.kernels.flow import Bounds, Flow
from borealis.kernels.revisions import FORMS, IMPORTANT, Final, First, Important
from borealis.state.delta import Delta, merge_deltas, pack, unpack
from borealis.tuples import FIRST_TIME, KIND, LAST_TIME, Kind

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.float64())])
SIGNED = SCHEMA.append(pa.field(IMPORTANT, pa.bool_())).append(pa.field(KIND, pa.int8()))
HISTORY = 50
Row = tuple[int, int, float | None]  # time, id, v
Event = tuple[list[tuple[Kind, Row]], int | None]  # what comes of one cause, and a boundary behind it
PLUS, MINUS, BEFORE, AFTER = Kind.INSERTION, Kind.DELETION, Kind.UPDATE_BEFORE, Kind.UPDATE_AFTER


def important(row: Row) -> bool:
    return row[2] is not None and row[2] > 100


def flow_of(events: list[Event], start: int, stop: int, standing: int) -> Flow:
    some = [(cause, sub, kind, row) for cause in range(start, stop) for sub, (kind, row) in enumerate(events[cause][0])]
    columns = [[row[1] for *_, row in some], [row[2] for *_, row in some], [important(row) for *_, row in some]]
    rows = pa.table([*columns, [int(kind) for _, _, kind, _ in some]], schema=SIGNED)
    bounds = [(cause, bound) for cause in range(start, stop) if (bound := events[cause][1]) is not None]
    time, cause, sub = (
        (np.array(x, np.int64) for x in ([row[0] for *_, row in some], *zip(*some, strict=True))[:3])
        if some
        else (np.empty(0, np.int64),) * 3
    )
    return Flow(rows, time, cause, sub, Bounds(standing, *(np.array([b[i] for b in bounds], np.int64) for i in (0, 1))))


def run(one: First | Final | Important, events: list[Event], cuts: list[int]) -> tuple[list[Any], list[Delta]]:
    """What comes of it, as (cause, sub, kind, row), and the deltas."""
    places = [0, *sorted({c for c in cuts if 0 < c < len(events)}), len(events)]
    found, deltas, standing = [], [], FIRST_TIME
    for start, stop in pairwise(places):
        out, delta = one.step(flow_of(events, start, stop, standing))
        kinds = out.rows[KIND].to_pylist() if KIND in out.rows.column_names else [0] * len(out)
        rows = zip(out.time.tolist(), out.rows["id"].to_pylist(), out.rows["v"].to_pylist(), strict=True)
        found += list(zip(out.cause.tolist(), out.sub.tolist(), kinds, rows, strict=True))
        deltas.append(delta)
        standing = next((b for _, b in reversed(events[:stop]) if b is not None), FIRST_TIME)
    return found, deltas


def ranked(found: list[tuple[int, int, Row]]) -> list[Any]:
    seen: Counter[int] = Counter()
    out = []
    for cause, kind, row in found:
        out.append((cause, seen[cause], kind, row))
        seen[cause] += 1
    return out


def finals(events: list[Event]) -> list[Any]:
    left: list[Row] = []
    out = []
    for cause, (changes, bound) in enumerate(events):
        for kind, row in changes:
            if kind in (PLUS, AFTER):
                left.append(row)
            else:
                del left[max(i for i, one in enumerate(left) if one == row)]
        if bound is not None:
            due = [row for row in left if bound == LAST_TIME or row[0] < bound - HISTORY]
            left = [row for row in left if row not in due]
            out += [(cause, 0, row) for row in sorted(due, key=lambda row: row[0])]
    return ranked(out)


def importants(events: list[Event]) -> list[Any]:
    """With what readers have beside every row that was changed behind their backs."""
    have: list[tuple[Row, Row]] = []  # as it is, as they have it
    out = []
    for cause, (changes, _) in enumerate(events):
        for (kind, row), (_, new) in zip(changes, [*changes[1:], changes[-1]] if changes else [], strict=True):
            if kind == PLUS:
                out.append((cause, int(PLUS), row))
            if kind not in (MINUS, BEFORE):
                continue
            at = max((i for i, (now, _) in enumerate(have) if now == row), default=None)
            theirs = row if at is None else have.pop(at)[1]
            if kind == MINUS:
                out += [(cause, int(MINUS), theirs)] if important(row) else []
            elif theirs != new and (important(row) or important(new)):
                out += [(cause, int(BEFORE), theirs), (cause, int(AFTER), new)]
            elif theirs != new:
                have.append((new, theirs))
    return ranked(out)


def random_events(rng: Random, count: int) -> list[Event]:
    events: list[Event] = []
    left: list[Row] = []
    now, boundary = 1000, FIRST_TIME

    def new() -> Row:
        return now - rng.choice((0, 0, 3, 20)), rng.randrange(2), rng.choice((None, 1.0, 2.0, 500.0))

    for _ in range(count):
        now += rng.choice((0, 1, 1, 5, 30))
        changes: list[tuple[Kind, Row]] = []
        for _ in range(rng.choice((0, 1, 1, 2))):
            open_ = [row for row in left if boundary == FIRST_TIME or row[0] >= boundary - HISTORY]
            what = rng.choice((PLUS, PLUS, MINUS, AFTER, AFTER)) if open_ else PLUS
            if what != PLUS:
                old = rng.choice(open_)
                left.remove(old)
                changes.append((MINUS if what == MINUS else BEFORE, old))
            if what != MINUS:
                left.append(new())
                changes.append((what, left[-1]))
        bound = None
        if rng.random() < 0.3 and now - 10 > boundary:
            bound = boundary = now - 10
        events.append((changes, bound))
    return [*events, ([], LAST_TIME)]


MODELS = {"final": finals, "all": importants}


@settings(max_examples=5 * settings.default.max_examples)
@given(st.sampled_from(sorted(MODELS)), st.integers(0, 10**9), st.booleans())
def test_it_does_as_the_model_however_trains_are_cut(revisions: str, seed: int, ends: bool) -> None:
    rng = Random(seed)
    events = random_events(rng, rng.randrange(1, 30))[: None if ends else -1]
    truth = MODELS[revisions](events)
    for cuts in (list(range(len(events))), [rng.randrange(30) for _ in range(3)]):
        one, again, whole = (FORMS[revisions](SCHEMA, HISTORY) for _ in range(3))
        found, deltas = run(one, events, cuts)
        assert found == truth
        rows = one.tables_now()["rows"]
        assert not (ends and len(rows)), "the stream is over"
        for delta in deltas:
            again.apply(unpack(pack(delta)))
        whole.apply(merge_deltas(one.tables, deltas, whole=True))
        assert again.tables_now()["rows"].equals(rows)
        assert whole.tables_now()["rows"].equals(rows)


def test_only_insertions_are_first_results() -> None:
    events: list[Event] = [([(PLUS, (1, 1, 1.0))], 10), ([(BEFORE, (1, 1, 1.0)), (AFTER, (1, 1, 2.0))], None)]
    events += [([(MINUS, (1, 1, 2.0)), (PLUS, (2, 1, 3.0))], None)]
    assert run(First(SCHEMA, HISTORY), events, [])[0] == [(0, 0, 0, (1, 1, 1.0)), (2, 1, 0, (2, 1, 3.0))]


def test_readers_keep_what_is_deleted_and_does_not_matter() -> None:
    events: list[Event] = [([(PLUS, (1, 1, 1.0))], None), ([(MINUS, (1, 1, 1.0))], None)]
    one = Important(SCHEMA, HISTORY)
    assert [kind for _, _, kind, _ in run(one, events, [1])[0]] == [PLUS]
    assert not len(one.tables_now()["rows"])


def test_state_holds_what_may_change_and_no_more() -> None:
    kinds: dict[str, list[tuple[Kind, Row]]] = {"final": [], "all": [(BEFORE, (0, 0, 1.0)), (AFTER, (0, 0, 2.0))]}
    for revisions, change in kinds.items():
        events: list[Event] = []
        for i in range(2000):
            more = [(kind, (10 * i, i, row[2])) for kind, row in change]
            events.append(([(PLUS, (10 * i, i, 1.0)), *more], 10 * i if i % 5 == 0 else None))
        one = FORMS[revisions](SCHEMA, HISTORY)
        assert not isinstance(one, First)
        run(one, events, list(range(0, 2000, 100)))
        assert 0 < len(one.tables_now()["rows"]) <= HISTORY // 10 + 6
        assert sum(map(len, one.held.chunks)) < 1000


def test_what_takes_back_a_row_that_was_lost_does_nothing() -> None:
    events: list[Event] = [([(MINUS, (7, 1, 1.0)), (PLUS, (8, 1, 1.0))], None), ([], LAST_TIME)]
    assert run(Final(SCHEMA, HISTORY), events, [1])[0] == [(1, 0, 0, (8, 1, 1.0))]
