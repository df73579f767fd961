"""The model's thread: what it joins, what it refuses, and how it ends."""

import time

import pytest
from made_servers import Broken, StandIn

from xmc_jax.errors import UserError
from xmc_jax.runs.best_labels import LabelRequest
from xmc_jax.serve.options import Limits
from xmc_jax.serve.worker import Busy, ModelWorker


@pytest.fixture
def made():
  """Makes a model that is none, with a worker that has started, and ends workers."""
  workers = []

  def make(**limits):
    model = StandIn()
    workers.append(ModelWorker(model, Limits(**limits)))
    workers[-1].start().result(10)
    return model, workers[-1]

  yield make
  for worker in workers:
    worker.close()
    assert worker.join(10)


def held(model, worker):
  """Makes the model hold a first request, so that later ones wait."""
  model.goes_on.clear()
  first = worker.predict(["held"], LabelRequest(1))
  until = time.monotonic() + 10
  while not model.batches and time.monotonic() < until:
    time.sleep(0.001)
  return first


def test_requests_that_wait_are_joined_and_each_gets_its_own(made):
  model, worker = made()
  held(model, worker)
  asked = [["a"] * 3, ["bb"], ["ccc", "d"]]
  answers = [worker.predict(texts, LabelRequest(k)) for texts, k in zip(asked, (2, 5, 1))]
  answers += [worker.embed(["four"]), worker.predict(["x"], LabelRequest(4, explain=True))]
  assert worker.num_waiting == 8
  model.goes_on.set()
  found = [answer.result(10) for answer in answers]
  assert model.batches == [(1, 10, False), (6, 10, False), (1, 0, False), (1, 10, True)]
  for texts, k, labels in zip(asked, (2, 5, 1), found):
    assert [len(of_text) for of_text in labels] == [k] * len(texts)
    assert [of_text[0]["score"] for of_text in labels] == pytest.approx(
      [1 / (1 + len(text)) for text in texts]
    )
  assert found[3].shape == (1, 2) and found[3][0, 0] == 4
  assert len(found[4][0]) == 4 and found[4][0][3]["why"]["sources"] == {"memory": 1}
  assert "why" not in found[0][0][0]
  assert worker.num_waiting == 0


def test_a_batch_has_at_most_so_many_texts(made):
  model, worker = made(max_batch_texts=4)
  held(model, worker)
  answers = [worker.embed(["a"] * size) for size in (3, 1, 2, 9, 1)]
  model.goes_on.set()
  assert [len(answer.result(10)) for answer in answers] == [3, 1, 2, 9, 1]
  assert [size for size, *_ in model.batches[1:]] == [4, 2, 9, 1]  # nine come in one request


@pytest.mark.parametrize("k, depth", [(1, 10), (10, 10), (11, 30), (30, 30)])
@pytest.mark.parametrize("explain", [False, True])
def test_labels_are_ranked_in_few_depths(made, k, depth, explain):
  """Each depth may be a program of XLA's."""
  model, worker = made()
  labels = worker.predict(["a"], LabelRequest(k, explain=explain)).result(10)[0]
  assert len(labels) == k and all(("why" in label) == explain for label in labels)
  assert model.batches[-1] == (1, depth, explain)


def test_texts_beyond_the_queue_are_refused_and_those_in_it_answered(made):
  model, worker = made(max_waiting_texts=5)
  first = held(model, worker)
  kept = [worker.predict(["a"] * 2, LabelRequest(1)), worker.predict(["a"] * 3, LabelRequest(1))]
  with pytest.raises(Busy, match="5 texts wait, and at most 5 may"):
    worker.embed(["a"])
  model.goes_on.set()
  assert [len(answer.result(10)) for answer in (first, *kept)] == [1, 2, 3]
  alone = worker.predict(["a"] * 9, LabelRequest(1))  # with none before it, any request is taken
  assert len(alone.result(10)) == 9


def test_requests_for_other_labels_are_answered_apart(made):
  model, worker = made()
  held(model, worker)
  requests = [LabelRequest(2), LabelRequest(2, include=("l7", "l9")), LabelRequest(1, exclude=("l0",))]
  answers = [worker.predict(["a"], request) for request in requests]
  model.goes_on.set()
  keys = [[label["key"] for label in answer.result(10)[0]] for answer in answers]
  assert keys == [["l0", "l1"], ["l7", "l9"], ["l1"]]


def test_a_fault_of_one_request_ends_no_other_of_its_batch(made):
  model, worker = made()
  held(model, worker)
  faulty, fine = worker.predict(["a bug"], LabelRequest(1)), worker.predict(["fine"], LabelRequest(2))
  model.goes_on.set()
  with pytest.raises(ZeroDivisionError):
    faulty.result(10)
  assert len(fine.result(10)[0]) == 2
  assert [size for size, *_ in model.batches] == [1, 2, 1, 1]  # together, then each alone, once
  assert len(worker.predict(["later"], LabelRequest(1)).result(10)) == 1


def test_at_the_end_what_waits_and_later_requests_are_refused(made):
  model, worker = made(max_batch_texts=1)
  first = held(model, worker)
  waits = [worker.predict(["a"], LabelRequest(1)) for _ in range(3)]
  worker.close()
  assert all(isinstance(wait.exception(10), Busy) for wait in waits)
  with pytest.raises(Busy, match="stopping"):
    worker.embed(["late"])
  model.goes_on.set()
  assert len(first.result(10)) == 1
  assert worker.join(10)


def test_a_model_that_cannot_warm_up_says_so():
  worker = ModelWorker(Broken(), Limits())
  with pytest.raises(UserError, match="damaged"):
    worker.start().result(10)


@pytest.mark.parametrize("limit", [{"max_texts": 0}, {"max_wait_seconds": -1.0}])
def test_limits_that_cannot_work_are_refused(limit):
  with pytest.raises(UserError, match=next(iter(limit))):
    ModelWorker(StandIn(), Limits(**limit))
