"""WHAT to compute: boxes and arrows as frozen data. No Spark here, and no I/O but a diagram's own YAML file."""

from __future__ import annotations

from borealis.diagram.durations import CountWindow, Window, count_window, window
from borealis.diagram.model import Diagram, Input, Output, Spec, Stream

__all__ = ["CountWindow", "Diagram", "Input", "Output", "Spec", "Stream", "Window", "count_window", "window"]
