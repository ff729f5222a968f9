"""Files and directories: CSV, JSON lines, Parquet and Arrow, read once or watched, written whole."""
