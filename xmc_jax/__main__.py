"""`python -m xmc_jax`, and `xmc-jax` where pip has installed it: the command line of main.py."""

import runpy


def run() -> None:
  runpy.run_module("xmc_jax.main", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
  run()
