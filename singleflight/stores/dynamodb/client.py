"""The client of boto3 that a store sends its requests by."""

from __future__ import annotations

from typing import Any

from singleflight.errors import ConfigurationError


def make_client(region: str | None, endpoint: str | None, timeout: float) -> Any:
    """Return a boto3 client that waits at most ``timeout`` seconds and never retries by itself."""
    # Here, because it takes long to import. It ships no types.
    from boto3.session import Session  # type: ignore[import-untyped]  # noqa: PLC0415
    from botocore.config import Config  # type: ignore[import-untyped]  # noqa: PLC0415

    config = Config(
        connect_timeout=timeout,
        read_timeout=timeout,
        retries={"total_max_attempts": 1, "mode": "standard"},
        max_pool_connections=50,
        tcp_keepalive=True,
    )
    try:
        return Session().client("dynamodb", region_name=region, endpoint_url=endpoint, config=config)
    except ValueError as error:
        raise ConfigurationError(
            f"endpoint={endpoint!r} is no URL of a server ({error}); write one such as http://127.0.0.1:8000"
        ) from error
