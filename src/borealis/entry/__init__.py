"""Where rows become a stream: ids, times, boundaries, late marks, and the durable log of all that."""
