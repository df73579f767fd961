"""What the settings of `config.method` must be together. Knows nothing of jax."""

from collections.abc import Iterator, Mapping


def faults(values: Mapping, largest: int) -> Iterator[str]:
  """What is wrong, line by line.

  Args:
    values: every setting by its dotted key, each legal by itself.
    largest: what a whole number may be at most.
  """
  yield from _temperature_faults(values)
  yield from _positive_faults(values)
  yield from _negative_faults(values)
  yield from _margin_faults(values)
  yield from _auxiliary_faults(values)
  yield from _cluster_faults(values, largest)
  yield from _pool_faults(values)
  yield from _picking_faults(values)
  yield from _prototype_faults(values)
  yield from _frequency_faults(values)
  yield from _graph_faults(values)


def _temperature_faults(values: Mapping) -> Iterator[str]:
  """Unit vectors need a small temperature, raw products one near 1; a bag's means are short, any will do."""
  unit, temperature = values["encoder.normalize"], values["method.temperature"]
  if values["method.allow_any_temperature"] or _of_cosines(values):
    return
  override = "or --config.method.allow_any_temperature=True if you mean it"
  if unit and temperature > 0.5:
    yield (
      f"method.temperature = {temperature} is too flat for unit vectors (encoder.normalize = True; at most "
      f"0.5): set --config.method.temperature=0.05, or --config.encoder.normalize=False, {override}"
    )
  if not unit and temperature < 0.5 and values["encoder.name"] != "bag":
    yield (
      f"method.temperature = {temperature} saturates raw dot products (encoder.normalize = False; at least "
      f"0.5): set --config.method.temperature=1, or --config.encoder.normalize=True, {override}"
    )


def _frequency_faults(values: Mapping) -> Iterator[str]:
  weight = values["eval.log_frequency"]
  if weight < 0 and weight != -1:
    yield f"eval.log_frequency = {weight}; set --config.eval.log_frequency=-1 to have it chosen, or 0 or more"
  if weight and not values["encoder.normalize"]:
    yield (
      f"eval.log_frequency = {weight} is for vectors of length 1, and encoder.normalize = False: raw "
      "products have learnt how frequent labels are; set --config.eval.log_frequency=0"
    )


def _positive_faults(values: Mapping) -> Iterator[str]:
  if values["method.positive_sampling"] != "uniform" and not values["method.num_positives"]:
    yield (
      f"method.positive_sampling = {values['method.positive_sampling']!r} has no effect when "
      "method.num_positives = 0: all are taken; set --config.method.num_positives=1"
    )


def _negative_faults(values: Mapping) -> Iterator[str]:
  for key in (f"method.num_{kind}_negatives" for kind in ("random", "hard", "fresh")):
    if values[key] and values["method.labels"] != "in_batch":
      yield (
        f"{key} = {values[key]} has no effect when method.labels = {values['method.labels']!r}; "
        f"set --config.{key}=0, or --config.method.labels=in_batch"
      )
  hard, listed = values["method.num_hard_negatives"], values["method.shortlist_size"]
  if hard > listed:
    yield (
      f"method.num_hard_negatives = {hard} is more than method.shortlist_size = {listed}; "
      f"set --config.method.shortlist_size={hard}"
    )


def _of_cosines(values: Mapping) -> bool:
  """Whether the loss has margins, and no temperature."""
  return values["method.loss"] in ("margin", "dynamic_margin")


def _margin_faults(values: Mapping) -> Iterator[str]:
  if _of_cosines(values) and not values["encoder.normalize"]:
    yield (
      f"method.loss = {values['method.loss']!r} compares cosines, and encoder.normalize = False; "
      "set --config.encoder.normalize=True"
    )
  counts = values["method.margin_positives"], values["method.num_positives"]
  if values["method.loss"] == "margin" and values["method.margin_mean"] == "all" and not any(counts):
    yield (
      "method.margin_mean = 'all' needs to know how many positives a row's mean is over, and "
      "method.margin_positives and method.num_positives = 0; set --config.method.margin_mean=existing, or "
      "--config.method.margin_positives=3"
    )
  least, most = values["method.margin_minimum"], values["method.margin_maximum"]
  if values["method.loss"] == "dynamic_margin" and least > most:
    yield (
      f"method.margin_minimum = {least} is more than method.margin_maximum = {most}; "
      f"set --config.method.margin_minimum={most} or less"
    )


def _prototype_faults(values: Mapping) -> Iterator[str]:
  terms = [f"method.{name}_weight" for name in ("prototype", "text", "reverse")]
  if not any(values[term] for term in terms):
    yield f"{', '.join(terms)} = 0: nothing is learnt from pairs; set --config.{terms[0]}=1"
  if not values[terms[0]] and not values["method.regulariser_weight"]:
    yield (
      "method.prototype_weight and method.regulariser_weight = 0: prototypes, by which labels are ranked, "
      "would not be trained; set --config.method.prototype_weight=1"
    )
  kind = values["method.centroids"]
  if values["method.exact_centroids"] and kind in ("none", "exact"):
    yield (
      f"method.exact_centroids = True has no effect when method.centroids = {kind!r}; "
      "set --config.method.exact_centroids=False"
    )
  if values["method.leave_batch_out"] and kind in ("none", "frozen"):
    why = "has no effect" if kind == "none" else "cannot take points out as the encoder embedded them once"
    yield (
      f"method.leave_batch_out = True {why} when method.centroids = {kind!r}; "
      "set --config.method.leave_batch_out=False, or --config.method.centroids=exact"
    )
  for switch, off, usual in (
    ("method.loss", "dynamic_margin", {"method.margin": 0.3}),
    ("method.loss", "margin", {"method.margin_minimum": 0.1, "method.margin_maximum": 0.3}),
    ("method.centroids", "frozen", {"method.centroid_momentum": 0.95}),
    ("method.centroids", "exact", {"method.centroid_momentum": 0.95}),
    ("method.regulariser_weight", 0, {"method.regulariser_margin": 0.1, "method.regulariser_hinge": True}),
  ):
    for key, value in usual.items():
      if values[switch] == off and values[key] != value:
        yield f"{key} = {values[key]} has no effect when {switch} = {off!r}; set --config.{key}={value}"


def _graph_faults(values: Mapping) -> Iterator[str]:
  names = values["method.graphs"]
  if len(set(map(str, names))) < len(names):
    yield f'method.graphs = {names!r:.60} names a graph twice; set --config.method.graphs="()" for all'
  if not all(isinstance(name, str) for name in names):
    yield f"method.graphs = {names!r:.60} must hold names; for instance --config.method.graphs=\"('links',)\""
  for key in ("method.query_graph_weights", "method.label_graph_weights"):
    if not all(type(weight) in (int, float) and 0 <= weight <= 1e6 for weight in values[key]):
      yield (
        f"{key} = {values[key]!r:.60} must hold numbers from 0 to 1,000,000; "
        f'for instance --config.{key}="(0.5,)"'
      )
  for switch, off, key, usual in (
    ("method.walk_hops", 0, "method.walk_restart", 0.8),
    ("method.walk_hops", 0, "method.walk_kept", 10),
    ("method.walk_hops", 0, "method.walk_sides", "both"),
    ("method.walk_hops", 0, "method.anchor_sampling", "uniform"),
    ("method.graph_pruning", False, "method.pruning_threshold", 0.0),
    ("method.graph_pruning", False, "method.pruning_by", "encoder"),
  ):
    if values[switch] == off and values[key] != usual:
      yield f"{key} = {values[key]} has no effect when {switch} = {off!r}; set --config.{key}={usual}"


def _auxiliary_faults(values: Mapping) -> Iterator[str]:
  names = ("num_label_clusters", "num_head_labels", "head_label_points")
  given = [name for name in names if values[f"method.{name}"]]
  if given and not values["encoder.normalize"]:
    yield (
      f"method.{given[0]} = {values[f'method.{given[0]}']}: what auxiliary vectors give has length 1, and "
      "encoder.normalize = False; set --config.encoder.normalize=True"
    )


def _cluster_faults(values: Mapping, largest: int) -> Iterator[str]:
  clusters = values["method.num_label_clusters"]
  if clusters & (clusters - 1):
    down = 1 << (clusters.bit_length() - 1)
    nearest = down if clusters - down <= 2 * down - clusters or 2 * down > largest else 2 * down
    yield (
      f"method.num_label_clusters = {clusters} is not a power of two; "
      f"the nearest that is: --config.method.num_label_clusters={nearest}"
    )
  if values["method.num_head_labels"] and values["method.head_label_points"]:
    yield (
      "method.num_head_labels and method.head_label_points both say which labels are frequent; "
      "set one of them: --config.method.head_label_points=0"
    )
  epochs = values["method.leaf_doubling_epochs"]
  if not all(type(epoch) is int and 0 <= epoch <= largest for epoch in epochs):
    yield (
      f"method.leaf_doubling_epochs = {epochs!r:.60} must hold whole numbers of epochs; "
      'for instance --config.method.leaf_doubling_epochs="(10,25)"'
    )


def _pool_faults(values: Mapping) -> Iterator[str]:
  size, labels = values["method.pool_size"], values["method.labels"]
  if size and labels != "in_batch":
    yield (
      f"method.pool_size = {size} has no effect when method.labels = {labels!r}; "
      "set --config.method.pool_size=0, or --config.method.labels=in_batch"
    )


def _picking_faults(values: Mapping) -> Iterator[str]:
  """Settings of UniDEC that others leave without effect."""
  of_unidec = values["method.name"] == "unidec"  # of others, methods/ refuses log_q itself
  if values["method.log_q"] and of_unidec and values["method.labels"] != "in_batch":
    yield (
      f"method.log_q = True has no effect when method.labels = {values['method.labels']!r}: every label is "
      "in the pool; set --config.method.log_q=False, or --config.method.labels=in_batch"
    )
  if values["method.log_q"] and of_unidec and values["method.positive_sampling"] != "uniform":
    yield (
      f"method.log_q = True takes positives for uniform, and method.positive_sampling = "
      f"{values['method.positive_sampling']!r}; set --config.method.positive_sampling=uniform"
    )
  without = {"method.classifier_dim": 0, "method.encoder_weight": 1}  # either is no classifiers
  for key, usual in {"method.binary_weight": 0.0, "method.classifier_loss": "same"}.items():
    for switch, off in without.items():
      if values[key] != usual and values[switch] == off:
        yield (
          f"{key} = {values[key]!r} has no effect: {switch} = {values[switch]} is no classifiers; "
          f"set --config.{key}={usual}"
        )
  for key in ("method.encoder_query_weight", "method.classifier_query_weight"):
    if values[key] != 0.5 and not values["method.symmetric"]:
      yield (
        f"{key} = {values[key]} has no effect when method.symmetric = False; set --config.{key}=0.5, or "
        "--config.method.symmetric=True"
      )
