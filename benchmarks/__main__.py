"""Run the benchmarks: tables for people, JSON for machines, one picture for each table."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from benchmarks.support.plots import draw
from benchmarks.support.tables import show

if TYPE_CHECKING:
    from benchmarks.support.report import Report

NAMES = (
    "uncontended",
    "celery_overhead",
    "contention",
    "crowd",
    "failover",
    "dramatiq_overhead",
    "scale",
    "beat_scale",
)
RESULTS = Path(__file__).parent / "results"


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--json", "as_json", is_flag=True, help="Print the reports as JSON, and nothing else.")
@click.option("--quick", is_flag=True, help="Few rounds: shows that it works, measures little.")
@click.option(
    "--results", type=click.Path(path_type=Path), default=RESULTS, help="Where pictures and JSON go."
)
def main(names: tuple[str, ...], results: Path, *, as_json: bool, quick: bool) -> None:
    """Measure singleflight beside its peers, on a Valkey server of its own.

    NAME is uncontended, celery_overhead, contention, crowd, failover, dramatiq_overhead, scale or beat_scale;
    built in: all but the last one, which takes minutes.
    """
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        raise click.BadParameter(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    console, reports = Console(stderr=as_json), []
    for name in names or NAMES[:-1]:
        for report in _run(name, quick=quick):
            reports.append(report.as_json())
            show(report, console)
            results.mkdir(parents=True, exist_ok=True)
            (results / f"{report.name}.svg").write_text(draw(report))
            (results / f"{report.name}.json").write_text(json.dumps(report.as_json(), indent=1))
            console.print(f"  picture: {results / report.name}.svg\n", highlight=False)
    if as_json:
        click.echo(json.dumps(reports, indent=1))


def _run(name: str, *, quick: bool) -> list[Report]:
    reports: list[Report] = importlib.import_module(f"benchmarks.{name}").measure(quick=quick)
    return reports


if __name__ == "__main__":
    main()
