"""Rows of RAE-XMC's claim, 11: beside DEXML, each with its own preset and as many epochs."""

from experiments import rae_xmc
from experiments.claims.common import DEXML, short

REAL = {"memory": {"rae_xmc": short(rae_xmc.PRESETS["debian"]), "dexml": DEXML}}
