"""Opens the parameters of a run to test: the best on validation rows, or those of the last step."""

import contextlib
import shutil
from collections.abc import Iterator

from xmc_jax.distributed import runtime
from xmc_jax.runs import label_frequency
from xmc_jax.runs.fused import fit_fusion
from xmc_jax.runs.run import Run
from xmc_jax.storage import locks, run_folder
from xmc_jax.types import PyTree

_LOCK = ".last.lock"  # held by the process that uses the folder of the last step
_TESTS = "tests the last step in this folder; wait for it, or stop it"


@contextlib.contextmanager
def trained(run: Run, checkpoint: str) -> Iterator[tuple[Run, PyTree, PyTree, int]]:
  """Yields `(run, params, extra_state, step)`; the run's ranking files belong to these parameters.

  The run's own ranking files, such as the fusion of scores, were fitted to its best parameters. For the last
  parameters they are fitted again, in a folder that is removed afterwards.

  Args:
    run: the run.
    checkpoint: 'best', or 'last'.

  Raises:
    UserError: nothing has been saved yet, what was saved is damaged, or another process has this folder.
  """
  if checkpoint == "best":
    yield run, *run.trained()
    return
  found = run.trained(last=True)
  folder = run.workdir / run_folder.LAST
  run = run.ranking_in(folder)
  with contextlib.ExitStack() as stack:
    if runtime.is_main_process():
      stack.enter_context(locks.in_use(run.workdir, _LOCK, _TESTS))
      shutil.rmtree(folder, ignore_errors=True)  # left by a killed process
      folder.mkdir()
      stack.callback(shutil.rmtree, folder, ignore_errors=True)
    runtime.barrier("last")
    fit_fusion(run, *found[:2])
    label_frequency.fit(run, *found[:2])
    yield run, *found
