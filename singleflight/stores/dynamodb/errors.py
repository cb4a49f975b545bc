"""What the errors of botocore and of DynamoDB mean to whoever asked for a lease."""

from __future__ import annotations

import importlib.util
from typing import Any

from singleflight.errors import ConfigurationError, NotInstalled, SingleflightError, StoreUnavailable

# Other packages bring botocore alone. boto3 itself is imported where it is used, because that takes long.
if not all(map(importlib.util.find_spec, ("boto3", "botocore"))):
    raise NotInstalled.of("boto3", "dynamodb")

from botocore import exceptions  # type: ignore[import-untyped]  # it ships no types

driver: Any = exceptions
"""The errors of botocore, for those who need the package to be there."""

THROTTLED = {
    "ProvisionedThroughputExceededException",
    "ThrottlingException",
    "RequestLimitExceeded",
    "InternalServerError",
    "ServiceUnavailable",
    "TransactionConflictException",
}
"""Codes that say: not now."""

THROTTLING = {"ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded"}
"""Those among them that say: not so often."""

_RENEW = "the AWS credentials are refused, {}; renew them"
_SIGNATURE = "AWS refuses the signature: the secret is wrong, or this machine's clock is off"
_NOT_DYNAMODB = "what answers does not know DynamoDB's requests; correct the endpoint in the URL"
FAULTS = {
    "ExpiredTokenException": _RENEW.format("they have expired"),
    "ExpiredToken": _RENEW.format("they have expired"),
    "UnrecognizedClientException": _RENEW.format("AWS does not know them"),
    "InvalidClientTokenId": _RENEW.format("AWS does not know them"),
    "MissingAuthenticationTokenException": _RENEW.format("there are none"),
    "IncompleteSignatureException": _RENEW.format("they are incomplete"),
    "InvalidSignatureException": _SIGNATURE,
    "SignatureDoesNotMatch": _SIGNATURE,
    "RequestTimeTooSkewed": _SIGNATURE,
    "AccessDeniedException": (
        "the user may not do this; grant dynamodb:GetItem and dynamodb:PutItem on the table"
    ),
    "ResourceNotFoundException": (
        "there is no such table; make it once: `singleflight init '{address}'`, or "
        "singleflight.stores.dynamodb.DynamoStore.from_url(url).set_up()"
    ),
    "SerializationException": _NOT_DYNAMODB,
    "UnknownOperationException": _NOT_DYNAMODB,
    "InvalidAction": _NOT_DYNAMODB,
    "OptInRequired": "the AWS account has not signed up for DynamoDB in this region; correct the region",
    "AccessDenied": "the user may not do this; grant dynamodb:GetItem and dynamodb:PutItem on the table",
    "ValidationException": "the table is not ours, its only key must be the text lease_key",
}
"""Codes that say: never like this; and what to do about it."""

_NO_CREDENTIALS = {
    *("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "TokenRetrievalError"),
    *("UnauthorizedSSOTokenError", "SSOTokenLoadError"),
}
_WRONG_PLACE = {
    *("NoRegionError", "InvalidRegionError", "ParamValidationError", "UnknownEndpointError"),
}


def code_of(error: Any) -> str:
    """Return the server's code; empty if the error is not the server's."""
    return str(error.response.get("Error", {}).get("Code", "")) if _from_server(error) else ""


def passing(error: Any) -> bool:
    """Return whether the same request may work soon: throttling, an outage, a broken connection."""
    if not _from_server(error):
        return isinstance(error, driver.HTTPClientError | driver.ConnectionError)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return code_of(error) in THROTTLED or status >= 500  # noqa: PLR2004 - server errors begin there


def translated(error: BaseException, address: str, key: str) -> SingleflightError:
    """Return the error to raise from a driver's one."""
    fault = FAULTS.get(code_of(error), "").format(address=address)
    if type(error).__name__ in _NO_CREDENTIALS:
        fault = "no usable AWS credentials were found; set them as for any AWS tool"
    elif type(error).__name__ in _WRONG_PLACE:
        fault = "correct the URL, for example dynamodb://table?region=eu-west-1"
    if fault:
        return ConfigurationError(f"store {address}: {fault} ({error})")
    return StoreUnavailable(f"store {address} gave no answer about {key}: {error}")


def _from_server(error: object) -> bool:
    return isinstance(error, driver.ClientError)
