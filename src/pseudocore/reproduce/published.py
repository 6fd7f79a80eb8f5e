"""The numbers printed in the papers: `published.csv`, with where each stands and what is known
against it.

Accuracies are fractions. `section` is the paper's; the texts the numbers were taken from have no
pages. `num_seeds` is empty where the paper does not say over how many its `sd` is taken.
"""

import csv
import functools
from importlib.resources import files
from typing import NamedTuple

from pseudocore.assembly.presets import sheet


class Printed(NamedTuple):
    """One number of one table."""

    paper: str
    table: str
    section: str
    num_seeds: int | None
    data: str
    model: str
    """`a->b`: made with network a, evaluated with network b."""
    budget: str
    """`ipc10`, a share of the training set as `0.5%`, or `full`."""
    method: str
    inference: str
    """How the coreset was used; `+aug`: it was made with augmentation."""
    metric: str
    mean: float
    sd: float | None
    caveat: str

    @property
    def table_name(self) -> str:
        """`kim2022-1`; the paper alone where only a summary of it is known."""
        return self.paper if self.table == "summary" else f"{self.paper}-{self.table}"

    @property
    def source(self) -> str:
        """`Kim et al. 2022, arXiv 2210.06205, Table 1 (Section 5.2)`."""
        table = "its summary" if self.table == "summary" else f"Table {self.table}"
        section = f" (Section {self.section})" if self.section else ""
        return f"{sheet(self.paper)['paper']}, {table}{section}"


@functools.cache
def printed() -> tuple[Printed, ...]:
    """Every number, in the order of the papers."""
    text = files("pseudocore.reproduce").joinpath("published.csv").read_text(encoding="utf-8")
    return tuple(_row(row) for row in csv.DictReader(text.splitlines()))


def _row(row: dict[str, str]) -> Printed:
    numbers = {
        "num_seeds": int(row["num_seeds"]) if row["num_seeds"] else None,
        "mean": float(row["mean"]),
        "sd": float(row["sd"]) if row["sd"] else None,
    }
    return Printed(**{**row, **numbers})  # type: ignore[arg-type]
