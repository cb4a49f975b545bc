"""Leases in DynamoDB."""

from singleflight.stores.dynamodb.store import DynamoStore

__all__ = ["DynamoStore"]
