"""Runs the model in one thread: joins waiting requests to batches, and bounds how many wait.

JAX never runs in the server's event loop, so that the server answers while the model works.
"""

import collections
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np

from xmc_jax.data import Dataset
from xmc_jax.runs.best_labels import LabelRequest
from xmc_jax.runs.model import Model
from xmc_jax.serve.options import Limits

# Labels are ranked this deep, or as deep as the limit allows: each depth may be a compilation.
_FEW_LABELS = 10


# A label of a text: 'id', 'key', 'text', 'score' and, if it was asked for, 'why', the reasons.
Label = dict[str, Any]


class Busy(Exception):
  """Refuses a request that cannot wait."""


class _Job(NamedTuple):
  """Holds what waits: texts, and the labels that each gets; k = 0 asks for embeddings."""

  texts: Sequence[str]
  request: LabelRequest
  answer: Future


class ModelWorker:
  """Answers requests by a model, one batch after the other, in a thread of its own.

  Args:
    model: predicts and embeds; meanwhile one other thread may call its `learn`, and nothing else may use it.
    limits: how many texts wait, and how many form a batch.

  Attributes:
    model, limits: as given; `max_k` is at most the number of labels.
    num_waiting: the number of texts that wait, without those that the model works on.
    on_batch: called in the worker's thread after each batch, with its number of texts and its seconds.
  """

  def __init__(self, model: Model, limits: Limits):
    limits.check()
    self.model = model
    self.limits = limits._replace(max_k=min(limits.max_k, len(model.labels)))
    self.on_batch: Callable[[int, float], None] = lambda texts, seconds: None
    self._changed = threading.Condition()
    self._jobs: collections.deque[_Job] = collections.deque()
    self.num_waiting = 0
    self._closed = False
    self._many = False  # whether the last batch joined several requests: then more are likely to come
    self._thread = threading.Thread(target=self._work, name="model", daemon=True)
    self._ready: Future = Future()

  @property
  def is_ready(self) -> bool:
    """Returns whether the model is warm, and the worker has not ended."""
    return self._ready.done() and self._thread.is_alive()

  def start(self) -> Future:
    """Starts the thread, which warms the model up; returns a future that is done when it is ready."""
    with self._changed:
      if self._thread.ident is None:
        self._thread.start()
    return self._ready

  def predict(self, texts: Sequence[str], request: LabelRequest) -> Future:
    """Queues texts for their best labels; a threshold does not count.

    Returns:
      A future of a list of labels for each text, best first.

    Raises:
      Busy: too many texts wait, or the worker is stopping.
    """
    return self._submit(_Job(texts, request, Future()))

  def embed(self, texts: Sequence[str]) -> Future:
    """Queues texts for their embeddings; returns a future of `[n, D]` float32. Raises Busy as `predict`."""
    return self._submit(_Job(texts, LabelRequest(0), Future()))

  def close(self) -> None:
    """Refuses what waits, and new texts from now on; the thread ends after its batch."""
    with self._changed:
      self._closed = True
      for job in self._jobs:
        if job.answer.set_running_or_notify_cancel():
          job.answer.set_exception(Busy("the server is stopping"))
      self._jobs.clear()
      self.num_waiting = 0
      self._changed.notify()

  def join(self, timeout: float) -> bool:
    """Waits for the thread to end after `close`; returns whether it has ended."""
    if self._thread.ident is not None:
      self._thread.join(timeout)
    return not self._thread.is_alive()

  def _submit(self, job: _Job) -> Future:
    self.start()  # where the application is mounted in another one, nothing else does
    with self._changed:
      if self._closed:
        raise Busy("the server is stopping")
      # An idle worker takes any request, also one of more texts than may wait.
      if self._jobs and self.num_waiting + len(job.texts) > self.limits.max_waiting_texts:
        most = self.limits.max_waiting_texts
        raise Busy(f"the server is busy: {self.num_waiting} texts wait, and at most {most} may")
      self._jobs.append(job)
      self.num_waiting += len(job.texts)
      self._changed.notify()
    return job.answer

  def _work(self) -> None:
    try:
      most = max(self.limits.max_texts, self.limits.max_batch_texts)
      self.model.warm(most, (_FEW_LABELS, self.limits.max_k))
    except BaseException as error:
      self.close()
      self._ready.set_exception(error)
      return
    self._ready.set_result(None)
    while batch := self._next_batch():
      live = [job for job in batch if job.answer.set_running_or_notify_cancel()]
      start = time.perf_counter()
      for alike in _alike(live):
        self._answer(alike)
      num_texts = sum(len(job.texts) for job in live)
      if num_texts:
        self.on_batch(num_texts, time.perf_counter() - start)

  def _next_batch(self) -> list[_Job]:
    """Waits for requests; returns those of the next batch, or none if the worker has ended."""
    most = self.limits.max_batch_texts
    with self._changed:
      self._changed.wait_for(lambda: self._jobs or self._closed)
      if self._many:  # a client that is alone never waits
        self._changed.wait_for(lambda: self.num_waiting >= most or self._closed, self.limits.max_wait_seconds)
      batch: list[_Job] = []
      while self._jobs and (not batch or sum(len(job.texts) for job in (*batch, self._jobs[0])) <= most):
        batch.append(self._jobs.popleft())
        self.num_waiting -= len(batch[-1].texts)
      self._many = len(batch) > 1
      return batch

  def _answer(self, jobs: Sequence[_Job]) -> None:
    """Answers requests of one kind together; if that fails, each alone, so that one ends no other."""
    texts = [text for job in jobs for text in job.texts]
    ends = np.cumsum([len(job.texts) for job in jobs])
    try:
      answers = self._predicted(texts, jobs) if jobs[0].request.k else self.model.embed(texts)
    except BaseException as error:
      if len(jobs) == 1:
        jobs[0].answer.set_exception(error)
        return
      for job in jobs:
        self._answer([job])
      return
    for job, end in zip(jobs, ends):
      part = answers[end - len(job.texts) : end]
      k = job.request.k
      job.answer.set_result([labels[:k] for labels in part] if k else part)

  def _predicted(self, texts: Sequence[str], jobs: Sequence[_Job]) -> list[list[Label]]:
    """Returns labels of each text, as many as the most greedy of the requests wants, or more."""
    wanted = max(job.request.k for job in jobs)
    k = min(_FEW_LABELS, self.limits.max_k) if wanted <= _FEW_LABELS else self.limits.max_k
    # Reasons cost time for each label, so only labels that are wanted get them.
    k = min(k, len(self.model.labels))  # labels that were learnt may have been forgotten
    request = jobs[0].request._replace(k=k)
    dataset, (ids, scores, names, *reasons) = self.model.ranked(texts, request, wanted)
    found: list[list[Label]] = []
    for row, of_text in enumerate(names):
      labels = zip(ids[row].tolist(), of_text, scores[row].tolist())
      found.append([_label(dataset, *label) for label in labels])
      for label, why in zip(found[row], reasons[0][row] if reasons else ()):
        label["why"] = why
    return found


def _label(dataset: Dataset, label: int, name: str, score: float) -> Label:
  notation = dataset.notation(label)
  found = {"id": label, "key": dataset.label_keys[label], "text": name, "score": score}
  return {**found, "notation": notation} if notation else found


def _alike(jobs: Sequence[_Job]) -> list[list[_Job]]:
  """Groups requests that the model can answer together: those that differ in the number of labels alone."""
  kinds: dict[tuple, list[_Job]] = {}
  for job in jobs:
    kinds.setdefault((job.request.k > 0, *job.request[2:]), []).append(job)
  return list(kinds.values())
