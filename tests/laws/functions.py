"""Every function that Spark lists, with one plausible call of each over columns of the right types.

`python tests/laws/functions.py > docs/functions.md` writes the page of what a diagram makes of them; a test compares.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from levels import in_levels
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from borealis.compile.analyze import input_schema
from borealis.compile.expressions import translate_all
from borealis.compile.per_tuple import AGGREGATE, require_per_tuple
from borealis.compile.types import empty, require_carried, require_nullable, type_of
from borealis.diagram import sql
from borealis.diagram.boxes.map import Map
from borealis.diagram.harmless import require_harmless
from borealis.diagram.model import Diagram, Stream
from borealis.diagram.spec import Spec
from borealis.errors import DiagramError

COLUMNS = """ts TIMESTAMP, row INT, i INT, k BIGINT, h SMALLINT, y TINYINT, v DOUBLE, w DOUBLE, f FLOAT, s STRING,
    t STRING, b BOOLEAN, c BOOLEAN, d DATE, m DECIMAL(10,2), n BINARY, a ARRAY<INT>, z ARRAY<STRING>, g ARRAY<FLOAT>,
    p MAP<STRING,INT>, r STRUCT<x:INT,q:STRING>, l ARRAY<STRUCT<x:INT,q:STRING>>, j STRING, x STRING, u STRING"""
SKETCHES = {
    "hll": "hll_sketch_agg(id)", "theta": "theta_sketch_agg(id)", "bitmap": "bitmap_construct_agg(id)",
    "kll_bigint": "kll_sketch_agg_bigint(id)", "kll_double": "kll_sketch_agg_double(CAST(id AS DOUBLE))",
    "kll_float": "kll_sketch_agg_float(CAST(id AS FLOAT))",
    "tuple_double": "tuple_sketch_agg_double(id, CAST(id AS DOUBLE))",
    "tuple_integer": "tuple_sketch_agg_integer(id, CAST(id AS INT))",
    "top": "approx_top_k_accumulate(id)", "point": "first(X'0101000000000000000000F03F0000000000000040')",
}  # fmt: skip
TOP = "STRUCT<sketch: BINARY, maxItemsTracked: INT, itemDataType: BIGINT, itemDataTypeDDL: STRING>"

_ROWS: list[dict[str, Any]] = [
    {
        "ts": dt.datetime(2024, 2, 29, 13, 14, 15, 161718, dt.UTC), "row": 1, "i": 3, "k": 7, "h": 5, "y": 2,
        "v": 0.5, "w": 0.25, "f": 1.5, "s": "abc", "t": "b", "b": True, "c": False, "d": dt.date(2024, 2, 29),
        "m": Decimal("12.34"), "n": b"abc", "a": [3, 1, 2], "z": ["x", "y"], "g": [3.0, 4.0],
        "p": [("one", 1), ("two", 2)], "r": {"x": 1, "q": "q"}, "l": [{"x": 1, "q": "q"}], "j": '{"a": 1, "b": [1, 2]}',
        "x": "<a><b>1</b><b>2</b></a>", "u": "https://spark.apache.org/path?query=1#part",
    },
    {
        "ts": dt.datetime(1969, 12, 31, 23, 59, 59, 1, dt.UTC), "row": 2, "i": 1, "k": 100, "h": 2, "y": 1,
        "v": -0.25, "w": 1.0, "f": -0.5, "s": "Zé ,x", "t": "", "b": False, "c": True, "d": dt.date(1969, 12, 31),
        "m": Decimal("-0.50"), "n": b"", "a": [1], "z": ["x", None], "g": [1.0, 0.0],
        "p": [("three", None)], "r": {"x": None, "q": None}, "l": [None, {"x": None, "q": None}],
        "j": '{"a": null, "b": []}', "x": "<a><b>3</b></a>", "u": "ftp://example.org",
    },
    {"ts": dt.datetime(2024, 3, 1, tzinfo=dt.UTC), "row": 3},
]  # fmt: skip


def _each(names: str, call: str) -> dict[str, str]:
    """The same call of several functions."""
    return {name: call.replace("@", name) for name in names.split()}


def _lines(text: str) -> dict[str, str]:
    """A call a line; what it is a call of stands before its bracket, or, behind two spaces, before the call."""
    found = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, call = line.partition("  ")
        found[name if call else line[: line.index("(")]] = call.strip() or line
    return found


SCALAR = (
    _each("acos asin atan atanh cbrt ceil ceiling cos cosh cot csc degrees exp expm1 floor log1p", "@(v)")
    | _each("negative positive radians rint sec sign signum sin sinh tan tanh asinh abs", "@(v)")
    | _each("ln log10 log2 sqrt acosh", "@(w + 1)")
    | _each("< <= = == > >= != <> <=> + - * / % & ^ | div", "k @ i")
    | _each("<< >> >>>", "k @ 2")
    | _each("atan2 hypot pow power", "@(v, w)")
    | _each("mod pmod try_add try_divide try_mod try_multiply try_subtract greatest least", "@(k, i)")
    | _each("shiftleft shiftright shiftrightunsigned bit_get getbit", "@(k, 2)")
    | _each("bin bit_count factorial hex", "@(i)")
    | _each("bround round", "@(v, 1)")
    | _each("pi e now uuid rand randn random current_timestamp current_date curdate current_time localtime", "@()")
    | _each("localtimestamp current_user session_user user current_catalog current_database current_schema", "@()")
    | _each("current_timezone version current_path", "@()")
    | _each("nullifzero zeroifnull", "@(i)")
    | _each("ifnull nvl coalesce nullif equal_null", "@(k, 7)")
    | _each("isnull isnotnull typeof", "@(s)")
    | _each("and or", "b @ c")
    | _each("! not", "@ b")
    | _each("like ilike rlike regexp", "s @ 'a.*'")
    | _each("bigint double float int smallint tinyint decimal string boolean", "@(i)")
    | _each("ascii bit_length char_length character_length len length octet_length initcap lcase lower upper", "@(s)")
    | _each("ucase trim ltrim rtrim btrim quote soundex reverse mask is_valid_utf8 make_valid_utf8", "@(s)")
    | _each("try_validate_utf8 validate_utf8 luhn_check md5 sha sha1 crc32 base64 to_base32 sentences", "@(s)")
    | _each("url_encode collation", "@(s)")
    | _each("hash xxhash64", "@(s, k)")
    | _each("char chr space", "@(i)")
    | _each("contains startswith endswith instr", "@(s, 'b')")
    | _each("left right repeat", "@(s, 2)")
    | _each("lpad rpad", "@(s, 5, '.')")
    | _each("levenshtein jaro_winkler_similarity", "@(s, t)")
    | _each("locate position", "@('b', s)")
    | _each("substr substring", "@(s, 2, 2)")
    | _each("to_char to_varchar", "@(m, '99.99')")
    | _each("to_number try_to_number", "@(CAST(i AS STRING), '9')")
    | _each("to_binary try_to_binary", "@(s, 'utf-8')")
    | _each("unbase64", "@(base64(s))")
    | _each("from_base32", "@(to_base32(n))")
    | _each("url_decode try_url_decode", "@(url_encode(s))")
    | _each("parse_url try_parse_url", "@(u, 'HOST')")
    | _each("regexp_count regexp_instr regexp_like regexp_substr", "@(s, '[ab]')")
    | _each("regexp_extract regexp_extract_all", "@(s, '([ab])(.)', 1)")
    | _each("day dayname dayofmonth dayofweek dayofyear last_day month monthname quarter unix_date", "@(d)")
    | _each("weekday weekofyear year", "@(d)")
    | _each("hour minute second unix_micros unix_millis unix_seconds", "@(ts)")
    | _each("to_unix_timestamp unix_timestamp to_timestamp to_timestamp_ltz to_timestamp_ntz to_date", "@(ts)")
    | _each("try_to_date try_to_timestamp", "@(ts)")
    | _each("date_add date_sub add_months dateadd", "@(d, i)")
    | _each("date_diff datediff", "@(d, DATE '2024-01-01')")
    | _each("date_part datepart", "@('YEAR', d)")
    | _each("from_utc_timestamp to_utc_timestamp", "@(ts, 'Asia/Tokyo')")
    | _each("make_timestamp make_timestamp_ltz make_timestamp_ntz", "@(2024, i, 1, 2, 3, 4.5)")
    | _each("try_make_timestamp try_make_timestamp_ltz try_make_timestamp_ntz", "@(2024, 12 + i, 1, 2, 3, 4.5)")
    | _each("make_interval try_make_interval", "ts + @(0, i)")
    | _each("time_from_micros time_from_millis time_from_seconds timestamp_micros timestamp_millis", "@(k)")
    | _each("timestamp_seconds", "@(k)")
    | _each("time_to_micros time_to_millis time_to_seconds", "@(CAST(ts AS TIME))")
    | _each("to_time try_to_time", "@(date_format(ts, 'HH:mm:ss'))")
    | _each("array_compact array_distinct array_max array_min array_size array_sort cardinality size shuffle", "@(a)")
    | _each("sort_array", "@(a, false)")
    | _each("array_append array_contains array_position array_prepend array_remove", "@(a, i)")
    | _each("array_except array_intersect array_union arrays_overlap arrays_zip", "@(a, array(1, i))")
    | _each("element_at try_element_at get", "@(a, 1)")
    | _each("exists forall filter", "@(a, e -> e > 1)")
    | _each("aggregate reduce", "@(a, 0, (sum, e) -> sum + e)")
    | _each("map_entries map_keys map_values", "@(p)")
    | _each("transform_keys transform_values map_filter", "@(p, (name, n) -> name = 'one')")
    | _each("parse_json try_parse_json", "@(j)")
    | _each("variant_get try_variant_get", "@(parse_json(j), '$.a', 'int')")
    | _each("is_variant_null is_valid_variant schema_of_variant variant_strip_nulls", "@(parse_json(j))")
    | _each("variant_array_append try_variant_array_append", "@(parse_json(j), '$.b', i)")
    | _each("variant_insert try_variant_insert", "@(parse_json(j), '$.new', i)")
    | _each("variant_set try_variant_set", "@(parse_json(j), '$.a', i)")
    | _each("to_csv to_json to_xml", "@(r)")
    | _each("xpath_boolean xpath_double xpath_float xpath_int xpath_long xpath_number xpath_short", "@(x, 'sum(a/b)')")
    | _each("vector_norm vector_normalize", "@(g, 2.0F)")
    | _each("vector_cosine_similarity vector_inner_product vector_l2_distance", "@(g, g)")
    | _each("st_geogfromwkb st_geomfromwkb", "@(point)")
    | _each("st_asbinary st_srid", "@(st_geomfromwkb(point))")
    | _each("hll_union theta_difference theta_intersection theta_union", "@(hll, hll)")
    | {
        f"{name}_{kind}": f"{name}_{kind}(kll_{kind}{more})"
        for kind in ("bigint", "double", "float")
        for name, more in {
            "kll_sketch_get_n": "",
            "kll_sketch_get_quantile": ", 0.5",
            "kll_sketch_get_rank": f", CAST(3 AS {kind})",
            "kll_sketch_merge": f", kll_{kind}",
            "kll_sketch_to_string": "",
        }.items()
    }
    | {
        f"tuple_{name}_{kind}": f"tuple_{name}_{kind}(tuple_{kind}{more})"
        for kind in ("double", "integer")
        for name, more in {
            "difference": f", tuple_{kind}",
            "intersection": f", tuple_{kind}",
            "union": f", tuple_{kind}",
            "difference_theta": ", theta",
            "intersection_theta": ", theta",
            "union_theta": ", theta",
            "sketch_estimate": "",
            "sketch_summary": "",
            "sketch_theta": "",
        }.items()
    }
    | _lines("""
        !  ! b
        ~  ~ k
        ||  s || t
        between  k BETWEEN 1 AND 10
        case  CASE WHEN hour(ts) < 12 THEN 'am' ELSE 'pm' END
        when  CASE k WHEN 7 THEN s END
        in  k IN (7, i)
        if(b, hour(ts), 0)
        cast(m AS STRING)
        nanvl(v, w)
        nvl2(s, k, i)
        isnan(v)
        log(2, w + 1)
        conv(CAST(i AS STRING), 10, 2)
        width_bucket(v, -1, 1, 4)
        uniform(10, 20)
        unhex(hex(n))
        date(ts)
        time(ts)
        timestamp(d)
        binary(s)
        collate(s, 'UTF8_LCASE')
        concat(s, t)
        concat_ws('-', s, 'x')
        decode(n, 'utf-8')
        encode(s, 'utf-8')
        elt(1, s, t)
        find_in_set(t, 'a,b')
        format_number(v, 2)
        format_string('%s-%s', s, i)
        printf('%s-%s', s, i)
        overlay(s, '_', 2)
        randstr(3)
        regexp_replace(s, '[ab]', '_')
        replace(s, 'b', '_')
        split(s, 'b')
        split_part(s, 'b', 1)
        substring_index(s, 'b', 1)
        translate(s, 'ab', 'AB')
        sha2(s, 256)
        hmac('key', s)
        aes_encrypt(s, '0000111122223333')
        aes_decrypt(aes_encrypt(s, '0000111122223333', 'ECB'), '0000111122223333', 'ECB')
        try_aes_decrypt(n, '0000111122223333')
        convert_timezone('Asia/Tokyo', CAST(ts AS TIMESTAMP_NTZ))
        date_format(ts, 'yyyy-MM')
        date_from_unix_date(i)
        date_trunc('HOUR', ts)
        extract(HOUR FROM ts)
        from_unixtime(k)
        make_date(2024, i, 1)
        make_dt_interval(i, 2)
        make_ym_interval  d + make_ym_interval(1, i)
        make_time(6, i, 45.887)
        months_between(ts, TIMESTAMP '2024-01-01 00:00:00')
        next_day(d, 'MON')
        time_bucket(INTERVAL '1' HOUR, ts)
        time_diff('HOUR', CAST(ts AS TIME), TIME '12:00:00')
        time_trunc('HOUR', CAST(ts AS TIME))
        trunc(d, 'MM')
        timestamp_nanos  CAST(timestamp_nanos(k) AS TIMESTAMP)
        unix_nanos(timestamp_nanos(k))
        array(i, 1)
        array_insert(a, 1, i)
        array_join(z, ',')
        array_repeat(s, 2)
        flatten(array(a, a))
        sequence(0, i)
        slice(a, 1, 1)
        transform(a, e -> e + i)
        zip_with(a, a, (one, other) -> one * other)
        map('one', i, 'two', k)
        map_concat(p, map('ten', 10))
        map_contains_key(p, 'one')
        map_from_arrays(array('x', 'y'), array(i, 1))
        map_from_entries(array(struct('x', i)))
        map_zip_with(p, p, (name, one, other) -> one + other)
        str_to_map(s, ',', 'b')
        struct(i, s)
        named_struct('i', i, 's', s)
        from_json(j, 'a INT, b ARRAY<INT>')
        get_json_object(j, '$.a')
        json_array_length(get_json_object(j, '$.b'))
        json_object_keys(j)
        schema_of_json('{"a": 1}')
        to_variant_object(r)
        variant_delete(parse_json(j), '$.a')
        from_csv(CAST(i AS STRING), 'a INT')
        schema_of_csv('1,a')
        from_xml(x, 'b ARRAY<INT>')
        schema_of_xml('<a><b>1</b></a>')
        xpath(x, 'a/b/text()')
        xpath_string(x, 'a/b')
        st_setsrid(st_geomfromwkb(point), 3857)
        bitmap_bit_position(k)
        bitmap_bucket_number(k)
        bitmap_count(bitmap)
        hll_sketch_estimate(hll)
        theta_sketch_estimate(theta)
        theta_difference(theta, theta)
        theta_intersection(theta, theta)
        theta_union(theta, theta)
        approx_top_k_estimate(top)
        assert_true(true)
        raise_error('no')
        from_avro(n, '"int"')
        to_avro(i)
        schema_of_avro('"int"')
    """)
)

# Of these only what refuses them matters.
NOT_SCALAR = (
    _each(
        "sum avg mean min max first last count stddev stddev_samp any_value array_agg collect_list collect_set", "@(k)"
    )
    | _each("bit_and bit_or bit_xor first_value last_value kurtosis skewness median mode std stddev_pop", "@(k)")
    | _each("try_avg try_sum var_pop var_samp variance approx_count_distinct count_if hll_sketch_agg", "@(k)")
    | _each("theta_sketch_agg bitmap_construct_agg kll_sketch_agg_bigint approx_top_k approx_top_k_accumulate", "@(k)")
    | _each("kll_sketch_agg_double", "@(v)")
    | _each("kll_sketch_agg_float", "@(f)")
    | _each("any some every bool_and bool_or count_if", "@(b)")
    | _each("approx_percentile percentile percentile_approx", "@(k, 0.5)")
    | _each("percentile_cont percentile_disc", "@(0.5) WITHIN GROUP (ORDER BY k)")
    | _each("corr covar_pop covar_samp regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope", "@(v, w)")
    | _each("regr_sxx regr_sxy regr_syy max_by min_by", "@(v, w)")
    | _each("listagg string_agg", "@(s)")
    | _each("bitmap_and_agg bitmap_or_agg", "@(bitmap)")
    | _each("hll_union_agg theta_intersection_agg theta_union_agg", "@(hll)")
    | _each("kll_merge_agg_bigint", "@(kll_bigint)")
    | _each("kll_merge_agg_double", "@(kll_double)")
    | _each("kll_merge_agg_float", "@(kll_float)")
    | _each("tuple_intersection_agg_double tuple_union_agg_double", "@(tuple_double)")
    | _each("tuple_intersection_agg_integer tuple_union_agg_integer", "@(tuple_integer)")
    | _each("tuple_sketch_agg_double", "@(k, v)")
    | _each("tuple_sketch_agg_integer", "@(k, i)")
    | _each("vector_avg vector_sum", "@(g)")
    | _each("collect_union", "@(a)")
    | _each("grouping grouping_id measure", "@(k)")
    | _each("approx_top_k_combine", "@(top)")
    | _each("schema_of_variant_agg", "@(parse_json(j))")
    | _each("row_number rank dense_rank percent_rank cume_dist", "@() OVER (ORDER BY k)")
    | _each("ntile", "@(2) OVER (ORDER BY k)")
    | _each("lag lead counter_diff", "@(k) OVER (ORDER BY ts)")
    | _each("nth_value", "@(k, 2) OVER (ORDER BY ts)")
    | _each("explode explode_outer posexplode posexplode_outer", "@(a)")
    | _each("inline inline_outer", "@(l)")
    | _each("variant_explode variant_explode_outer", "@(parse_json(j))")
    | _each("collations sql_keywords python_worker_logs", "@()")
    | _each("monotonically_increasing_id spark_partition_id input_file_name", "@()")
    | _each("input_file_block_start input_file_block_length", "@()")
    | _each("window session_window", "@(ts, '10 seconds')")
    | _each("java_method reflect try_reflect", "@('java.lang.System', 'exit', 1)")
    | _lines("""
        histogram_numeric(v, 5)
        count_min_sketch(k, 0.5D, 0.5D, 1)
        stack(2, i, row)
        json_tuple(j, 'a')
        range(3)
        window_time(window(ts, '10 seconds'))
        from_protobuf(n, 'Message')
        to_protobuf(r, 'Message')
    """)
)
CALLS = SCALAR | NOT_SCALAR
# what the law does not run, and why
UNTRIED = {
    "raise_error": "it only raises",
    "approx_top_k_estimate": "what it takes comes from an aggregate that is refused",
}


class Finding(NamedTuple):
    """What a diagram makes of a function: a kernel, Catalyst, an aggregate box, or the reason why it is refused."""

    name: str
    group: str
    call: str
    where: str
    why: str = ""


def rows_of(d: Diagram) -> Stream:
    """The input that has a column of every kind."""
    sketches = ", ".join(f"{name} {TOP if name == 'top' else 'BINARY'}" for name in SKETCHES)
    return d.input("rows", f"{COLUMNS}, {sketches}", slack="1000000 days")


def diagram(calls: Mapping[str, str]) -> Spec:
    """A map of these calls, to an output, to a stateful box of the same unit and, over a cut, to one of another."""
    d = Diagram("functions")
    made = rows_of(d).map({"row": "row"} | dict(calls), name="made")
    made.output("out")
    made.bsort("row", buffer=2, name="here").output("kept_here")
    made.bsort("row", buffer=2, name="there").output("kept_there")
    return d.validate()


def table(spark: SparkSession) -> pa.Table:
    """The rows that every call is made over; the last one is null, but for its time and number."""
    sketches = spark.range(1, 6).selectExpr(*(f"{call} AS {name}" for name, call in SKETCHES.items()))
    known = sketches.toArrow().to_pylist()[0]
    schema = spark.createDataFrame([], diagram({}).inputs[0].columns).toArrow().schema
    return pa.Table.from_pylist([*(row | known for row in _ROWS[:-1]), _ROWS[-1]], schema)


def everywhere(spark: SparkSession, calls: Mapping[str, str], rows: pa.Table) -> dict[str, pa.Table]:
    """The outputs of a map of these calls: its own, through a box that keeps state, and through one behind a cut."""
    spec = diagram(calls)
    with in_levels(spark) as town:
        town.deploy(spec.to_yaml(), cut=("there",))
        reads = town.run(spec.name, {"rows": rows.to_batches()}, dict.fromkeys(o.source for o in spec.outputs))
        town.finish(reads)
    return {o.name: reads[o.source].table.sort_by("row") for o in spec.outputs}


def findings(spark: SparkSession) -> list[Finding]:
    """What becomes of every function that Spark lists."""
    listed = sorted(row[0] for row in spark.sql("SHOW FUNCTIONS").collect())
    if unknown := [name for name in listed if name not in CALLS]:
        raise LookupError(f"no call of {', '.join(unknown)}: say in {Path(__file__).name} how they are called")
    java = spark._jvm
    assert java is not None
    infos = java.org.apache.spark.sql.api.python.PythonSQLUtils.listBuiltinFunctionInfos()
    groups = {info.getName(): info.getGroup() for info in infos}
    frame = empty(spark, input_schema(diagram({}).inputs[0]))
    made: dict[str, StructType] = {}
    whys: dict[str, str] = {}
    scalar = [name for name in listed if name in SCALAR]
    for names in (scalar, *([name] for name in listed if name not in SCALAR)):
        _look(frame, names, made, whys)
    twins = translate_all(frame, {name: CALLS[name] for name in listed if name not in whys})
    for name, twin in twins.items():
        with _refused(whys, name) as box:
            if twin is None:
                require_nullable(box, made[name])
    found = []
    for name in listed:
        where = "aggregate box" if name in sql.AGGREGATES else "" if name in whys else "Catalyst"
        where = "kernel" if twins.get(name) is not None else where
        found.append(Finding(name, groups.get(name, "predicate_funcs"), CALLS[name], where, whys.get(name, "")))
    return found


def _look(frame: DataFrame, names: Sequence[str], made: dict[str, StructType], whys: dict[str, str]) -> None:
    """Find the types of calls, or why they are refused; all in one analysis, while nothing is wrong with them."""
    if len(names) == 1:
        with _refused(whys, names[0]) as box:
            require_harmless(CALLS[names[0]])
            made[names[0]] = StructType().add("x", type_of(frame, CALLS[names[0]], box))
            require_carried(box, made[names[0]])
        return
    box = Map(name="made", sources=("rows",), exprs={name: CALLS[name] for name in names})
    try:
        for name in names:
            require_harmless(CALLS[name])
        many = frame.select(*(F.expr(call).alias(name) for name, call in box.exprs.items()))
        require_per_tuple(box, many)
        require_carried(box, many.schema)
        made |= {field.name: StructType().add("x", field.dataType) for field in many.schema.fields}
    except (DiagramError, PySparkException):
        _look(frame, names[: len(names) // 2], made, whys)
        _look(frame, names[len(names) // 2 :], made, whys)


@contextmanager
def _refused(whys: dict[str, str], name: str) -> Iterator[Map]:
    """A map to check a call in; if it is refused, why."""
    box = Map(name="made", sources=("rows",), exprs={"x": CALLS[name]})
    try:
        yield box
    except DiagramError as error:
        whys[name] = error.message.replace(f" in `{CALLS[name]}`", "").removeprefix("box 'made': ")


GROUPS = {
    "predicate": "Comparing and deciding",
    "conditional": "Choosing",
    "math": "Numbers",
    "bitwise": "Bits",
    "conversion": "Types",
    "string": "Text",
    "url": "Addresses",
    "datetime": "Dates and times",
    "hash": "Hashes",
    "array": "Arrays",
    "collection": "Arrays and maps",
    "map": "Maps",
    "struct": "Structs",
    "lambda": "Functions over arrays and maps",
    "json": "JSON",
    "variant": "Variants",
    "csv": "CSV",
    "xml": "XML",
    "avro": "Avro",
    "protobuf": "Protocol buffers",
    "vector": "Vectors",
    "st": "Places on earth",
    "sketch": "Sketches",
    "misc": "Others",
    "agg": "Aggregates",
    "window": "Window functions",
    "generator": "Generators",
    "table": "Tables",
}
HEAD = """# Functions

Every function and operator that Spark {version} lists, and what a diagram makes of it. A test makes one call of each
(the one shown) over rows with and without nulls, sends it to an output, through a box that keeps state and over a cut,
and compares with Spark's own answer. This page is written by `python tests/laws/functions.py > docs/functions.md`.

- **kernel**: computed in Arrow, inside the Spark source; the fastest. Which calls have such a twin depends on the types
  of the arguments, too: `borealis explain` shows where a box runs.
- **Catalyst**: computed by Spark itself; a unit with such a box takes a level more.
- **aggregate box**: only in an [aggregate](boxes/aggregate.md), and in a [resample](boxes/resample.md) with `exprs`.
- **refused**: `check`, `run` and `deploy` say so, and why, before anything runs.

{counts}
"""


def page(found: Sequence[Finding], version: str) -> str:
    """The page of the docs."""
    counts = Counter(one.where or "refused" for one in found)
    told = [f"{counts[kind]} {kind}" for kind in ("kernel", "Catalyst", "aggregate box", "refused")]
    parts = [HEAD.format(version=version, counts=f"Of {len(found)}: {', '.join(told)}.")]
    for group, title in GROUPS.items():
        mine = [one for one in found if one.group == f"{group}_funcs"]
        parts += [f"\n## {title}\n", "| function | called as | computed by |", "|---|---|---|"]
        parts += [f"| {_code(one.name)} | {_code(one.call)} | {_where(one)} |" for one in mine]
    return "\n".join(parts) + "\n"


def _where(one: Finding) -> str:
    why = one.why.replace("|", "\\|").removeprefix(f"'{one.name}' ").removeprefix(f"`{one.call}` ")
    why = why.removeprefix("column 'x' ")
    if why == AGGREGATE.why and not one.where:
        return "refused: an aggregate that no kernel computes"
    if one.where in ("aggregate box", ""):
        return one.where or f"refused: {why}"
    return f"{one.where}; {UNTRIED[one.name]}" if one.name in UNTRIED else one.where


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


if __name__ == "__main__":
    from borealis.spark.session import session

    one = session(master="local[2]")
    print(page(findings(one), one.version), end="")
    one.stop()
