"""What is said where a framework or a store's driver is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

HIDE = "import sys; sys.modules.update(dict.fromkeys(sys.argv[1].split(',')))"
OPEN = "from singleflight.stores import open_store; open_store({!r})"


def said(missing: str, statement: str, error: str) -> str:
    """Return how the error reads that a statement raises while packages are hidden."""
    program = f"{HIDE}\ntry:\n    {statement}\nexcept {error} as error:\n    print(error)"
    done = subprocess.run(
        [sys.executable, "-c", program, missing], capture_output=True, text=True, timeout=60, check=False
    )
    assert not done.stderr
    return done.stdout


@pytest.mark.parametrize("error", ["ImportError", "ValueError"])
@pytest.mark.parametrize(
    ("missing", "statement", "package", "extra"),
    [
        ("celery", "from singleflight.celery import install", "celery", "celery"),
        ("celery", "from singleflight.celery.errors import Skipped", "celery", "celery"),
        ("dramatiq", "from singleflight.dramatiq import install", "dramatiq", "dramatiq"),
        ("redis", OPEN.format("redis://127.0.0.1:1/0"), "redis", "redis"),
        ("sqlalchemy", OPEN.format("sqlite:///leases.db"), "sqlalchemy", "sql"),
        ("psycopg,psycopg2,pg8000", OPEN.format("postgresql://127.0.0.1:1/db"), "psycopg", "sql"),
        ("boto3", OPEN.format("dynamodb://leases"), "boto3", "dynamodb"),
        (
            "prometheus_client",
            "from singleflight.metrics import prometheus; prometheus()",
            "prometheus_client",
            "prometheus",
        ),
    ],
)
def test_a_missing_package_is_named_with_the_line_to_type(
    missing: str, statement: str, package: str, extra: str, error: str
) -> None:
    """The error is an ImportError, for those who try, and a ConfigurationError, as all wrong set-ups are."""
    assert said(missing, statement, error).startswith(
        f'{package} is not installed; type: pip install "singleflight-tasks[{extra}]"'
    )


def test_what_a_framework_itself_misses_is_told_as_it_is() -> None:
    """To install our extra would not mend a broken installation of Celery."""
    text = said("kombu", "from singleflight.celery import install", "ImportError")

    assert "kombu" in text
    assert "singleflight-tasks" not in text
