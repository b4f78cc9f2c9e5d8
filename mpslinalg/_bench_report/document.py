"""A report as blocks, and as the one file that they make: HTML with its plots, or Markdown."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class Heading:
    text: str
    level: int = 2


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Lines:
    """Text that keeps its lines, as a terminal shows it."""

    text: str


@dataclass(frozen=True)
class Table:
    """Figures stand to the right, the first column to the left."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Plot:
    """An SVG, drawn by matplotlib."""

    name: str
    svg: str
    caption: str


Block = Heading | Paragraph | Lines | Table | Plot

_CODE = re.compile(r"`([^`]*)`")

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: 1px 10px; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
pre { background: #f5f5f5; padding: 1rem; overflow-x: auto; font-size: 12px; }
figure { margin: 1rem 0; } svg { max-width: 100%; height: auto; }
"""


def html(title: str, blocks: Sequence[Block]) -> str:
    """One page that needs no other file."""
    body = "\n".join(map(_html_block, blocks))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}'
        f"</title><style>{_STYLE}</style></head><body>\n<h1>{escape(title)}</h1>\n{body}\n"
        "</body></html>\n"
    )


def _html_block(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{escape(text)}</h{level}>"
        case Paragraph(text):
            code = _CODE.sub(r"<code>\1</code>", escape(text))
            return f"<p>{code}</p>"
        case Lines(text):
            return f"<pre>{escape(text)}</pre>"
        case Plot(_, svg, caption):
            return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"
        case Table(headings, rows):
            head = "".join(f"<th>{escape(cell)}</th>" for cell in headings)
            lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
            body = "".join(f"<tr>{line}</tr>\n" for line in lines)
            return f"<table><tr>{head}</tr>\n{body}</table>"


def markdown(title: str, blocks: Sequence[Block], plot: Callable[[Plot], str] | None = None) -> str:
    """`plot` says where a plot is found; none are shown without it: Markdown holds no pictures."""
    pieces = [f"# {title}"] if title else []
    for block in blocks:
        if isinstance(block, Plot):
            pieces += [f"![{block.caption}]({plot(block)})"] if plot else []
        else:
            pieces.append(_markdown_block(block))
    return "\n\n".join(pieces) + "\n"


def _markdown_block(block: Heading | Paragraph | Lines | Table) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {text}"
        case Paragraph(text):
            return text
        case Lines(text):
            return f"```text\n{text}\n```"
        case Table(headings, rows):
            rule = ["---", *["---:"] * (len(headings) - 1)]
            return "\n".join(
                f"| {' | '.join(_cell(x) for x in row)} |" for row in (headings, rule, *rows)
            )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
