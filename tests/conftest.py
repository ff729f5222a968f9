"""What all tests share: one Spark session, and how long hypothesis looks for trouble."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks
sys.path.insert(0, str(Path(__file__).parent))  # for what several folders share

from benchmarks.kafka_broker import Broker, missing

from borealis.spark.archive import archive_flags
from postgres import Embedded, Server, server

# JVMs of tests live for seconds or minutes: what Java's second compiler does for them costs more than it saves.
os.environ.setdefault("SPARK_SUBMIT_OPTS", f"-XX:TieredStopAtLevel=1 {archive_flags()}")

# A failing example prints the blob that replays it. Choose with `HYPOTHESIS_PROFILE=deep pytest tests/laws`.
CALM = {"deadline": None, "print_blob": True, "suppress_health_check": list(HealthCheck)}
settings.register_profile("glance", max_examples=2, derandomize=True, **CALM)  # `make check`
settings.register_profile("quick", max_examples=5, derandomize=True, **CALM)  # the same every time, as CI wants it
settings.register_profile("deep", max_examples=500, **CALM)
settings.register_profile("hunt", max_examples=500, phases=[Phase.explicit, Phase.generate], **CALM)  # no shrinking
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--spark-first", action="store_true", help="tests that need Spark stand together: one lane starts it"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("spark_first"):
        items.sort(key=lambda item: "spark" not in getattr(item, "fixturenames", ()))


def pytest_collection_finish() -> None:
    gc.freeze()  # modules and tests stay: to look through them again and again takes seconds


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all tests: two tasks at a time, and a failed one is tried three times."""
    from borealis.spark.session import session

    one = session(master="local[2, 3]")
    one.conf.set("spark.sql.shuffle.partitions", "2")
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # errors are expected in some tests
    yield one
    one.stop()


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server for the tests of a file."""
    with server() as one:
        yield one


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> Embedded | Server:
    """A database without tables, of each kind."""
    if request.param == "sqlite":
        return Embedded(tmp_path / "a.db")
    made: Server = request.getfixturevalue("postgres")
    made.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    return made


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One Kafka broker for all tests; BOREALIS_TEST_BROKER=port names one that runs already."""
    if why := missing():
        pytest.skip(why)
    running = os.environ.get("BOREALIS_TEST_BROKER")
    one = Broker(tmp_path_factory.mktemp("kafka"), int(running or 0))
    if not running:
        one.start()
    yield one
    one.kill()


@pytest.fixture(scope="session")
def mortal_broker(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Another one; `broker` is asked for only because it knows whether there can be one."""
    one = Broker(tmp_path_factory.mktemp("mortal-kafka"))
    yield one
    one.kill()


@pytest.fixture
def own_broker(mortal_broker: Broker) -> Broker:
    """A broker that may be killed: each test finds it alive, and leaves it as it likes."""
    return mortal_broker if mortal_broker.process is not None else mortal_broker.start()


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """The command line takes signals over; pytest wants them back."""
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
