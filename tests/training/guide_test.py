"""What a training tells its reader: what it begins with, what figures mean, what to try next."""

import re
import types

import numpy as np
import scipy.sparse as sp

from xmc_jax import config as configs
from xmc_jax.config.defaults import SOURCES
from xmc_jax.training import guide


class _Split(list):
  """Some points of a data set: their texts, and their labels as CSR."""

  def __init__(self, texts, truth):
    super().__init__(texts)
    self.texts, self.truth = texts, sp.csr_matrix(np.array(truth))


def _run(texts, truth, held_out=2):
  counts = {"train": {"texts": 1200}, "test": {"texts": 30}, "labels": {"texts": 3}}
  names = ["window manager", "sound\n", "x" * 80]
  manifest = {"name": "mine", "counts": counts, "notices": ["a guess"]}
  dataset = types.SimpleNamespace(manifest=manifest, train=_Split(texts, truth), label_names=names)
  config = types.SimpleNamespace(
    train=types.SimpleNamespace(num_epochs=5), eval=types.SimpleNamespace(metric="P@1")
  )
  return types.SimpleNamespace(
    dataset=dataset,
    config=config,
    data=types.SimpleNamespace(validation=range(held_out), num_known=0),
    batches=types.SimpleNamespace(steps_per_epoch=9, rows=range(1198)),
    method=types.SimpleNamespace(batch=types.SimpleNamespace(labels="in_batch")),
  )


def test_a_training_begins_with_its_data_in_words():
  run = _run(["", "without labels", "an example"], [[1, 0, 0], [0, 0, 0], [1, 1, 1]])
  assert guide.of_data(run.dataset).splitlines() == [
    "mine: 1,200 texts to learn from and 30 to test with, 3 labels",
    "for instance «an example» has the labels «window manager», «sound» and 1 more",
    "note: a guess",
  ]
  assert guide.of_training(run) == (
    "training: 5 epochs of 9 steps on 1,198 texts, against the labels of each batch; 2 texts are held out, "
    "to keep the parameters that are best on them (by P@1)"
  )


def test_data_without_an_example_and_without_held_out_texts():
  run = _run(["no label"], [[0, 0, 0]], held_out=0)
  assert guide.of_data(run.dataset).splitlines()[1:] == ["note: a guess"]
  told = "training: 5 epochs of 9 steps on 1,198 texts, against the labels of each batch"
  assert guide.of_training(run) == told
  (example,) = guide._example(_run(["long " * 20], [[0, 0, 1]]).dataset)
  assert example == f"for instance «{'long ' * 12}…» has the label «{'x' * 60}…»"


def test_every_figure_of_a_table_is_explained():
  rankings = ["hybrid", "encoder", "classifier", "fused", *SOURCES]
  found = guide.meanings(configs.METRICS, rankings).splitlines()
  explained = [re.split(r"  +", line.strip()) for line in found]
  kinds = dict.fromkeys(f"{name.partition('@')[0]}@k" for name in configs.METRICS)
  assert [name for name, _ in explained] == [*kinds, *(name.replace("_", " ") for name in rankings)]
  assert guide.meanings(["P@1", "P@5"], ["hybrid"]) == "  P@k  of the first k labels, how many are right"
