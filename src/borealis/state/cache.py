"""A worker's copy of the state: it knows after which train it stands, and catches up from the log or reloads."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from borealis.errors import StateError
from borealis.state.delta import Delta, unpack
from borealis.state.log import FORKED, Key, mapped, stretch_name


class Stateful(Protocol):
    """What a cache needs of a kernel."""

    def apply(self, delta: Delta) -> None: ...


K = TypeVar("K", bound=Stateful)
HELD_MOST = 32  # kernels, before those of finished runs are looked for; then twice as many as were left


class Cache(Generic[K]):
    """Kernels by box and bucket. While one runs a train it is taken out: a failure leaves nothing half-done behind.

    A log's root is a directory, or whatever else `read` finds stretches under and `is_there` knows of.
    """

    def __init__(
        self,
        read: Callable[[str], pa.Buffer] = mapped,
        is_there: Callable[[str], bool] = lambda root: Path(root).exists(),
    ) -> None:
        self._read, self._is_there = read, is_there
        self._held: dict[tuple[str, Key], tuple[int, K]] = {}
        self._most = HELD_MOST
        self.reloads = 0

    def take(
        self, root: Path | str, key: Key, train: int, manifest: list[list[int]] | None, make: Callable[[], K]
    ) -> K:
        """The kernel as it stood after `train`, which is the log's last. Without a manifest it must stand there."""
        stands, kernel = self._held.pop((str(root), key), (None, None))
        if manifest is None:
            if kernel is None or stands != train:
                raise StateError(f"{key[0]} does not stand behind train {train} here", hint="it is tried again")
            return kernel
        # ahead: its train was run but never committed; overtaken: what it lacks is merged into the whole, where rows
        # that it still holds are no longer mentioned
        ahead = stands is not None and stands > train
        overtaken = any(first == 0 and last > (stands or 0) for first, last in manifest)
        if kernel is None or stands is None or ahead or overtaken:
            stands, kernel = 0, make()
            self.reloads += 1
        for first, last in manifest:
            if last > stands:
                kernel.apply(unpack(self._read(f"{root}/{stretch_name(key, first, last)}")))
        return kernel

    def give(self, root: Path | str, key: Key, train: int, kernel: K) -> None:
        """Put the kernel back after it ran `train`; forget those of runs that are over."""
        if (str(root), key) not in self._held and len(self._held) >= self._most:
            live = {held for held in dict.fromkeys(name for name, _ in self._held) if self._is_there(held)}
            self._held = {k: v for k, v in self._held.items() if k[0] in live}
            self._most = max(HELD_MOST, 2 * len(self._held))
        self._held[(str(root), key)] = (train, kernel)

    def forget_forks(self, root: str, live: Collection[str] = ()) -> None:
        """Of this log, or of that which it is a fork of, there are no other forks."""
        prefix = root.partition(FORKED)[0] + FORKED
        gone = {held for held, _ in self._held if held.startswith(prefix) and held not in live}
        if gone:
            self._held = {k: v for k, v in self._held.items() if k[0] not in gone}

    def keep_only(self, root: str) -> None:
        """Forget all but what is of this log, or of another of the same trunk."""
        trunk = root.partition(FORKED)[0]
        self._held = {k: v for k, v in self._held.items() if k[0].partition(FORKED)[0] == trunk}

    def forget(self) -> None:
        """All of them."""
        self._held.clear()
        self._most = HELD_MOST
