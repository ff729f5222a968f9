"""A train is a transaction: inputs in one order, cut into trains, each committed as a whole or not at all."""
