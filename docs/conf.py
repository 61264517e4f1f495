"""How Sphinx builds the documentation: ``make docs``, into build/docs/html.

Neither building nor reading it needs a network.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import generate  # noqa: E402

import neuronx_cc  # noqa: E402

project = "open neuronx-cc"
author = "the open neuronx-cc authors"
copyright = f"2026, {author}"
version = release = neuronx_cc.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = []
nitpicky = True

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
# standard types and NumPy's, which have no page here, and aliases that only abbreviate
nitpick_ignore_regex = [("py:.*", r".*")]

html_theme = "furo"
html_title = f"open neuronx-cc {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False

generate.write(HERE)
