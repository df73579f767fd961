"""Entry point of `python -m xmc_jax` and of the installed command `xmc-jax`: runs main.py."""

import runpy


def run() -> None:
  runpy.run_module("xmc_jax.main", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
  run()
