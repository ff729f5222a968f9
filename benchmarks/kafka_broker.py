"""A real Kafka broker on this machine: one node, KRaft mode, on loopback, its jars from Maven Central.

`python benchmarks/kafka_broker.py fetch` gets the jars once, into the cache, those of Spark's own Kafka connector, too;
`python benchmarks/kafka_broker.py serve` runs a broker until it is interrupted, and prints its address. Tests and
benchmarks ask `missing()` first.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VERSION = "4.1.0"
SCALA = "2.13"
LOGGER = "1.7.36"  # without one a broker dies in silence
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "borealis"
JARS = CACHE / f"kafka-{VERSION}"
# The newest that Maven Central has: it runs on PySpark 4.3, of which there is no connector there yet.
CONNECTOR = CACHE / "spark-kafka-4.2.0"
CONNECTOR_JARS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
START_S_MOST = 120.0  # a slow machine that starts a JVM
END_S_MOST = 30.0
HEAP = "-Xmx384m"
QUICK = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
LOUD = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>borealis</groupId><artifactId>broker</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_{SCALA}</artifactId><version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>{LOGGER}</version>
    </dependency>
  </dependencies>
</project>
"""
USER, PASSWORD = "ada", "open-sesame"  # whom the listeners let in that want a login
MODULES = {
    "plain": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "scram": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=CONTROLLER://127.0.0.1:{controller},{open}
advertised.listeners={open}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_PLAINTEXT,SECURE:SASL_SSL
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
log.retention.check.interval.ms=500
log.initial.task.delay.ms=500
log.segment.delete.delay.ms=0
"""
LOGIN = """listener.name.{name}.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256
listener.name.{name}.plain.sasl.jaas.config={plain} required user_{user}="{password}";
listener.name.{name}.scram-sha-256.sasl.jaas.config={scram} required;
"""
TLS = """listener.name.secure.ssl.keystore.type=PEM
listener.name.secure.ssl.keystore.location={home}/both.pem
"""
CERTIFICATE = (
    "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=broker -keyout broker.key -out broker.pem "
    "-addext subjectAltName=IP:127.0.0.1"
)


def missing() -> str:
    """Why no broker can be started here; empty if one can."""
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        return "confluent-kafka is not installed: pip install 'borealis-spark[kafka]'"
    if shutil.which("java") is None:
        return "there is no Java"
    if not _is_fetched():
        return f"no Kafka in {JARS}: python benchmarks/kafka_broker.py fetch"
    return ""


def _is_fetched() -> bool:
    return all(any(JARS.glob(name)) for name in ("kafka_*.jar", "slf4j-simple-*.jar"))


def connector() -> str:
    """The jars of Spark's Kafka connector, as `spark.jars` wants them; empty if they are not there."""
    found = sorted(CONNECTOR.glob("*.jar"))
    return ",".join(map(str, found)) if len(found) == len(CONNECTOR_JARS) else ""


def fetch() -> None:
    """Get all jars, those of broker and connector each whole or not at all; nothing to do if they are there."""
    if not _is_fetched():
        _with_maven(JARS, [["dependency:copy-dependencies", "-DoutputDirectory=jars"]])
    if not connector():
        copy = ["dependency:copy", "-DoutputDirectory=jars"]
        _with_maven(CONNECTOR, [[*copy, f"-Dartifact={jar}"] for jar in CONNECTOR_JARS])


def _with_maven(target: Path, goals: list[list[str]]) -> None:
    if shutil.which("mvn") is None:
        raise SystemExit("Kafka's jars are fetched with Maven: install it (Debian, Ubuntu: apt-get install maven)")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as made:
        (Path(made) / "pom.xml").write_text(POM)
        for goal in goals:
            subprocess.run(["mvn", "-q", "-B", "-ntp", *goal], cwd=made, check=True)
        os.replace(Path(made) / "jars", target)


@dataclass
class Broker:
    """One broker. `kill` it and `start` it again: it keeps its ports and its data."""

    home: Path
    port: int = 0
    controller: int = 0
    login: int = 0  # the port of a listener that wants one (PLAIN or SCRAM-SHA-256); 0: not known
    secure: int = 0  # the port of a listener that wants one over TLS, vouched for by `authority`; 0: none
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        """Where clients find it."""
        return f"127.0.0.1:{self.port}"

    @property
    def authority(self) -> Path:
        """Who vouches for it where it speaks TLS."""
        return self.home / "broker.pem"

    def start(self) -> Broker:
        """Start it, and wait until it serves."""
        self.prepare()
        self.launch()
        self.wait()
        return self

    def prepare(self) -> None:
        """Choose ports and format its storage, the first time."""
        if self.port:
            return
        self.home.mkdir(parents=True, exist_ok=True)
        from borealis.hosts import free_ports  # here: the jars are fetched before anything is installed

        self.port, self.controller, self.login, secure = free_ports(4)
        self.secure = secure if self._certify() else 0
        ports = {"PLAINTEXT": self.port, "LOGIN": self.login} | ({"SECURE": self.secure} if self.secure else {})
        listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
        text = PROPERTIES.format(controller=self.controller, open=listeners, data=self.home / "data")
        for name in ("login", "secure")[: len(ports) - 1]:
            text += LOGIN.format(name=name, user=USER, password=PASSWORD, **MODULES)
        config = self.home / "server.properties"
        config.write_text(text + (TLS.format(home=self.home) if self.secure else ""))
        user = ["--add-scram", f"SCRAM-SHA-256=[name={USER},password={PASSWORD}]"]
        cluster = "b0rea1isAAAAAAAAAAAAAA"
        self._java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config), *user).wait()

    def _certify(self) -> bool:
        """Make a certificate that signs itself; whether that can be done here."""
        if shutil.which("openssl") is None:
            return False
        subprocess.run(CERTIFICATE.split(), cwd=self.home, check=True, capture_output=True)
        both = [(self.home / name).read_text() for name in ("broker.key", "broker.pem")]
        (self.home / "both.pem").write_text("".join(both))
        return True

    def launch(self) -> None:
        """Start it, without waiting."""
        self.process = self._java("kafka.Kafka", str(self.home / "server.properties"))

    def wait(self) -> None:
        """Wait until it answers what topics there are."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        until = time.monotonic() + START_S_MOST
        client = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        while True:
            assert self.process is None or self.process.poll() is None, self.said()
            try:
                if client.list_topics(timeout=1.0).brokers:
                    return
            except KafkaException:
                assert time.monotonic() < until, self.said()

    def kill(self) -> None:
        """End it as a power cut would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """End it in good order."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(END_S_MOST)
            except subprocess.TimeoutExpired:
                self.kill()
            self.process = None

    def said(self) -> str:
        """The end of what it wrote."""
        return (self.home / "said.txt").read_text(errors="replace")[-4000:]

    def _java(self, *command: str) -> subprocess.Popen[bytes]:
        with open(self.home / "said.txt", "ab") as said:
            return subprocess.Popen(
                ["java", HEAP, *QUICK, LOUD, "-cp", f"{JARS}/*", *command],
                cwd=self.home,
                stdout=said,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    # -- topics

    def topic(self, name: str, partitions: int = 1, **config: str) -> str:
        """Make a topic; underscores in the names of settings stand for dots."""
        from confluent_kafka.admin import AdminClient, NewTopic

        settings = {key.replace("_", "."): value for key, value in config.items()}
        client = AdminClient({"bootstrap.servers": self.address})
        client.create_topics([NewTopic(name, partitions, 1, config=settings)], operation_timeout=20)[name].result(20)
        until = time.monotonic() + 20
        while name not in client.list_topics(timeout=20).topics:  # who made it knows it before those who are asked do
            assert time.monotonic() < until, f"the broker does not list topic {name}"
            time.sleep(0.02)
        return name

    def put(self, topic: str, values: list[bytes | None], partition: int = -1, keys: list[bytes] | None = None) -> None:
        """Write records, and wait until the broker has them."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.address, "linger.ms": 5, "log_level": 0})
        for value, key in zip(values, keys or [None] * len(values), strict=True):
            while True:
                try:
                    producer.produce(topic, value, key, partition=partition)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert not producer.flush(30)

    def get(self, topic: str) -> list[tuple[int, int, bytes | None, bytes | None]]:
        """All committed records as (partition, offset, key, value), partition by partition."""
        return [(one.partition(), one.offset(), one.key(), one.value()) for one in self.messages(topic)]

    def messages(self, topic: str) -> list[Any]:
        """The same as the library has them."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        reader = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": "look",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        try:
            partitions = list(reader.list_topics(topic, timeout=10).topics[topic].partitions)
            reader.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
            found: list[Any] = []
            open_ = set(partitions)
            until = time.monotonic() + 30
            while open_:
                assert time.monotonic() < until, f"{topic} has no end"
                for message in reader.consume(1000, 0.2):
                    if message.error() is not None:
                        open_.discard(message.partition())
                    else:
                        found.append(message)
            return sorted(found, key=lambda one: (one.partition(), one.offset()))
        finally:
            reader.close()


def serve() -> None:
    """Run one until interrupted."""
    with tempfile.TemporaryDirectory(prefix="borealis-kafka-") as made:
        broker = Broker(Path(made)).start()
        print(broker.address, flush=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            signal.pause()
        finally:
            broker.kill()


if __name__ == "__main__":
    {"fetch": fetch, "serve": serve}[sys.argv[1]]()
