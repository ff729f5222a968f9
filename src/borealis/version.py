"""Which Borealis this is; every process of a cluster has the same."""

__version__ = "0.1.0"
