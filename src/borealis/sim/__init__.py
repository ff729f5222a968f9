"""A cluster in one thread and in simulated time: one seed is one run."""
