"""A report for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console

    from benchmarks.support.report import Report

EXACT = 100
"""From here on, decimals say nothing."""


def show(report: Report, console: Console) -> None:
    """Print the table, and whether each bar holds."""
    table = Table(title=report.title, title_justify="left", title_style="bold")
    for place, column in enumerate(report.columns):
        table.add_column(column, justify="right" if place else "left")
    for row in report.rows:
        table.add_row(*(text_of(row[column]) for column in report.columns))
    console.print(table)
    for bar in report.bars:
        verdict = "[green]holds[/]" if bar.holds else "[red]does not hold[/]"
        console.print(f"  {verdict}: {bar.text}: {text_of(bar.value)} (bar: {text_of(bar.limit)})")
    for note in report.notes:
        console.print(f"  {note}", highlight=False)
    console.print()


def text_of(value: float | str | None) -> str:
    """Return a number in as many digits as mean something."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= EXACT else f"{value:.2f}"
