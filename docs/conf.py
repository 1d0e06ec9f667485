"""Settings of the documentation: ``make docs`` builds it into build/docs."""

from __future__ import annotations

from pathlib import Path

from millstream import __version__
from millstream.cli.reference import PAGES

project = "Millstream"
copyright = "the Millstream authors"  # noqa: A001 - the name that Sphinx reads
release = __version__
extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
suppress_warnings = ["myst.xref_missing", "misc.highlighting_failure"]  # links to the tree's own files, such as tests
html_theme = "furo"
html_title = "Millstream"
html_show_sourcelink = False

_generated = Path(__file__).parent / "reference" / "generated"
_generated.mkdir(exist_ok=True)
for _name, _page in PAGES.items():
    (_generated / _name).write_text(_page(), "utf-8")
