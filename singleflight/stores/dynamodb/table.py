"""Which table a store is, and the client of boto3 that sends its requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from singleflight.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Table:
    """A table of DynamoDB, or of another server that speaks like it."""

    name: str
    region: str | None = None
    """Built in, what AWS's own tools would take."""
    endpoint: str | None = None
    """URL of another server than AWS."""

    @classmethod
    def from_url(cls, url: str) -> Table:
        """Return the table of ``dynamodb://table?region=...&endpoint=...``.

        Raises:
            ConfigurationError: for a URL with anything else in it.
        """
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        unknown = sorted(set(options) - {"region", "endpoint"})
        if not parts.netloc or "@" in parts.netloc or parts.path.strip("/") or unknown:
            wrong = f"the option {unknown[0]!r}" if unknown else "what stands where the table's name belongs"
            raise ConfigurationError(
                f"the URL of a DynamoDB store is dynamodb://table?region=...&endpoint=..., correct {wrong}; "
                "credentials come from where AWS's own tools take them"
            )
        return cls(parts.netloc, **options)

    @property
    def address(self) -> str:
        """Where the table is, for messages."""
        given = {"region": self.region, "endpoint": self.endpoint}
        query = "&".join(f"{name}={value}" for name, value in given.items() if value)
        return f"dynamodb://{self.name}" + (f"?{query}" if query else "")

    def client(self, timeout: float) -> Any:
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
            return Session().client(
                "dynamodb", region_name=self.region, endpoint_url=self.endpoint, config=config
            )
        except ValueError as error:
            raise ConfigurationError(
                f"endpoint={self.endpoint!r} is no URL of a server ({error}); write one such as http://127.0.0.1:8000"
            ) from error
