"""Tables as data, printed as aligned text or as Markdown; needs no other package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Table"]


@dataclass(frozen=True)
class Table:
    """A table of texts.

    Parameters
    ----------
    title
        One line above it.
    columns
        Headings.
    rows
        One text per column.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def text(self) -> str:
        """Return it aligned, for any terminal or file."""
        lines = [self.columns, *self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.columns))]
        heading, *body = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        ]
        return "\n".join([self.title, "", heading, "  ".join("-" * width for width in widths), *body])

    def markdown(self) -> str:
        """Return it as a Markdown table, without the title."""
        return "\n".join(map(_markdown_line, [self.columns, tuple("---" for _ in self.columns), *self.rows]))


def _markdown_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
