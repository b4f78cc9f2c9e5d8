"""Sphinx configuration."""

import re
import sys
from importlib.metadata import version as distribution_version
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

sys.path.insert(0, str(Path(__file__).resolve().parent))

import asv_runs

project = "mpslinalg"
author = "The mpslinalg developers"
copyright = "2026, The mpslinalg developers"
version = release = distribution_version("mpslinalg")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
exclude_patterns = ["_build", "_generated"]
default_role = "code"

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3

autodoc_typehints = "none"
add_module_names = False

html_theme = "pydata_sphinx_theme"
html_title = "mpslinalg"
html_theme_options = {"show_toc_level": 2, "navigation_with_keys": False}

_CODE_OR_MARKUP = re.compile(r"(`+[^`]*`+|^\s*(?:>>>|\.\.\.) .*)|([|*]|(?<=\w)_(?!\w))")


def plain(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Escape | * and _ outside of code: docstrings mean |det A|, not a substitution."""
    lines[:] = [_CODE_OR_MARKUP.sub(lambda m: m[1] or f"\\{m[2]}", line) for line in lines]
    if "Returns:" in lines:
        # Napoleon takes what stands before the first colon for a type; here that is nothing.
        first = lines.index("Returns:") + 1
        lines[first] = "    : " + lines[first].lstrip()


def asv_pages(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        published = asv_runs.publish(Path(app.outdir) / "asv")
        logging.getLogger(__name__).info(f"asv's pages of {', '.join(published) or 'no machine'}")


def setup(app: Sphinx) -> None:
    # Before napoleon, whose markup is meant.
    app.connect("autodoc-process-docstring", plain, priority=400)
    app.connect("build-finished", asv_pages)
