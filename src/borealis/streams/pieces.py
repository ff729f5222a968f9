"""Sections checked and cut, for queues."""

from __future__ import annotations

import numpy as np

from borealis.streams.section import Section


def cut(section: Section, most_bytes: int) -> Section:
    """The beginning of a section, about so large; one tuple at least."""
    while len(section) > 1 and (size := section.nbytes) > most_bytes:
        n = min(len(section) - 1, max(1, len(section) * most_bytes // size))
        section = section.until(section.first + n)
    return section


def upto(section: Section, place: tuple[int, int]) -> Section:
    """What of a section is not behind a place: tuples before its id, boundaries up to it and, at its id, up to its own.

    The section must not begin behind that id.
    """
    stop, bound = place
    if (section.stop, section.final) <= place:
        return section
    before, at_stop = (int(np.searchsorted(section.at, stop, side)) for side in ("left", "right"))
    return section.begin(stop, before + int(np.searchsorted(section.bound[before:at_stop], bound, "right")))


def check_inside(section: Section) -> None:
    """Whether a section is one at all."""
    if section.rows.num_rows != len(section.time):
        raise ValueError(f"a section with {section.rows.num_rows} rows and {len(section.time)} times")
    if section.kind is not None and len(section.kind) != len(section.time):
        raise ValueError(f"a section with {len(section.time)} tuples and {len(section.kind)} kinds")
    at, bound = section.at, section.bound
    if len(at) != len(bound):
        raise ValueError(f"a section with {len(bound)} boundaries at {len(at)} ids")
    if not len(at):
        return
    if at[0] < section.first or at[-1] > section.stop or (len(at) > 1 and (at[1:] < at[:-1]).any()):
        raise ValueError(f"boundaries out of place: {at} in tuples {section.first} to {section.stop}")
    if bound[0] <= section.standing or (len(bound) > 1 and (bound[1:] <= bound[:-1]).any()):
        raise ValueError(f"boundaries do not rise: {bound} after {section.standing}")
