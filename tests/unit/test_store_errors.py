"""A database that can never do what leases need is no outage, for which runs would wait for ever."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy
from botocore.exceptions import ClientError  # type: ignore[import-untyped]

from singleflight.errors import ConfigurationError, StoreUnavailable
from singleflight.stores.dynamodb.errors import translated as of_dynamodb
from singleflight.stores.sql.errors import translated as of_sql


class Answer(Exception):
    """An error of a driver, with PostgreSQL's code."""

    def __init__(self, code: str) -> None:
        super().__init__("the server's words")
        self.sqlstate = code


@pytest.mark.parametrize(
    "statement", ["SELECT unknown_function()", "SELEKT 1", "SELECT 1 FROM t RETURNING x"]
)
def test_a_statement_that_sqlite_does_not_know_is_permanent(statement: str) -> None:
    """As an old library answers; the error of the real driver."""
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as connection, pytest.raises(sqlalchemy.exc.DBAPIError) as caught:
        connection.execute(sqlalchemy.text(statement))
    engine.dispose()

    assert isinstance(of_sql(caught.value, "here", "key"), ConfigurationError)


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        ("42883", ConfigurationError),
        ("42601", ConfigurationError),
        ("0A000", ConfigurationError),
        ("22003", ConfigurationError),
        ("1305", ConfigurationError),
        ("57P01", StoreUnavailable),
        ("53300", StoreUnavailable),
        ("40001", StoreUnavailable),
        ("25006", StoreUnavailable),
        ("", StoreUnavailable),
    ],
)
def test_a_databases_code_says_whether_waiting_helps(code: str, meaning: type[Exception]) -> None:
    """An unknown function or statement never heals; a restart, a full house or a fail-over does."""
    error: Any = sqlalchemy.exc.OperationalError("a statement", {}, Answer(code))

    assert type(of_sql(error, "here", "key")) is meaning


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        ("UnknownOperationException", ConfigurationError),
        ("SerializationException", ConfigurationError),
        ("ValidationException", ConfigurationError),
        ("ThrottlingException", StoreUnavailable),
        ("InternalServerError", StoreUnavailable),
        ("LimitExceededException", StoreUnavailable),
    ],
)
def test_what_amazon_answers_says_whether_waiting_helps(code: str, meaning: type[Exception]) -> None:
    """An endpoint that is no DynamoDB stays none; throttling passes."""
    error = ClientError({"Error": {"Code": code, "Message": "words"}}, "PutItem")

    assert type(of_dynamodb(error, "here", "key")) is meaning
