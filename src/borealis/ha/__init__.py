"""Protection against the death of nodes: what a diagram allows, what each approach gives, and the protocols, as pure
state machines. No Spark here, no socket, no clock."""
