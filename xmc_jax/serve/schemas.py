"""Describes the bodies of requests and answers: FastAPI checks the former, and `/openapi.json` shows both."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, WrapValidator

from xmc_jax.serve.options import Limits

_MOST_KEYS = 10_000  # of labels, in a request
_TEXT = "play music from the command line"
_WHY = {
  "words": "the model learnt that it fits such texts; 1 similar text has it",
  "sources": {"memory": 1, "encoder": 3},
  "voters": [{"text": "cmus: music player", "weight": 0.41}],
}
_LABEL = {"id": 6454, "key": "mpd", "text": "mpd: Music Player Daemon", "score": 0.101336}


def _example(*values: dict[str, Any]) -> ConfigDict:
  return ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": list(values)})


def _in_one_sentence(value: Any, validated: Callable[[Any], Any]) -> Any:
  """Refuses labels by one sentence in place of one for each way to write them."""
  try:
    return validated(value)
  except ValidationError:
    told = 'give a list of keys or names; with "texts", a list of these for each text'
    raise ValueError(told) from None


_Keys = Annotated[list[str], Field(max_length=_MOST_KEYS)]
_Labels = Annotated[_Keys | list[_Keys], WrapValidator(_in_one_sentence)]


def request_bodies(limits: Limits) -> tuple[type[BaseModel], type[BaseModel], type[BaseModel]]:
  """Returns the bodies of `/embed`, `/predict` and `/learn`, with the limits of a server."""
  longest = Field(json_schema_extra={"maxLength": limits.max_text_length})

  class EmbedRequest(BaseModel):
    """Asks for the embeddings of texts; exactly one of `text` and `texts` is given."""

    model_config = _example({"texts": [_TEXT, "a window manager"]}, {"text": _TEXT})
    texts: Annotated[list[Annotated[str, longest]], Field(max_length=limits.max_texts)] | None = Field(
      None, description="Texts, answered in this order.", fail_fast=True
    )
    text: Annotated[str, longest] | None = Field(None, description="A single text.")

  class PredictRequest(EmbedRequest):
    """Asks for the best labels of texts; exactly one of `text` and `texts` is given."""

    model_config = _example({"text": _TEXT, "k": 3}, {"texts": [_TEXT, "a window manager"], "explain": True})
    k: int | None = Field(
      None, description="Labels per text; the server's own number if not given.", ge=1, le=limits.max_k
    )
    threshold: float | None = Field(
      None, description="The least score of a label; the server's own if not given.", allow_inf_nan=False
    )
    include: _Keys = Field([], description="Keys of labels: only these are answers; all if none is given.")
    exclude: _Keys = Field([], description="Keys of labels that are no answers.")
    language: str = Field(
      "", description="The language of the labels' names, one of `/health`'s; '' is the run's own."
    )
    explain: bool = Field(False, description="Whether each label gets its reasons, `why`.")

  class LearnRequest(EmbedRequest):
    """Gives texts and the labels of each; exactly one of `text` and `texts` is given."""

    model_config = _example(
      {"text": _TEXT, "labels": ["mpd", "cmus"]}, {"texts": [_TEXT, "plays"], "labels": [["mpd"], ["cmus"]]}
    )
    labels: _Labels = Field(
      description="Keys, names or notations: the labels of the text, or a list of these for each text."
    )

  return EmbedRequest, PredictRequest, LearnRequest


class Voter(BaseModel):
  """Names a training text that voted for a label."""

  text: str
  weight: float


class Why(BaseModel):
  """Gives the reasons for a label."""

  words: str = Field(description="The reasons as one sentence.")
  sources: dict[str, int] = Field(
    description="Sources that have the label among their best ten, with its rank there, from 1."
  )
  voters: list[Voter] = Field(
    description="Training texts with this label that count most for it, at most three, largest first."
  )


class LabelAnswer(BaseModel):
  """Describes a label of a text."""

  id: int = Field(description="The label's number.")
  key: str = Field(description="The label's own name in the data: a URI, SKU or uid; else its text.")
  text: str = Field(description="The label's name, as it is in the data; escape it before you show it.")
  notation: str | None = Field(None, description="Its notation, only if the vocabulary has one.")
  score: float | None = Field(
    description="The probability that the label is right, if `/health` says `probabilities`; null if it is "
    "not finite."
  )
  why: Why | None = Field(None, description="Only with `explain`.")


class Prediction(BaseModel):
  """Lists the labels of a text."""

  labels: list[LabelAnswer] = Field(description="At most k, best first.")


class PredictAnswer(BaseModel):
  """Lists the labels of all texts of a request."""

  model_config = _example(
    {"predictions": [{"labels": [_LABEL]}]}, {"predictions": [{"labels": [{**_LABEL, "why": _WHY}]}]}
  )
  predictions: list[Prediction] = Field(description="One for each text, in the request's order.")


class EmbedAnswer(BaseModel):
  """Lists the embeddings of all texts of a request."""

  model_config = _example({"embeddings": [[0.12, -0.53, 0.07]]})
  embeddings: list[list[float | None]] = Field(description="One for each text, in the request's order.")


class LimitsAnswer(BaseModel):
  """Names the limits of requests."""

  max_body_bytes: int
  max_file_bytes: int
  max_texts: int
  max_text_length: int
  max_k: int


class TextAnswer(BaseModel):
  """Holds the text of a file."""

  text: str = Field(description="'' if it has none, as scanned pages.")


class LearnAnswer(BaseModel):
  """Holds the numbers of learnt texts."""

  numbers: list[int] = Field(description="For each text, in order, what `--unlearn` takes.")


class Part(BaseModel):
  """Names a part of the vocabulary."""

  include: str = Field(description="What `/predict` takes to answer from this part alone.")
  name: str


class Health(BaseModel):
  """Tells what the server serves."""

  ok: bool
  run: str = Field(description="The run's name.")
  step: int = Field(description="The training step of its parameters.")
  labels: int = Field(description="The number of labels.")
  probabilities: bool = Field(description="Whether scores are probabilities.")
  calibration_error: float | None = Field(
    description="How far probabilities of first labels were off on test rows, 0 to 1; null if not known."
  )
  calibrated: bool | None = Field(description="Whether that is little, or chance; null if not known.")
  k: int = Field(description="Labels per text where a request does not say.")
  threshold: float | None = Field(description="Least score where a request does not say; null is none.")
  learns: bool = Field(description="Whether `/learn` takes corrections.")
  limits: LimitsAnswer
  languages: list[str] = Field(description="Languages that labels have names in.")
  language: str = Field(description="The language of names where a request does not say; '' is not known.")
  parts: list[Part] = Field(description="Labels at the top of the vocabulary, if they are few.")
  title: str = Field(description="The page's title; '' is the run's name.")
  description: str = Field(description="What the page says below its title; '' is the usual sentence.")
  examples: list[str] = Field(description="Texts that the page offers.")


class ErrorAnswer(BaseModel):
  """Says in one sentence what is wrong."""

  model_config = _example({"error": "k = 500 is more than this server's limit of 100"})
  error: str
