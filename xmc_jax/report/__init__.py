"""Pages for people: what a run learnt and how good it is, and how several runs compare.

write      report/index.html of one run
compare    compare.html of several, and their table on the console
"""

from xmc_jax.report.comparison import compare
from xmc_jax.report.one_run import write

__all__ = ["compare", "write"]
