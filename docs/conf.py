import importlib.metadata

project = "trio_envserve"
author = "The trio_envserve authors"
copyright = "The trio_envserve authors"
release = importlib.metadata.version("trio-envserve")
version = release

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build", "_generated"]
nitpicky = True

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"

html_theme = "furo"
html_title = f"trio_envserve {release}"
