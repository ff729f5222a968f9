"""The settings with which the broker of the tests lets somebody in."""

from __future__ import annotations

import pytest
from benchmarks.kafka_broker import PASSWORD, USER, Broker


def login(broker: Broker, mechanism: str, tls: bool = False) -> dict[str, str]:
    """For the listeners that want one; the test is skipped where those are not known."""
    if not (broker.secure if tls else broker.login):
        pytest.skip(
            "no openssl command to make a certificate with"
            if broker.login
            else "nobody knows where the broker of BOREALIS_TEST_BROKER wants a login"
        )
    settings = {
        "security.protocol": "SASL_SSL" if tls else "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    return settings | ({"ssl.ca.location": str(broker.authority)} if tls else {})
