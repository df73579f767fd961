"""Counts what the server does, for Prometheus."""

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
  """Holds the metrics of one server; several may be in one process.

  Args:
    num_waiting: returns the number of texts that wait for the model.
  """

  def __init__(self, num_waiting: Callable[[], int]):
    self._registry = CollectorRegistry()
    shared: dict[str, Any] = {"namespace": "xmc_jax", "registry": self._registry}
    timed = {"buckets": _SECONDS, **shared}
    self._requests = Counter("requests", "Requests, by route and status.", ("route", "status"), **shared)
    about = "Seconds from a request's headers to its answer."
    self._seconds = Histogram("request_seconds", about, ("route",), **timed)
    self._texts = Counter("texts", "Texts that the model has answered.", **shared)
    self._batches = Histogram("batch_texts", "Texts that the model got at once.", buckets=_TEXTS, **shared)
    self._busy = Histogram("batch_seconds", "Seconds of the model for a batch.", **timed)
    Gauge("queue_texts", "Texts that wait for the model.", **shared).set_function(num_waiting)

  def request(self, route: str, status: int, seconds: float) -> None:
    """Counts an answered request."""
    self._requests.labels(route, str(status)).inc()
    self._seconds.labels(route).observe(seconds)

  def batch(self, num_texts: int, seconds: float) -> None:
    """Counts a batch that the model has answered."""
    self._texts.inc(num_texts)
    self._batches.observe(num_texts)
    self._busy.observe(seconds)

  def in_text(self) -> bytes:
    """Returns all metrics in Prometheus's text format."""
    return generate_latest(self._registry)
