"""DEXML's step against all labels in PyTorch: Hugging Face's model with the papers' gradient cache."""

import numpy as np
import torch
import transformers

from xmc_jax.training import optimizer
from xmc_jax.types import Batch

TOTAL_STEPS = 1000  # length of the learning rate schedule


class Torch:
  """Trains Hugging Face's model in PyTorch, with the gradient cache of the papers' code.

  Args:
    problem: what to train.
    chunk: number of labels encoded at once.
    to_longest: sorts labels by length and pads a chunk to its longest text; otherwise to max_length.
    device: PyTorch's name of the device, 'cpu' or 'cuda'.
  """

  def __init__(self, problem, chunk, to_longest, device="cpu"):
    self._device = device
    self.name = f"torch, chunk {chunk}, padded to {'the longest' if to_longest else 'max_length'}"
    self._problem, self._to_longest = problem, to_longest
    settings = problem.config
    self._autocast = torch.autocast(device, torch.bfloat16, enabled=settings.encoder.dtype == "bfloat16")
    self.model = transformers.AutoModel.from_pretrained(problem.folder).eval().to(device)  # no dropout
    self._optimiser = torch.optim.AdamW(
      {
        "params": [p for name, p in self.model.named_parameters() if _decays(name) == decays],
        "weight_decay": settings.train.weight_decay if decays else 0.0,
      }
      for decays in (True, False)
    )
    self._schedule, self._steps = optimizer.schedule(settings.train, TOTAL_STEPS), 0
    lengths = problem.labels.lengths
    order = np.argsort(lengths, kind="stable") if to_longest else np.arange(len(lengths))
    self._position = torch.from_numpy(np.argsort(order)).to(device)  # each label's place in the embeddings
    self._chunks = [self._tokens(problem.labels, order[i : i + chunk]) for i in range(0, len(order), chunk)]
    self.num_tokens = sum(ids.numel() for ids, _ in self._chunks)

  def _tokens(self, table, rows):
    """Returns ids and mask `[n, T]` of some rows of a table, on the device."""
    allowed = self._problem.config.data.max_length
    width = min(int(table.lengths[rows].max()), allowed) if self._to_longest else allowed
    tokens = table.gather(rows, width)
    ids, lengths = (torch.from_numpy(part).long().to(self._device) for part in (tokens.ids, tokens.lengths))
    return ids, (torch.arange(width, device=self._device) < lengths[:, None]).long()

  def _embed(self, ids, mask):
    with self._autocast:
      hidden = self.model(ids, mask)[0]
    if self._problem.config.encoder.pooling == "cls":
      pooled = hidden[:, 0].float()
    else:
      weights = mask[..., None].float()
      pooled = (hidden.float() * weights).sum(1) / weights.sum(1)
    return torch.nn.functional.normalize(pooled, dim=1)

  def _loss(self, queries, labels, batch):
    """Returns the decoupled softmax loss: true and filtered labels are not in the denominator."""
    ids, positives, excluded, weights = (
      torch.from_numpy(array).to(self._device)
      for array in (self._problem.batches.label_columns, batch.positives, batch.excluded, batch.weights)
    )
    scores = queries @ labels.T / self._problem.config.method.temperature
    hidden = torch.zeros(len(scores), scores.shape[1] + 1, dtype=torch.bool, device=self._device)
    for columns in (positives, excluded):
      places = torch.where(columns >= 0, self._position[ids[columns.long()].long()], scores.shape[1])
      hidden.scatter_(1, places, True)
    log_negatives = scores.masked_fill(hidden[:, :-1], -torch.inf).logsumexp(1, keepdim=True)
    drawn = scores.gather(1, self._position[ids[positives.long()].long()])
    return (weights * torch.nn.functional.softplus(log_negatives - drawn)).sum(1).mean()

  def step(self, batch: Batch) -> float:
    for group in self._optimiser.param_groups:
      group["lr"] = float(self._schedule(self._steps))
    self._optimiser.zero_grad()
    with torch.no_grad():
      labels = torch.cat([self._embed(*tokens) for tokens in self._chunks])
    labels.requires_grad_()
    loss = self._loss(self._embed(*self._tokens(self._problem.points, batch.rows)), labels, batch)
    loss.backward()
    start = 0
    for tokens in self._chunks:
      self._embed(*tokens).backward(labels.grad[start : start + len(tokens[0])])
      start += len(tokens[0])
    self._optimiser.step()
    self._steps += 1
    return loss.item()


def _decays(name):
  return not name.endswith("bias") and "layer_norm" not in name.lower()
