"""Rows of the program itself: iterables and data frames in; lists, tables and callbacks out."""
