import importlib.metadata
import re
from typing import Any

project = "trio_envserve"
author = "The trio_envserve authors"
copyright = "The trio_envserve authors"
release = importlib.metadata.version("trio-envserve")
version = release

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
nitpicky = True
# Pages of others, whose indexes a build would have to download; the sockets of net; what
# the worker counts of model calls; the trace behind ``rollout.span``; and the inside of a
# simulated run.
nitpick_ignore_regex = [
    ("py:.*", r"(collections|contextlib|os|pathlib|random|trio)\..*"),
    ("py:.*", r"(trio_envserve\.net\.interface\.)?(ConnectionEvent|RouterSocket|DealerSocket)"),
    ("py:.*", r"trio_envserve\.core\.durations\.Durations"),
    ("py:.*", r"trio_envserve\.tracing\.Trace"),
    ("py:.*", r"trio_envserve\.lab\.(kit\.(network|events)|protocols\.world)\..*"),
]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure"]  # there is no lexer for CDDL

autodoc_member_order = "bysource"
autodoc_class_signature = "separated"  # objects come from open_server and open_client
autodoc_typehints = "description"

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
