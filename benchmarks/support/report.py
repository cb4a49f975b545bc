"""What a benchmark found: rows of numbers, and the bars that they are held to."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Bar:
    """A limit on one number of this very run."""

    text: str
    value: float
    limit: float

    @property
    def holds(self) -> bool:
        """Whether the number keeps the limit."""
        return self.value <= self.limit


@dataclass(slots=True)
class Report:
    """One table of a benchmark; every row has all columns, and the first column names it."""

    name: str
    title: str
    columns: Sequence[str]
    plot: str
    """The column that is drawn."""
    rows: list[dict[str, float | str | None]] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, *values: float | str | None) -> None:
        """Add a row; None is a number that does not exist here."""
        self.rows.append(dict(zip(self.columns, values, strict=True)))

    def bar(self, text: str, value: float, limit: float) -> None:
        """Hold a number to a limit."""
        self.bars.append(Bar(text, value, limit))

    def as_json(self) -> dict[str, Any]:
        """Return it for machines."""
        return {**asdict(self), "bars": [asdict(bar) | {"holds": bar.holds} for bar in self.bars]}
