"""Data frames of other libraries as Arrow tables: pandas, Polars, and all that speak Arrow's C stream."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from borealis.errors import InputError


def table_of(value: Any) -> pa.Table | None:
    """What a data frame holds; None for something that is no data frame.

    A pandas index is a column if it has a name.

    >>> table_of(pa.RecordBatch.from_pydict({"n": [1, 2]})).num_rows, table_of([1, 2])
    (2, None)
    """
    if isinstance(value, pa.Table):
        return value
    is_pandas = type(value).__module__.partition(".")[0] == "pandas"
    if not (is_pandas or hasattr(value, "__arrow_c_stream__") or isinstance(value, pa.RecordBatch)):
        return None
    if is_pandas and not hasattr(value, "columns"):
        raise InputError(f"a pandas {type(value).__name__} is no table", hint="give a DataFrame: .to_frame()")
    try:
        if not is_pandas:
            return pa.table(value)
        named = [name for name in value.index.names if name is not None]
        taken = {str(name) for name in value.columns}
        return pa.Table.from_pandas(value, preserve_index=bool(named) and not taken & set(map(str, named)))
    except (pa.ArrowException, TypeError, ValueError) as error:
        said = " ".join(str(error).split())[:200]
        raise InputError(
            f"a {type(value).__name__} cannot be read as a table ({said})", hint="give each column values of one type"
        ) from error
