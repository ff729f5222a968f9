"""The ledger: what was handed on is remembered, whatever tears it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from borealis import kafka
from borealis.clock import ManualClock
from borealis.connectors.addresses import TopicAddress, shown
from borealis.connectors.kafka import ledger as subject
from borealis.connectors.kafka.brokers import Brokers, Presence
from borealis.connectors.kafka.from_topic import KafkaSource, source_at
from borealis.connectors.kafka.ledger import Base, Batch, Ledger, OffsetRange
from borealis.errors import InputError, StateError

SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])
BASE = Base("packets", 0, {0: 10, 1: 20}, None)


def batch(first: int, rows: int, *, at: int = 10) -> Batch:
    return Batch(first, (OffsetRange(0, at, at + rows, rows), OffsetRange(1, 20, 21, 0)))


def filled(path: Path, batches: int = 3) -> Ledger:
    made = Ledger(path)
    made.begin(BASE)
    for i in range(batches):
        made.add(batch(5 * i, 5, at=10 + 5 * i))
    return made


def test_it_remembers(tmp_path: Path) -> None:
    filled(tmp_path / "ledger").close()
    again = Ledger(tmp_path / "ledger")
    assert again.base == BASE
    assert again.position == 15
    assert again.offsets() == {0: 25, 1: 21}
    assert [b.first for b in again.batches] == [0, 5, 10]


def test_any_torn_tail_is_cut_and_written_over(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    filled(path).close()
    whole = path.read_bytes()
    begin = whole.rindex(subject.MARK)
    for length in range(begin, len(whole)):
        path.write_bytes(whole[:length])
        again = Ledger(path)
        assert again.position == 10
        again.add(batch(10, 5, at=20))
        again.close()
        assert path.read_bytes() == whole


def test_damage_before_the_tail_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    filled(path).close()
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(StateError, match="damaged"):
        Ledger(path)


def test_another_version_is_refused(tmp_path: Path) -> None:
    filled(tmp_path / "ledger").close()
    whole = (tmp_path / "ledger").read_bytes()
    (tmp_path / "ledger").write_bytes(whole.replace(subject.MARK, b"BKL9"))
    with pytest.raises(StateError, match="of another version"):
        Ledger(tmp_path / "ledger")


def test_a_long_one_is_folded_as_far_as_it_is_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "BYTES_MOST", 100)
    made = filled(tmp_path / "ledger")
    made.committed(12)  # within the third batch
    assert made.base == Base("packets", 10, {0: 20, 1: 21}, None)
    made.add(batch(15, 5, at=25))
    made.close()
    again = Ledger(tmp_path / "ledger")
    assert again.base == Base("packets", 10, {0: 20, 1: 21}, None)
    assert [b.first for b in again.batches] == [10, 15]
    assert again.offsets() == {0: 30, 1: 21}


def test_a_short_one_is_left_alone(tmp_path: Path) -> None:
    made = filled(tmp_path / "ledger")
    made.committed(15)
    assert made.base == BASE


# -- what users write


def test_an_address_is_taken_apart() -> None:
    source = source_at("kafka://a:1,b:2/packets?format=csv&start=0:17,1:4&until=now&security.protocol=SSL")
    assert source.brokers.addresses == "a:1,b:2"
    assert (source.topic, source.format, source.start) == ("packets", "csv", {0: 17, 1: 4})
    assert source.brokers.settings == {"security.protocol": "SSL"}


@pytest.mark.parametrize("text", ["kafka://", "kafka://a:1", "kafka:///packets", "kafka://a:1/x/y", "http://a:1/x"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is no topic"):
        TopicAddress.parse(text, ())


def test_secrets_are_not_shown() -> None:
    url = "kafka://a:1/packets?sasl.password=geheim"
    assert "geheim" not in shown(url)
    assert "geheim" not in repr(TopicAddress.parse(url, ("start",)))
    assert "geheim" not in repr(Brokers("a:1", {"sasl.password": "geheim"}))
    with pytest.raises(InputError) as caught:
        source_at("kafka://a:1/x/y?sasl.password=geheim")
    assert "geheim" not in str(caught.value)


def test_variables_are_put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORD", "geheim")
    assert Brokers("a:1", {"sasl.password": "x${WORD}y"}).conf()["sasl.password"] == "xgeheimy"
    monkeypatch.delenv("WORD")
    with pytest.raises(InputError, match=r"'sasl.password' names the variable WORD, which is not set"):
        Brokers("a:1", {"sasl.password": "${WORD}"}).conf()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"format": "xml"}, "no record format 'xml'"),
        ({"start": "yesterday"}, "is no place in a topic"),
        ({"start": {0: -1}}, "is no place in a topic"),
        ({"until": "tomorrow"}, "is no end"),
        ({"give_up": "soon"}, "give_up"),
        ({"settings": {"group.id": "mine"}}, "not for users"),
        ({"brokers": ""}, "no brokers"),
    ],
)
def test_wrong_options_are_refused_at_once(options: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        kafka.source(**({"topic": "packets", "brokers": "a:1"} | options))  # type: ignore[arg-type]


def test_an_unknown_option_of_an_address_is_refused() -> None:
    with pytest.raises(InputError, match=r"no option 'fromat'.*did you mean 'format'"):
        source_at("kafka://a:1/packets?fromat=csv")


def test_an_unknown_setting_is_named_without_its_value(tmp_path: Path) -> None:
    source = kafka.source("packets", "127.0.0.1:1", settings={"sasl.pasword": "geheim"})
    with pytest.raises(InputError, match=r"the setting 'sasl.pasword' is unknown") as caught:
        list(source.batches(SCHEMA, 0, 10))
    assert "geheim" not in str(caught.value)


def test_a_value_that_is_refused_is_not_shown() -> None:
    source = kafka.source("packets", "127.0.0.1:1", settings={"security.protocol": "geheim"})
    with pytest.raises(InputError, match=r"the setting 'security.protocol' has a value that is refused") as caught:
        list(source.batches(SCHEMA, 0, 10))
    assert "geheim" not in str(caught.value)


@pytest.mark.long
def test_brokers_that_stay_away_are_given_up() -> None:
    source = kafka.source("packets", "127.0.0.1:1", give_up="300 ms")
    with pytest.raises(InputError, match=r"no broker at 127.0.0.1:1 for 300 milliseconds"):
        list(source.batches(SCHEMA, 0, 10))


def test_a_ledger_of_another_topic_or_position_is_refused(tmp_path: Path) -> None:
    filled(tmp_path / "in.kafka" / "ledger").close()

    def start(topic: str, skip: int) -> None:
        source = KafkaSource(topic, "127.0.0.1:1")
        source.begin("in", "ts", tmp_path)
        list(source.batches(SCHEMA, skip, 10))

    with pytest.raises(InputError, match="is of topic 'packets', not 'others'"):
        start("others", 0)
    with pytest.raises(InputError, match="knows rows 0 to 15, but row 16 is needed"):
        start("packets", 16)
    (tmp_path / "in.kafka" / "ledger").unlink()
    with pytest.raises(InputError, match="is gone"):
        start("packets", 5)


def test_presence_tells_of_each_loss_once() -> None:
    clock = ManualClock()
    here = Presence("input 'x'", Brokers("a:1", give_up="10 seconds"), InputError, clock)
    assert here.note == ""
    here.lost("refused")
    clock.advance(4)
    here.lost("refused")
    assert here.note == "input 'x': no broker at a:1 for 4 s, tried 2 times"
    here.found()
    assert here.note == ""
    here.lost("refused")
    clock.advance(10)
    with pytest.raises(InputError, match="10 seconds"):
        here.lost("refused")


REFUSED = KafkaError(KafkaError._AUTHENTICATION, "sasl_ssl://a:1/bootstrap: SASL: Failed: Who? (after 3ms in state X)")


def test_a_login_that_is_refused_at_the_start_is_an_error_at_once() -> None:
    here = Presence("input 'x'", Brokers("a:1"), InputError, ManualClock())
    here.heard(REFUSED)
    here.heard(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    with pytest.raises(InputError, match=r"input 'x': cannot log in at a:1 \(SASL: Failed: Who\?\)") as caught:
        here.lost("no answer")
    assert "sasl.*" in caught.value.hint


def test_a_login_that_is_refused_later_is_tried_again_for_a_while() -> None:
    clock = ManualClock()
    here = Presence("input 'x'", Brokers("a:1", give_up="10 seconds"), InputError, clock)
    here.found()
    here.heard(REFUSED)
    here.lost("no answer")
    assert here.note == "input 'x': no login at a:1 for 0 s, tried once (SASL: Failed: Who?)"
    clock.advance(10)
    with pytest.raises(InputError, match=r"no login at a:1 for 10 seconds, tried 2 times \(SASL"):
        here.lost("no answer")
    here.found()
    assert here.note == ""
    here.lost("no answer")
    assert "no broker at" in here.note
