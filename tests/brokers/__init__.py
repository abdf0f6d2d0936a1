import pytest

pytest.register_assert_rewrite(
    "tests.brokers.contract", "tests.brokers.end_to_end", "tests.brokers.peers"
)
