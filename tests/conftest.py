"""The order of the files: those that take long come first, so that no worker ends alone with one.

pytest-xdist takes this order with ``--no-loadscope-reorder`` (Makefile).
"""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
HEAVY = (
    "cluster/test_kill9.py",
    "contract/test_fuzzing.py",
    "spark/test_jobs_archive.py",
    "brokers/test_amqp10_end_to_end.py",
    "spark/test_cluster.py",
    "cluster/test_search_index.py",
    "spark/test_jobs_validate.py",
    "brokers/test_amqp.py",
    "spark/test_crashes.py",
    "cluster/test_search_persisted.py",
    "demo/test_demo.py",
    "brokers/test_kafka_end_to_end.py",
    "spark/test_jobs_report.py",
    "brokers/test_amqp_end_to_end.py",
    "spark/test_source_acks.py",
    "brokers/test_mqtt_end_to_end.py",
)
"""Files that take the longest, about longest first, those with a Spark of their own apart.

One that is not there is a mistake here.
"""


def pytest_configure() -> None:
    missing = [name for name in HEAVY if not (TESTS / name).is_file()]
    assert not missing, f"tests/conftest.py names files that are not there: {missing}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {TESTS / name: place for place, name in enumerate(HEAVY)}
    items.sort(key=lambda item: places.get(item.path, len(HEAVY)))
