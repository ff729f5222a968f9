"""One file format a file: how its rows are read in order, in bounded memory.

A reader is a function `(path, schema, skip, most_rows, options)` that yields what it passes: an `int` for so many rows
skipped unread (never more than `skip` in all), or a record batch of raw columns in declared order. It may skip less
than asked; the caller drops the rest.
"""
