"""Press every button of the shop too often, and say what came of it: ``python press.py``."""

from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult
from tasks import fetch_rates, import_prices, publish_prices, recalculate


def outcome(result: AsyncResult) -> str:
    """Wait for a result; a skipped run ends as REVOKED, and its error says whose duplicate it was."""
    try:
        return f"ran: {result.get(timeout=60)}"
    except TaskRevokedError as error:
        return f"skipped: {error}"


clicks = [recalculate.delay(7, reason=f"click {n}") for n in range(1, 11)]
uploads = [import_prices.delay(f"prices-{n}.csv") for n in range(1, 4)]
chains = [(fetch_rates.s("EUR") | publish_prices.s()).delay() for _ in range(2)]
pressed = {"recalculate(7)": clicks, "import_prices": uploads, "fetch_rates | publish_prices": chains}
for name, results in pressed.items():
    for result in results:
        print(f"{name}: {outcome(result)}")
