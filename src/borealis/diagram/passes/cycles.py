"""Cycles: there are none; only a diagram written by hand can have one."""

from __future__ import annotations

from borealis.diagram.spec import Spec


def check(spec: Spec) -> Spec:
    spec.topological()
    return spec
