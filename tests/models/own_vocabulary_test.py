"""Tables of a vocabulary trained on the user's texts, begun from another encoder's rows."""

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from tests import tiny_runs
from xmc_jax.errors import UserError
from xmc_jax.estimator import files
from xmc_jax.models import own_vocabulary
from xmc_jax.runs import create
from xmc_jax.runs import run as runs


def wordpiece(*tokens: str) -> Tokenizer:
  tokenizer = Tokenizer(models.WordPiece({token: at for at, token in enumerate(tokens)}, unk_token="[UNK]"))
  tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
  tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  return tokenizer


THEIRS = wordpiece("[PAD]", "[UNK]", "kirja", "##sto", "sto", "##ja", "maa")
TABLE = np.arange(14, dtype=np.float32).reshape(7, 2)


def test_rows_are_those_of_the_pieces():
  own = wordpiece("[PAD]", "[UNK]", "kirjasto", "maa", "##stoja", "##sto", "kirjastoja")
  rows = own_vocabulary.initial_rows(own, TABLE, THEIRS)
  kirja, inside_sto, ja = TABLE[2], TABLE[3], TABLE[5]
  expected = [
    *(TABLE[0], TABLE[1]),
    (kirja + inside_sto) / 2,
    TABLE[6],
    (inside_sto + ja) / 2,  # not "sto", which begins a word
    inside_sto,
    (kirja + inside_sto + ja) / 3,
  ]
  assert rows.dtype == np.float32
  np.testing.assert_allclose(rows, expected)


def test_tokens_of_unknown_letters_differ():
  rows = own_vocabulary.initial_rows(wordpiece("[PAD]", "[UNK]", "図書", "館"), TABLE, THEIRS)
  assert np.isfinite(rows).all() and (rows[2] != rows[3]).all() and (rows[2:] != TABLE[1]).all()
  again = own_vocabulary.initial_rows(wordpiece("[PAD]", "[UNK]", "図書", "館"), TABLE, THEIRS)
  np.testing.assert_array_equal(rows, again)


@pytest.fixture
def theirs(tmp_path):
  """Writes an encoder with fewer tokens than the texts will have of their own."""
  folder = tiny_runs.tiny_bert(tmp_path / "bert", vocab_size=30)
  wordpiece("[PAD]", "[UNK]", *"abcdefghijklmn", *(f"##{x}" for x in "abcdefghijklmn")).save(
    str(folder / "tokenizer.json")
  )
  return folder


def test_a_run_begins_with_these_rows_wherever_it_lies(data, tmp_path, theirs):
  run, params, _ = tiny_runs.open_initial(data, tmp_path / "run", **{"encoder.init_table": str(theirs)})
  own = run.dataset.tokenizer()
  table = own_vocabulary.load_pretrained(str(theirs)).params["embeddings/word"]
  expected = own_vocabulary.initial_rows(own, table, Tokenizer.from_file(str(theirs / "tokenizer.json")))
  assert len(expected) == own.get_vocab_size() > len(table)
  np.testing.assert_array_equal(params["encoder"]["word"], expected)
  (tmp_path / "run").rename(tmp_path / "moved")
  theirs.rename(tmp_path / "gone")
  again, _ = runs.reopen(tmp_path / "moved").initial_parameters()
  np.testing.assert_array_equal(again["encoder"]["word"], expected)


@pytest.mark.parametrize("missing", ["model.safetensors", "config.json"])
def test_a_folder_that_lacks_a_file_is_written_anew(tmp_path, theirs, missing):
  own, folder = wordpiece("[PAD]", "[UNK]", "abc", "de"), tmp_path / "encoder"
  own_vocabulary.write_table(str(theirs), own, folder)
  rows = own_vocabulary.load_pretrained(str(folder)).params["word"]
  (folder / missing).unlink()
  own_vocabulary.write_table(str(theirs), own, folder)
  np.testing.assert_array_equal(own_vocabulary.load_pretrained(str(folder)).params["word"], rows)
  assert rows.shape == (4, 16)
  own_vocabulary.write_table("of no use, as the table is there", own, folder)


def test_other_words_are_no_other_data_where_they_may_differ(data, tmp_path, theirs):
  own = tiny_runs.open_run(data, tmp_path / "own", **{"encoder.init_table": str(theirs)})
  (tmp_path / "own" / "checkpoints" / "1").mkdir(parents=True)
  other = tiny_runs.open_run(data, tmp_path / "other", **{"data.max_length": 8}).dataset
  assert not create.changed_data(own.dataset, tmp_path / "own")
  assert not create.changed_data(other, tmp_path / "own", ("tokens", "tokenizer"))
  assert create.changed_data(other, tmp_path / "own")


def test_a_pickle_leaves_the_first_table_out(data, tmp_path, theirs):
  tiny_runs.open_run(data, tmp_path / "run", **{"encoder.init_table": str(theirs)})
  needed = {path.name for path in files._needed(tmp_path / "run") if path.parent.name == "encoder"}
  assert needed == {"config.json"}


def test_a_table_without_a_tokenizer_is_refused_in_one_line(data, tmp_path, theirs):
  (theirs / "tokenizer.json").unlink()
  with pytest.raises(UserError, match=r"bert: no tokenizer.json, .* set --config.encoder.init_table="):
    tiny_runs.open_run(data, tmp_path / "run", **{"encoder.init_table": str(theirs)})
