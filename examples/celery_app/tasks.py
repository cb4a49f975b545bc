"""A small shop: a report that must not overlap itself, a button that is clicked too often, uploads."""

import time

import shop
from celery import Celery

from singleflight import Singleton, current_lease
from singleflight.celery import install

app = Celery("shop")
app.config_from_object("celeryconfig")
install(app)  # leases are kept in the broker's Redis
shop.create()


@app.task(singleton=Singleton(on_lost="abort"))
def nightly_report() -> str:
    """Take longer than beat's schedule allows: ticks that meet a running report are skipped."""
    lease = current_lease()
    with shop.work("nightly_report", fence=lease.fence):
        for _chapter in range(7):
            lease.check()  # a worker that was paused for too long stops here, instead of doing it twice
            time.sleep(1)
        # The last word is the database's: what comes with an old fence is refused.
        return "saved" if shop.save_report("all is well", lease.fence) else "a later report was there"


@app.task(singleton=Singleton(by="account_id", on_conflict="coalesce"))
def recalculate(account_id: int, reason: str = "") -> int:
    """Ten clicks: one runs, and one more afterwards, which sees what came in while the first ran.

    It has the arguments of the first click that met a run, so it reads the data itself.

    ``reason`` is no part of the key: the same account for another reason is the same work.
    """
    with shop.work("recalculate", f"account {account_id}, {reason}"):
        time.sleep(1)
    return account_id


@app.task(singleton=Singleton(by=(), on_conflict="defer"))
def import_prices(name: str) -> str:
    """One import at a time; the others wait, and none is left out."""
    with shop.work("import_prices", name):
        time.sleep(1)
    return name


@app.task(singleton=Singleton(by="currency", window=60, skip_result="fresh enough"))
def fetch_rates(currency: str) -> str:
    """Ask the bank at most once a minute; a skipped step returns ``skip_result``, and its chain goes on."""
    with shop.work("fetch_rates", currency):
        return "fetched"


@app.task
def publish_prices(rates: str) -> str:
    """Run after `fetch_rates`, in a chain; a task without ``singleton`` is left alone."""
    return f"prices published, rates {rates}"
