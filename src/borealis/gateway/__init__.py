"""Rows over HTTP, for programs with nothing but curl: a client like any other."""
