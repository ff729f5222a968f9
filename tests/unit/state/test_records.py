"""Files of records: what is read back, what is cut off, what is refused, and what a failure leaves behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from borealis.errors import FullError, StateError
from borealis.state.records import RecordFile

MARK = b"TST1"
Found = list[tuple[dict[str, object], list[bytes]]]


def filled(path: Path, *, last_synced: bool = True) -> RecordFile:
    file = RecordFile(path, MARK, f"the file {path}")
    file.create({"n": 0})
    file.append({"n": 1}, [b"a", b"bc"])
    file.append({"n": 2}, sync=last_synced)
    return file


def read(path: Path) -> tuple[Found, bool]:
    file = RecordFile(path, MARK, f"the file {path}")
    found = [(head, [blob.to_pybytes() for blob in blobs]) for head, blobs in file.read()]
    return found, file.mend()


ALL: Found = [({"n": 0}, []), ({"n": 1}, [b"a", b"bc"]), ({"n": 2}, [])]


def test_there_and_back_and_on(tmp_path: Path) -> None:
    filled(tmp_path / "file").close()
    assert read(tmp_path / "file") == (ALL, False)
    file = RecordFile(tmp_path / "file", MARK, "it")
    with pytest.raises(ValueError, match="not opened to the end"):
        file.append({"n": 3})
    assert len(list(file.read())) == 3
    file.resume()
    file.append({"n": 3})
    file.close()
    assert read(tmp_path / "file") == ([*ALL, ({"n": 3}, [])], False)
    file.create({"n": 9})
    assert read(tmp_path / "file") == ([({"n": 9}, [])], False)
    file.close()


@pytest.mark.parametrize("data", [b"", b"TST", b"TST2" + bytes(200), b"something else", bytes(100)])
def test_what_does_not_begin_with_a_record_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(StateError, match=rf"damaged at byte 0 of {len(data)}, or of another version"):
        read(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == data


@pytest.mark.parametrize("synced", [True, False])
def test_damage_is_a_torn_tail_only_where_nothing_behind_it_was_written_after_a_sync(
    tmp_path: Path, synced: bool
) -> None:
    path = tmp_path / "file"
    file = filled(path, last_synced=synced)
    file.append({"n": 3}, sync=False)
    file.close()
    data = bytearray(path.read_bytes())
    data[data.rindex(b'"n":2')] ^= 1
    path.write_bytes(data)
    if synced:
        with pytest.raises(StateError, match=r"damaged at byte \d+ of \d+, and not at its end"):
            read(path)
    else:
        assert read(path) == (ALL[:2], True)
        assert read(path) == (ALL[:2], False)


def test_a_record_without_room_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = filled(tmp_path / "file")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", full)
        with pytest.raises(FullError, match="No space left"):
            file.append({"n": 3}, [bytes(10_000)])
    assert read(tmp_path / "file") == (ALL, False)
    file.append({"n": 3})
    assert len(read(tmp_path / "file")[0]) == 4
    file.append({"n": 4}, sync=False)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", full)
        with pytest.raises(StateError, match="start again") as doubt:  # the one before was not synced, either
            file.append({"n": 5})
    assert not isinstance(doubt.value, FullError)
    with pytest.raises(StateError, match="No space left"):
        file.append({"n": 6})
    file.close()


def test_damage_in_what_a_file_was_begun_with_is_refused(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "file", MARK, "the test's file")
    file.create({"n": 1}, {"n": 2}, {"n": 3})
    file.close()
    data = bytearray((tmp_path / "file").read_bytes())
    data[data.index(b'"n":2')] ^= 1
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(StateError, match="not at its end"):
        read(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == data
