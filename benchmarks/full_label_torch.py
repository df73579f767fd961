"""DEXML's step against all labels in PyTorch: Hugging Face's model with the papers' gradient cache."""

import torch
import transformers

from benchmarks.accelerator import dexml_step
from xmc_jax.training import optimizer
from xmc_jax.types import Batch

_CHUNK = 4096  # labels that are encoded at a time
_TOTAL_STEPS = 1000  # length of the learning rate schedule


def decoupled_softmax(scores, positives, excluded, weights):
  """Returns the losses `[n]` of `[n, L]` scores: true and filtered labels are not in the denominator.

  Args:
    scores: `[n, L]` scores.
    positives, excluded: `[n, P]` and `[n, X]` columns of true and of filtered labels; -1 is none.
    weights: `[n, P]` weights of the positives, 0 where there is none.
  """
  positives, excluded = positives.long(), excluded.long()
  hidden = torch.zeros(len(scores), scores.shape[1] + 1, dtype=torch.bool, device=scores.device)
  for columns in (positives, excluded):
    hidden.scatter_(1, torch.where(columns >= 0, columns, scores.shape[1]), True)
  log_negatives = scores.masked_fill(hidden[:, :-1], -torch.inf).logsumexp(1, keepdim=True)
  margins = log_negatives - scores.gather(1, positives.clamp(min=0))
  return (weights * torch.nn.functional.softplus(margins)).sum(1)


class Torch:
  """Trains Hugging Face's model in PyTorch, with the gradient cache of the papers' code.

  Args:
    problem: what to train; all its texts have all their tokens, and vectors are those of the first token.
    folder: of the first weights.
    device: PyTorch's name of the device, 'cpu' or 'cuda'.
  """

  def __init__(self, problem: dexml_step.Problem, folder: str, device: str):
    settings = problem.config
    self._device, self._temperature = device, settings.method.temperature
    self._autocast = torch.autocast(device, torch.bfloat16, enabled=settings.encoder.dtype == "bfloat16")
    self._model = transformers.AutoModel.from_pretrained(folder).eval().to(device)  # no dropout
    self._optimiser = torch.optim.AdamW(
      {
        "params": [p for name, p in self._model.named_parameters() if _decays(name) == decays],
        "weight_decay": settings.train.weight_decay if decays else 0.0,
      }
      for decays in (True, False)
    )
    self._schedule, self._steps = optimizer.schedule(settings.train, _TOTAL_STEPS), 0
    (points,), (labels,) = problem.batch.queries, problem.batch.labels
    self._points = self._on_device(points.ids).long()
    self._chunks = self._on_device(labels.ids).long().split(_CHUNK)

  def _on_device(self, array):
    return torch.from_numpy(array).to(self._device)

  def _embed(self, ids):
    with self._autocast:
      hidden = self._model(ids, torch.ones_like(ids))[0]
    return torch.nn.functional.normalize(hidden[:, 0].float(), dim=1)

  def step(self, batch: Batch) -> float:
    for group in self._optimiser.param_groups:
      group["lr"] = float(self._schedule(self._steps))
    self._optimiser.zero_grad()
    with torch.no_grad():
      labels = torch.cat([self._embed(ids) for ids in self._chunks])
    labels.requires_grad_()
    scores = self._embed(self._points) @ labels.T / self._temperature
    known = map(self._on_device, (batch.positives, batch.excluded, batch.weights))
    loss = decoupled_softmax(scores, *known).mean()
    loss.backward()
    for ids, gradients in zip(self._chunks, labels.grad.split(_CHUNK)):
      self._embed(ids).backward(gradients)
    self._optimiser.step()
    self._steps += 1
    return loss.item()


def _decays(name):
  return not name.endswith("bias") and "layer_norm" not in name.lower()
