"""When to checkpoint, and what it costs: `borealis bench checkpoints [--quick] [--plot out.png]` (Gu, figures 2 to 8).

A chain of four units of two boxes each, in a simulated cluster (`checkpoints_chain.py`): tuples, bytes and messages are
exact, the time of a checkpoint is CPU time of the code that captures, writes and reads it, and recovery is in
simulated time, where a train takes 10 ms. Every run checks that each tuple came out, once and in order.

- intervals: tuples and bytes of checkpoints against the interval (Gu figures 2 and 3): all units of a node together,
  each by its own clock, and sweeping
- rates: CPU time of a checkpoint against the rate (figure 4), with 500 ms
- standbys: messages and bytes on top of those without protection (figure 5): active standbys, passive ones that sweep
- load: expected recovery time and how late results are at worst as load grows to 90 %, in a model of five servers
  with costs that were measured here (`checkpoints_load.py`; Hwang figures 4.5 to 4.7): all units as one, one after the
  other, min-max, and active standbys
- recovery: the longest silence of the last output when the node of two units is killed (figures 6 to 8)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from borealis.sim.programs import Programs

from .checkpoints_chain import NODES, Story, Told, prepare, told
from .checkpoints_load import METHODS as MODELLED
from .checkpoints_load import Model, active_recovery_s
from .measuring import Say, part_by_part
from .recovery_plot import axes, refuse_without_matplotlib

QUERIES = ("intervals", "rates", "standbys", "recovery", "load")
METHODS = ("together", "individual", "sweeping")
INTERVALS_MS = (100, 300, 500, 700, 900)
RATES = (1000, 3000, 5000, 7000)
USUAL_MS, USUAL_RATE = 500, 3000
LOADS = (0.3, 0.5, 0.7, 0.8, 0.9)
ASKED_RECOVERY, ASKED_SPIKE = 0.5, 0.1  # of whole checkpoints
ASKED_BYTES, ASKED_TIME, ASKED_MESSAGES = 0.1, 1 / 3, 0.1
SHOWN = ("query", "method", "interval_ms", "rows_per_s", "tuples_each", "bytes_each", "bytes_per_s", "cpu_ms_each")
SHOWN += ("messages_per_s", "ratio", "silence_ms", "met")

Play = Callable[..., Told]


@dataclass(frozen=True)
class Options:
    """What to measure; `quick` shows that all of it works, and no more."""

    only: tuple[str, ...] = ()
    runs: int = 1  # of other benchmarks
    quick: bool = False
    plot: str | None = None

    @property
    def seconds(self) -> float:
        """How long each run is measured, in simulated time."""
        return 4.0 if self.quick else 20.0


def passive(method: str, interval_ms: int) -> dict[str, Any]:
    """How units are protected."""
    when = "sweeping" if method == "sweeping" else "interval"
    return {"ha": "passive", "interval": f"{interval_ms} ms", "checkpoint": when}


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """All figures."""
    if options.plot:
        refuse_without_matplotlib()
    programs = Programs()
    say("Spark compiles four units ...")
    prepare(programs)

    def play(how: dict[str, Any], *, method: str = "", rate: int = USUAL_RATE, kill: str = "") -> Told:
        story = Story(how, rate, options.seconds, kill)
        found = told(programs, story, all_together=method == "together")
        say(f"{method or how.get('ha', 'none')} {how.get('interval', '')} at {rate}: {found.counts}")
        if found.missing or found.wrong:
            raise RuntimeError(f"{found.missing} tuples are missing, {found.wrong} are wrong: {how}")
        return found

    parts = {
        "intervals": lambda: intervals(play, (100, 500) if options.quick else INTERVALS_MS, options.seconds),
        "rates": lambda: rates(play, (1000, 3000) if options.quick else RATES),
        "standbys": lambda: standbys(play, (USUAL_RATE,) if options.quick else RATES, options.seconds),
        "recovery": lambda: recovery(play, (500,) if options.quick else INTERVALS_MS),
        "load": lambda: load(play, (0.5, 0.9) if options.quick else LOADS, 15.0 if options.quick else 60.0),
    }
    try:
        lines = part_by_part({name: parts[name] for name in options.only or QUERIES}, say)
    finally:
        programs.close()
    if options.plot:
        plot(lines, options.plot)
    return lines


def intervals(play: Play, every_ms: Sequence[int], seconds: float) -> list[dict[str, Any]]:
    """Gu figures 2 and 3."""
    lines = []
    for each in every_ms:
        found = {method: play(passive(method, each), method=method).counts for method in METHODS}
        for method, counts in found.items():
            ratio = counts.bytes / found["together"].bytes
            lines.append(
                {
                    "query": "intervals",
                    "method": method,
                    "interval_ms": each,
                    "rows_per_s": USUAL_RATE,
                    "checkpoints": counts.checkpoints,
                    "tuples_each": round(counts.tuples / counts.checkpoints, 1),
                    "bytes_each": round(counts.bytes / counts.checkpoints),
                    "bytes_per_s": round(counts.bytes / seconds),
                    "ratio": round(ratio, 3),
                    "asked_most": ASKED_BYTES,
                    "met": ratio <= ASKED_BYTES if method == "sweeping" else None,
                }
            )
    return lines


def rates(play: Play, rows_per_s: Sequence[int]) -> list[dict[str, Any]]:
    """Gu figure 4: where units stop together, a checkpoint is that of all of a node."""
    lines = []
    for rate in rows_per_s:
        found = {method: play(passive(method, USUAL_MS), method=method, rate=rate).counts for method in METHODS}
        ms = {method: 1000 * counts.cpu_s / counts.checkpoints for method, counts in found.items()}
        ms["together"] *= 2  # units on a node
        for method in METHODS:
            ratio = ms[method] / ms["together"]
            lines.append(
                {
                    "query": "rates",
                    "method": method,
                    "interval_ms": USUAL_MS,
                    "rows_per_s": rate,
                    "cpu_ms_each": round(ms[method], 3),
                    "ratio": round(ratio, 3),
                    "asked_most": round(ASKED_TIME, 3),
                    "met": ratio <= ASKED_TIME if method == "sweeping" else None,
                }
            )
    return lines


def standbys(play: Play, rows_per_s: Sequence[int], seconds: float) -> list[dict[str, Any]]:
    """Gu figure 5: what protection adds, and how much of what an active standby adds that is."""
    lines = []
    for rate in rows_per_s:
        none = play({}, method="none", rate=rate).counts
        hows = {"active": {"ha": "active"}, "sweeping": passive("sweeping", USUAL_MS)}
        found = {method: play(how, method=method, rate=rate).counts for method, how in hows.items()}
        more = {method: (one.messages - none.messages, one.sent - none.sent) for method, one in found.items()}
        for method, one in {"none": none, **found}.items():
            messages, sent = more.get(method, (0, 0))
            ratio = messages / more["active"][0]
            line = {"query": "standbys", "method": method, "rows_per_s": rate}
            line |= {"messages_per_s": round(one.messages / seconds), "bytes_per_s": round(one.sent / seconds)}
            line |= {"messages_more_pct": round(100 * messages / none.messages, 1)}
            line |= {"bytes_more_pct": round(100 * sent / none.sent, 1), "ratio": round(ratio, 3)}
            line |= {"ratio_of_bytes": round(sent / more["active"][1], 3), "asked_most": ASKED_MESSAGES}
            lines.append(line | {"met": ratio <= ASKED_MESSAGES if method == "sweeping" else None})
    return lines


def recovery(play: Play, every_ms: Sequence[int]) -> list[dict[str, Any]]:
    """Gu figures 6 to 8: the node of the last two units dies."""
    lines = []
    hows = [("active", USUAL_MS, {"ha": "active"})]
    hows += [("sweeping", each, passive("sweeping", each)) for each in every_ms]
    hows += [("individual", each, passive("individual", each)) for each in every_ms]
    for method, each, how in hows:
        found = play(how, method=method, kill=NODES[1])
        took = found.takeovers
        parts = {name: max((getattr(t, name) for t in took), default=0.0) for name in PHASES}
        line = {"query": "recovery", "method": method, "interval_ms": each, "silence_ms": round(found.silence_ms)}
        lines.append(line | {name: round(ms, 1) for name, ms in parts.items()})
    return lines


def load(play: Play, loads: Sequence[float], seconds: float) -> list[dict[str, Any]]:
    """Hwang figures 4.5 to 4.7."""
    measured = play(passive("individual", USUAL_MS), method="individual")
    costs = (measured.capture, measured.paste)
    lines: list[dict[str, Any]] = []
    for part in loads:
        found = {method: Model(method, part, *costs).play(seconds) for method in MODELLED}
        whole_s, spike_s = found["whole"]
        for method, (recovery_s, late_s) in found.items():
            line = {"query": "load", "method": method, "load": part, "recovery_ms": round(1000 * recovery_s, 1)}
            line |= {"spike_ms": round(1000 * late_s, 1), "ratio": round(recovery_s / whole_s, 3)}
            line |= {"ratio_of_spikes": round(late_s / spike_s, 3), "asked_most": ASKED_RECOVERY}
            met = recovery_s <= ASKED_RECOVERY * whole_s and late_s <= ASKED_SPIKE * spike_s
            lines.append(line | {"met": met if method == "min-max" else None})
        behind = 1000 * active_recovery_s(part, seconds)
        lines.append({"query": "load", "method": "active", "load": part, "recovery_ms": round(behind, 1)})
    for name, cost in zip(("capture", "paste"), costs, strict=True):
        line = {"query": "load", "method": f"cost of a {name}", "ms": round(1000 * cost.seconds(0), 3)}
        lines.append(line | {"ms_more_for_100_kB": round(1000 * (cost.seconds(100_000) - cost.seconds(0)), 3)})
    return lines


PHASES = ("detection_ms", "takeover_ms", "reprocess_ms")


def plot(lines: Sequence[dict[str, Any]], to: str) -> None:
    """Bytes against the interval, and CPU time against the rate."""
    figure, (panels,) = axes(4.6, 4.0, panels=2)
    wanted = (("intervals", "interval_ms", "bytes_per_s"), ("rates", "rows_per_s", "cpu_ms_each"))
    for panel, (query, across, up) in zip(panels, wanted, strict=True):
        for method in METHODS:
            mine = [one for one in lines if one.get("query") == query and one.get("method") == method]
            panel.plot([one[across] for one in mine], [one[up] for one in mine], "o-", label=method)
        panel.set_xlabel(across)
        panel.set_ylabel(up)
        panel.set_ylim(bottom=0)
        panel.legend(fontsize=6)
    figure.savefig(to, dpi=150)
