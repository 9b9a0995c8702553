"""The results of a validation or test as a table on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def print_results(results: Sequence[Mapping[str, float]], stage: str) -> None:
    """Print a row for each metric, and a column for each loader.

    >>> print_results([{"loss": 0.25}], "test")
    ────────────────────────
      test metric    value
    ────────────────────────
      loss            0.25
    ────────────────────────
    """
    if not any(results):
        return
    suffix = "/dataloader_idx_"
    names = list(dict.fromkeys(name.partition(suffix)[0] for each in results for name in each))
    heads = [f"{stage} metric", *([f"loader {i}" for i in range(len(results))] if len(results) > 1 else ["value"])]
    rows = []
    for name in names:
        cells = []
        for number, each in enumerate(results):
            value = each.get(f"{name}{suffix}{number}", each.get(name))
            cells.append("" if value is None else f"{value:.6g}")
        rows.append([name, *cells])
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    line = "─" * (sum(widths) + 4 * len(widths))
    print(line)
    for number, row in enumerate([heads, *rows]):
        shown = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print("  " + "    ".join(shown))
        if number == 0:
            print(line)
    print(line)
