"""Runs that have no key, and so take no lease: what is said of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from singleflight.errors import ConfigurationError
from singleflight.log import logger

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from singleflight.key_rules import KeyRule


def key_of_run(
    rule: KeyRule,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    *,
    headers: Mapping[str, object],
    run_id: str,
    observing: bool,
) -> str | None:
    """Return the key of a run that a worker has got; None if it runs without a lease, which is logged.

    Args:
        rule: how calls of its task become keys.
        args, kwargs: its decoded arguments.
        headers: those of its message, for a ``by`` that asks for them.
        run_id: its id, for the log.
        observing: whether nothing may fail that would run without us.

    Raises:
        ConfigurationError: as `KeyRule.key`, unless ``observing``.
    """
    try:
        key = rule.key(args, kwargs, headers)
    except ConfigurationError as error:
        if not observing:
            raise
        logger.warning("%s[%s] runs without a lease, and would fail: %s", rule.task, run_id, error)
        return None
    if key is None:
        # The call raises its own TypeError, unless a decorator changes what the signature says.
        names = ", ".join(rule.signature.parameters)
        logger.warning("%s[%s] runs without a lease: its arguments do not fit (%s)", rule.task, run_id, names)
    return key
