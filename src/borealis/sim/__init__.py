"""A cluster in one thread and in simulated time: kernel, network, disks, faults, checkers."""
