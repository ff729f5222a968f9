"""Protection in a diagram: for all units or by box, written and read, and what is wrong with it told in one line."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from borealis.diagram import Diagram, Spec, window
from borealis.diagram.cut import cut, part_of
from borealis.diagram.durations import show
from borealis.diagram.protection import CHECKPOINTS, GUARANTEES, INTERVALS, Protection, chosen, protection_of
from borealis.errors import DiagramError


def traffic(protection: str = "") -> str:
    return f"""
borealis: 1
name: traffic
inputs:
  packets: {{columns: 'ts TIMESTAMP, src STRING', time: ts}}
boxes:
  some:
    filter: {{from: packets, predicate: src > 'a'}}
  per_source:
    aggregate: {{from: some, by: src, size: 2 seconds, exprs: {{n: count(*)}}}}
outputs: {{out: per_source}}
{protection}
"""


def read(protection: str) -> Spec:
    return Diagram.from_yaml(traffic(f"protection: {protection}")).validate()


def test_what_is_left_out_follows_from_the_approach() -> None:
    found = {a: Protection(ha=a) for a in ("none", "amnesia", "passive", "active", "upstream-backup")}
    assert [p.guarantee for p in found.values()] == [None, "gap", "precise", "precise", "precise"]
    assert [p.interval_us for p in found.values()] == [100_000, 100_000, 500_000, 100_000, 100_000]
    one = Protection(ha="passive", interval="25 ms", ping="50 ms", patience="1 s", misses=5)
    assert (one.interval_us, one.ping_us, one.patience_us, one.misses) == (25_000, 50_000, 1_000_000, 5)
    assert (one.without_backup, one.merge, one.bucket_us) == ("refuse", "arrival", None)
    assert Protection(ha="active", merge="time").bucket_us == 100_000


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "'ha' is missing. Hint: approaches are none, amnesia, passive, active, upstream-backup, replicas"),
        ({"ha": "pasive"}, "no approach 'pasive'. Hint: did you mean 'passive'?"),
        ({"ha": "active", "guarantee": "exact"}, "no guarantee 'exact'. Hint: there are gap, no-loss, precise"),
        ({"ha": "amnesia", "interval": "1 s"}, "an interval makes no sense with 'amnesia'. Hint: it sends nothing"),
        ({"ha": "passive", "interval": "0 s"}, "'interval' must be more than zero"),
        ({"ha": "passive", "ping": "0 s"}, "'ping' must be more than zero"),
        ({"ha": "passive", "ping": "soon"}, "'soon' is not a duration"),
        ({"ha": "passive", "misses": 0}, "0 misses"),
        ({"ha": "passive", "misses": "few"}, "'misses'"),
        ({"ha": "passive", "without_backup": "pray"}, "'without_backup'"),
        ({"ha": "passive", "checkpoint": "sweep"}, "no checkpoint 'sweep'. Hint: did you mean 'sweeping'?"),
        (
            {"ha": "active", "checkpoint": "sweeping"},
            "'checkpoint: sweeping' makes no sense with 'active', which makes none. Hint: say ha: passive",
        ),
        ({"ha": "none", "checkpoint": "interval"}, "'checkpoint: interval' makes no sense with 'none'"),
        ({"ha": "passive", "merge": "chance"}, "'merge'"),
        ({"ha": "passive", "bucket": "1 s"}, "a bucket makes no sense with 'merge: arrival'. Hint: say merge: time"),
        ({"ha": "passive", "merge": "time", "bucket": "0 s"}, "'bucket' must be more than zero"),
        ({"ha": "none", "merge": "time"}, "'merge: time' without an approach"),
        ({"ha": "passive", "keep": "1 GB"}, "how much to keep is said without a bound. Hint: say delay, such as 3 s"),
        ({"ha": "passive", "delay": "3 s", "keep": "1 kB"}, "'keep' of 1 kB is too little. Hint: give it a megabyte"),
        ({"ha": "passive", "delay": "3 s", "keep": "much"}, "'much' is not a size. Hint: write a number and a unit"),
        ({"ha": "amnesia", "keep_time": "1 minute"}, "how long to keep is said without a bound. Hint: say delay"),
        ({"ha": "amnesia", "when_full": "drop-oldest"}, "how long to keep is said without a bound. Hint: say delay"),
        ({"ha": "amnesia", "delay": "3 s", "keep_time": "2 s"}, "'keep_time' of 2 seconds is less than the delay"),
        (
            {"ha": "passive", "guarantee": "gap", "delay": "3 s", "when_full": "drop-oldest"},
            "'when_full: drop-oldest' with 'passive', whose backup goes on from before what was given up. Hint: say ha",
        ),
        ({"ha": "amnesia", "delay": "3 s", "when_full": "forget"}, "'when_full'"),
        (
            {"ha": "active", "replicas": 3},
            "replicas make no sense with 'active'. Hint: say ha: replicas, or leave them",
        ),
        ({"ha": "none", "replicas": 2}, "replicas make no sense with 'none'"),
        ({"ha": "replicas", "replicas": 1}, "1 replicas. Hint: two are the least"),
        ({"ha": "replicas", "replicas": "some"}, "'replicas'"),
        ({"ha": "active", "backups": 2}, "a number of backups makes no sense with 'active'. Hint: say ha: passive"),
        ({"ha": "storage", "backups": 2}, "no sense with 'storage'. Hint: it needs none: any node goes on"),
        ({"ha": "replicas", "backups": 2}, "no sense with 'replicas'. Hint: say replicas: 3"),
        ({"ha": "passive", "backups": 0}, "0 backups. Hint: give it 1 to 3: with none nothing takes over"),
        ({"ha": "passive", "backups": 4}, "4 backups. Hint: give it 1 to 3: each is sent all that changes"),
        ({"ha": "passive", "backups": "some"}, "'backups'"),
        ({"ha": "passive", "pings": "1 s"}, "unknown key 'pings'. Hint: did you mean 'ping'?"),
    ],
)
def test_what_is_wrong_is_told(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(DiagramError) as e:
        Protection(**fields)
    assert str(e.value).startswith("protection 'all': ")
    assert says in str(e.value)


def test_there_is_one_backup_or_as_many_as_are_asked_for() -> None:
    one, two = Protection(ha="passive"), Protection(ha="passive", backups=2)
    assert [p.further for p in (one, two, Protection(ha="passive", backups=1))] == [0, 1, 0]
    assert [p.plain() for p in (one, two)] == [{"ha": "passive"}, {"ha": "passive", "backups": "2"}]
    assert [p.backups for p in read("{ha: passive, backups: 2}").protection] == [2]
    assert chosen(one, backups=2) == two
    assert chosen(two, checkpoint="sweeping") == Protection(ha="passive", backups=2, checkpoint="sweeping")
    assert chosen(two, ha="active") == Protection(ha="active"), "others know nothing of it"


def test_there_are_two_replicas_or_as_many_as_are_asked_for() -> None:
    two, three = Protection(ha="replicas"), Protection(ha="replicas", replicas=3)
    assert [(one.replicas, one.further) for one in (two, three)] == [(2, 0), (3, 1)]
    assert [one.plain() for one in (two, three)] == [{"ha": "replicas"}, {"ha": "replicas", "replicas": "3"}]
    assert [p.replicas for p in read("{ha: replicas, replicas: 3}").protection] == [3]
    assert chosen(three, ha="active") == Protection(ha="active", merge="time")
    assert chosen(Protection(ha="active"), ha="replicas", replicas=4) == Protection(ha="replicas", replicas=4)
    assert chosen(two, replicas=3) == three


def test_only_a_passive_standby_makes_checkpoints() -> None:
    usual, sweeping = Protection(ha="passive"), Protection(ha="passive", checkpoint="sweeping")
    assert [one.checkpoint for one in (usual, sweeping, Protection(ha="active"))] == ["interval", "sweeping", None]
    assert [one.plain() for one in (usual, sweeping)] == [
        {"ha": "passive"},
        {"ha": "passive", "checkpoint": "sweeping"},
    ]
    assert [p.checkpoint for p in read("{ha: passive, checkpoint: sweeping}").protection] == ["sweeping"]
    assert chosen(usual, checkpoint="sweeping") == sweeping
    assert chosen(sweeping, ha="active") == Protection(ha="active")


def test_how_much_is_kept_goes_with_the_bound() -> None:
    one = Protection(ha="amnesia", delay="3 s", keep="2GiB")
    assert one.keep_bytes == 2 << 30
    assert one.plain() == {"ha": "amnesia", "delay": "3 seconds", "keep": "2GiB"}
    assert Protection(**one.plain()) == one
    left = chosen(one, ha="passive", merge="arrival")
    assert left is not None
    assert left.keep is None


def test_the_oldest_is_given_up_only_where_a_gap_is_promised() -> None:
    one = Protection(ha="amnesia", delay="3 s", keep_time="10 min", when_full="drop-oldest")
    assert one.keep_time_us == 600_000_000
    assert one.plain() == {
        "ha": "amnesia",
        "delay": "3 seconds",
        "keep_time": "10 minutes",
        "when_full": "drop-oldest",
    }
    other = chosen(one, ha="passive")
    assert other is not None
    assert (other.when_full, other.keep_time) == ("wait", "10 minutes")


def test_one_for_all_units() -> None:
    spec = read('{ha: passive, guarantee: no-loss, interval: "250 ms", misses: 4}')
    assert spec.protection == (Protection(ha="passive", guarantee="no-loss", interval="250 ms", misses=4),)
    assert protection_of(spec, ["some"]) == protection_of(spec, ["per_source"]) == spec.protection[0]
    line = "protection: {ha: passive, guarantee: no-loss, interval: 250 milliseconds, misses: '4'}"
    assert spec.to_yaml().splitlines()[-1] == line
    assert Spec.from_yaml(spec.to_yaml()) == spec


def test_one_for_a_box_and_one_for_the_rest() -> None:
    spec = read("{all: {ha: passive}, per_source: {ha: upstream-backup, interval: 50 ms}}")
    assert protection_of(spec, ["some"]) == Protection(ha="passive")
    named = protection_of(spec, ["some", "per_source"])
    assert named is not None
    assert (named.ha, named.interval_us, named.name) == ("upstream-backup", 50_000, "per_source")
    assert spec.to_yaml().endswith(
        "protection:\n  all: {ha: passive}\n  per_source: {ha: upstream-backup, interval: 50 milliseconds}\n"
    )
    assert Spec.from_yaml(spec.to_yaml()) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert hash(spec) == hash(Spec.from_yaml(spec.to_yaml()))


def test_boxes_of_one_unit_must_agree() -> None:
    spec = read("{some: {ha: active}, per_source: {ha: active}}")
    assert protection_of(spec, ["some", "per_source"]) is not None
    spec = read("{some: {ha: active}, per_source: {ha: active, misses: 5}}")
    with pytest.raises(DiagramError, match=r"'some' and 'per_source' of one unit .* --cut per_source"):
        protection_of(spec, ["some", "per_source"])
    assert protection_of(spec, ["per_source"]) == spec.protection[1]


def test_none_is_no_protection() -> None:
    spec = read("{all: {ha: active}, some: {ha: none}}")
    assert protection_of(spec, ["some"]) is None
    assert protection_of(read("{some: {ha: active}}"), ["per_source"]) is None
    kept = protection_of(read("{ha: none, guarantee: precise}"), ["some"])
    assert kept is not None  # to be refused
    assert kept.ha == "none"


def test_a_diagram_without_it_is_what_it_was() -> None:
    plain = Spec.from_yaml(traffic())
    assert "protection" not in plain.to_yaml()
    assert Spec.from_yaml(traffic("protection:")) == plain
    assert read("{ha: active}").fingerprint() != plain.fingerprint()
    protected = read("{ha: active}")
    assert part_of(protected, cut(protected)[0]) == plain  # what is computed does not depend on it


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("passive", "must say an approach, not 'passive'"),
        ("{packets: {ha: passive}}", "protection 'packets': that is an input"),
        ("{out: {ha: passive}}", "protection 'out': that is an output. Hint: name the box it comes from: "),
        ("{per_sauce: {ha: passive}}", "protection 'per_sauce': no such box. Hint: did you mean 'per_source'?"),
        ("{guarantee: precise}", "protection 'guarantee' must say an approach, not 'precise'. Hint: say its approach"),
        ("{gurantee: precise}", "Hint: did you mean 'guarantee'?"),
        ("{all: passive}", "protection 'all' must say an approach, not 'passive'"),
        ("{all: {name: x, ha: passive}}", "unknown key 'name'"),
        ("{some: {ha: amnesia, interval: 1 s}}", "protection 'some': an interval makes no sense with 'amnesia'"),
    ],
)
def test_a_bad_text_is_refused(text: str, says: str) -> None:
    with pytest.raises(DiagramError) as e:
        read(text)
    assert says in str(e.value)
    assert "\n" not in str(e.value)


def test_drawn() -> None:
    d = Diagram("traffic")
    packets = d.input("packets", "ts TIMESTAMP, src STRING")
    d.protect(ha="active")
    per = packets.aggregate(by="src", over=window("2 seconds"), n="count(*)").protect(ha="amnesia")
    per.filter("n > 1", name="many").output("out")
    d.protect("many", ha="passive")
    d.protect("many", ha="passive", guarantee="no-loss")  # the last word counts
    spec = d.validate()
    assert [(p.name, p.ha, p.guarantee) for p in spec.protection] == [
        ("all", "active", "precise"),
        ("aggregate_1", "amnesia", "gap"),
        ("many", "passive", "no-loss"),
    ]
    assert Spec.from_yaml(d.to_yaml()) == spec
    with pytest.raises(DiagramError, match="that is an input"):
        packets.protect(ha="passive")
    assert d.spec == spec


def test_the_command_line_has_the_last_word() -> None:
    found = Protection(ha="passive", guarantee="no-loss", interval="1 s", misses=7)
    assert chosen(found) == found
    assert chosen(None) is None
    assert chosen(None, ha="active") == Protection(ha="active")
    assert chosen(found, guarantee="precise") == Protection(ha="passive", interval="1 s", misses=7)
    assert chosen(found, ha="passive") == found
    assert chosen(found, ha="active") == Protection(ha="active", misses=7)
    assert chosen(found, ha="none") is None
    assert chosen(found, ping="20 ms", misses=None) == found.model_copy(update={"ping": "20 milliseconds"})
    with pytest.raises(DiagramError, match="'ha' is missing"):
        chosen(None, guarantee="precise")
    timed = Protection(ha="active", merge="time", bucket="1 s")
    assert chosen(timed, ha="passive") == Protection(ha="passive", merge="time", bucket="1 s")
    assert chosen(timed, merge="arrival") == Protection(ha="active")
    assert chosen(timed, ha="none") is None


spans = st.integers(1, 10**13).map(show)


@st.composite
def protections(draw: st.DrawFn) -> Protection:
    approach = draw(st.sampled_from(["none", "amnesia", "passive", "active", "upstream-backup"]))
    fields: dict[str, Any] = {"guarantee": draw(st.none() | st.sampled_from(GUARANTEES))}
    if approach in INTERVALS:
        fields["interval"] = draw(st.none() | spans)
    if approach == "passive":
        fields["checkpoint"] = draw(st.none() | st.sampled_from(CHECKPOINTS))
    fields |= {name: draw(spans) for name in ("ping", "patience") if draw(st.booleans())}
    if approach != "none" and draw(st.booleans()):
        fields |= {"merge": "time", "bucket": draw(st.none() | spans)}
    fields |= {"misses": draw(st.integers(1, 99)), "without_backup": draw(st.sampled_from(["refuse", "degrade"]))}
    return Protection(name=draw(st.sampled_from(["all", "some", "per_source"])), ha=approach, **fields)


@given(st.lists(protections(), max_size=3, unique_by=lambda p: p.name))
def test_any_protection_round_trips(found: list[Protection]) -> None:
    plain = Spec.from_yaml(traffic())
    spec = Spec(**({field: getattr(plain, field) for field in Spec.model_fields} | {"protection": tuple(found)}))
    assert Spec.from_yaml(spec.to_yaml()) == spec
    assert Spec.from_yaml(spec.to_yaml()).to_yaml() == spec.to_yaml()


def test_a_bound_of_a_whole_path_needs_a_bound_and_room_for_each_unit() -> None:
    with pytest.raises(DiagramError, match="'delay_of: path' without a bound"):
        Protection(ha="replicas", delay_of="path")
    whole = Protection(ha="replicas", delay="1 s", bucket="200 ms", delay_of="path")
    assert whole.plain() == {
        "ha": "replicas",
        "delay": "1 second",
        "bucket": "200 milliseconds",
        "delay_of": "path",
    }
    assert (whole.with_share(2).delay, whole.with_share(2).delay_of) == ("500 milliseconds", "unit")
    with pytest.raises(DiagramError, match="a path of 3 units is 333 milliseconds for each"):
        whole.with_share(3)


def test_replicas_read_by_time() -> None:
    assert Protection(ha="replicas").merge == "time"
    assert Protection(ha="replicas").plain() == {"ha": "replicas"}
    with pytest.raises(DiagramError, match="'replicas' read by time"):
        Protection(ha="replicas", merge="arrival")
    asked = chosen(Protection(ha="passive"), ha="replicas")
    assert asked is not None
    assert (asked.merge, asked.interval_us) == ("time", 100_000)
