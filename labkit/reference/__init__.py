"""Reference pages: each entry is a line, and the page is made by running every line.

    page = reference.tilelang(here)     # or reference.cudnn_graph()
    page.check()                        # fails if a line fails

`results.everything` sets the figures of this machine's last run beside the recorded ones.
"""

from labkit.reference.cudnn_lines import cudnn_graph, cudnn_steps
from labkit.reference.page import Page
from labkit.reference.tilelang_lines import tilelang

__all__ = ["Page", "cudnn_graph", "cudnn_steps", "tilelang"]
