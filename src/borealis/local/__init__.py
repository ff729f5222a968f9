"""A diagram in this process: `run`, and what it shows of itself."""
