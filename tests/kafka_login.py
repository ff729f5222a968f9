"""The settings with which the broker of the tests lets somebody in."""

from __future__ import annotations

import pytest
from benchmarks.kafka_broker import PASSWORD, USER, Broker


def login(broker: Broker, mechanism: str) -> dict[str, str]:
    """For its second listener; the test is skipped where that is not known."""
    if not broker.login:
        pytest.skip("nobody knows where the broker of BOREALIS_TEST_BROKER wants a login")
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
