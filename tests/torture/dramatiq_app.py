"""The actors, for `dramatiq tests.torture.dramatiq_app`."""

from __future__ import annotations

from tests.torture.messages_app import make_dramatiq

actors = make_dramatiq()
