"""Which coordinator a program speaks to, and with which token."""

from __future__ import annotations

from pathlib import Path

import pytest

from borealis.client.cluster_config import (
    ClusterProcess,
    ClusterRecord,
    find,
    home,
    read_record,
    read_token,
    record_path,
    split,
    write_record,
)
from borealis.errors import BorealisError


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("BOREALIS_COORDINATOR", "BOREALIS_TOKEN", "BOREALIS_CA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BOREALIS_HOME", str(tmp_path / "home"))
    return tmp_path


def test_given_then_environment_then_record_then_the_usual(clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find().address == "127.0.0.1:7470"
    token = clean / "token"
    token.write_text("secret\n")
    write_record(ClusterRecord(coordinator="127.0.0.1:7001", token_file=str(token), data=str(clean)))
    assert (find().address, find().token) == ("127.0.0.1:7001", "secret")
    monkeypatch.setenv("BOREALIS_COORDINATOR", "10.0.0.1:7002")
    assert (find().address, find().token) == ("10.0.0.1:7002", None)  # a token goes to its own cluster only
    monkeypatch.setenv("BOREALIS_TOKEN", "other")
    assert find().token == "other"
    given = find("https://[::1]:7003", "mine")
    assert (given.host, given.port, given.token, given.url) == ("::1", 7003, "mine", "https://[::1]:7003")
    assert find("127.0.0.1:7001", ca="ca.pem").url == "https://127.0.0.1:7001"


def test_the_record_survives_writing_and_reading() -> None:
    assert read_record() is None
    parts = [ClusterProcess(name="node1", pid=4242, started="boot 17", log="/tmp/node1.log")]
    record = ClusterRecord(coordinator="127.0.0.1:1", data="/tmp/data", parts=parts)
    write_record(record)
    assert read_record() == record
    assert [path.name for path in home().iterdir()] == ["cluster.json"]


@pytest.mark.parametrize("text", ["", "{}", '{"version": 2, "coordinator": "a", "data": "b"}', "[1]", '"x"'])
def test_a_damaged_record_is_told(text: str) -> None:
    record_path().parent.mkdir()
    record_path().write_text(text)
    with pytest.raises(BorealisError, match="is no record of a cluster"):
        find()


@pytest.mark.parametrize(
    "text", ["", ":", "host:", "host:port", "host:0", "host:70000", "ftp://host:1", "a/b:1", "::1"]
)
def test_what_is_no_address_is_told(text: str) -> None:
    with pytest.raises(BorealisError, match="is no address"):
        split(text)


def test_a_token_is_the_one_line_of_its_file(clean: Path) -> None:
    path = clean / "token"
    for text, good in (
        ("abc\n", True),
        ("  abc  ", True),
        ("", False),
        ("a b", False),
        ("a\nb", False),
        ("\x07", False),
    ):
        path.write_text(text)
        if good:
            assert read_token(path) == "abc"
        else:
            with pytest.raises(BorealisError, match="holds no token"):
                read_token(path)
    with pytest.raises(BorealisError, match="cannot read the token file"):
        read_token(clean / "nowhere")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(BorealisError, match="it is not text"):
        read_token(path)
