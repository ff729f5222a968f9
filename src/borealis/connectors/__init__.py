"""The world outside: where rows come from and where they go, a source and its sink side by side."""
