"""Which suites there are, what they need, and in which modes they run."""

from __future__ import annotations

from dataclasses import dataclass

MODES = {
    "plain": "without singleflight",
    "installed": "`install` on every app or broker",
    "observe": 'every task a singleton, `enabled="observe"`',
    "singleton": 'every task `Singleton(by="*", on_conflict="defer")`',
}
"""What each mode's run has, and as the table says it."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One suite of one framework.

    Args:
        name: as on the command line and in the table.
        framework: its name in the package index.
        arguments: what pytest gets.
        store: where leases lie; empty: where singleflight finds a store by itself.
        redis: how it learns where Redis is: from Celery's ``"variables"``, or it asks the ``"usual"`` port.
        rabbitmq: whether it uses RabbitMQ where that is installed.
        limit: seconds after which a run is ended.
    """

    name: str
    framework: str
    arguments: tuple[str, ...]
    store: str = ""
    redis: str = ""
    rabbitmq: bool = False
    limit: float = 3600


SUITES = (
    Suite(
        name="celery-unit",
        framework="celery",
        arguments=("t/unit", "-n", "2", "--dist", "loadfile", "--timeout", "120"),
        store="memory",
    ),
    Suite(
        name="celery-integration",
        framework="celery",
        arguments=("t/integration", "--timeout", "300"),
        redis="variables",
    ),
    Suite(
        name="dramatiq",
        framework="dramatiq",
        arguments=("tests", "-o", "addopts=", "--timeout", "120"),
        redis="usual",
        rabbitmq=True,
    ),
)

EXTRAS = {
    "celery": "auth azureblockblob django eventlet gcs gevent memcache mongodb msgpack pydantic pymemcache "
    "redis solar sqlalchemy tblib yaml",
    "dramatiq": "gevent rabbitmq redis watch",
}
"""What each framework is installed with, so that few tests are skipped."""

TOOLS = {
    "celery": "boto3 fakeredis[lua] freezegun moto pytest pytest-celery pytest-click pytest-order "
    "pytest-rerunfailures pytest-subtests pytest-timeout pytest-xdist",
    "dramatiq": "pytest pytest-benchmark pytest-timeout",
}
"""What each framework's tests need beside it."""
