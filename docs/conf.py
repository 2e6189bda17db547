import importlib.metadata
import re
from typing import Any

project = "trio_envserve"
author = "The trio_envserve authors"
copyright = "The trio_envserve authors"
release = importlib.metadata.version("trio-envserve")
version = release

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
nitpicky = True

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure"]  # there is no lexer for CDDL

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_title = f"trio_envserve {release}"


def add_toctrees(app: Any, docname: str, source: list[str]) -> None:
    """Make the contents at the side of the lists in the index, which a forge shows as lists."""
    if docname != "index":
        return
    for heading, links in re.findall(r"^### (.+)\n((?:\n|- .*\n)+)", source[0], re.MULTILINE):
        names = re.findall(r"^- \[.*?\]\((.+?)\.md\)", links, re.MULTILINE)
        contents = [":hidden:", ":maxdepth: 1", f":caption: {heading}", "", *names]
        source[0] += "\n".join(["", "```{toctree}", *contents, "```", ""])


def setup(app: Any) -> None:
    """As Sphinx calls a configuration."""
    app.connect("source-read", add_toctrees)
