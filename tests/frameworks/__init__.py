"""The frameworks' own test suites, with singleflight installed: ``./dev frameworks``.

The released sources of Celery and Dramatiq come from the package index; nothing of theirs is kept here. Each
suite runs four times: as it is, with `install` on every app or broker, and with every task a singleton,
observed and guarded. What differs from the first run is either a fault of ours or stands, with its reason, in
``docs/frameworks.md``.
"""
