"""Writes HTML reports: the training and quality of one run, and a comparison of several runs.

write      writes report/index.html of one run
compare    writes compare.html of several runs, and prints their table on the console
"""

from xmc_jax.report.comparison import compare
from xmc_jax.report.one_run import write

__all__ = ["compare", "write"]
