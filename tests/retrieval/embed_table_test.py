"""A whole table embedded: in its own order, through few shapes, each text once."""

import hypothesis
import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import tiny_runs

from xmc_jax.retrieval import embed_table


class _Embed:
  """A stand-in for an encoder: row number, length and first token of each text."""

  def __init__(self):
    self.shapes, self.seen, self.most = set(), [], []

  def __call__(self, tokens, ids):
    self.shapes.add(tokens.ids.shape)
    most = tokens.num_real_tokens
    self.most.append((tokens.ids.shape[1], most))
    assert most is None or tokens.lengths.sum() <= most
    self.seen += ids[ids >= 0].tolist()
    assert len(ids) == len(tokens.lengths)
    assert np.all(tokens.lengths[ids < 0] == 0)
    return jnp.stack([ids, tokens.lengths, tokens.ids[:, 0]], axis=1).astype(jnp.float32)


@hypothesis.given(
  lengths=st.lists(st.integers(0, 40), min_size=1, max_size=50),
  batch_size=st.sampled_from([1, 3, 8, 64]),
  max_length=st.sampled_from([8, 20, 32]),
  packed=st.booleans(),
)
def test_rows_come_back_in_order_each_embedded_once(lengths, batch_size, max_length, packed):
  table, embed, told = tiny_runs.token_table(lengths), _Embed(), []
  sizes = {"batch_size": batch_size, "max_length": max_length}
  found = embed_table(embed, table, **sizes, packed=packed, progress=told.append)
  everything = table.gather(np.arange(len(lengths)), max_length)
  expected = np.stack([np.arange(len(lengths)), everything.lengths, everything.ids[:, 0]], axis=1)
  assert found.dtype == np.float32
  np.testing.assert_array_equal(found, expected)
  assert sorted(embed.seen) == list(range(len(lengths)))
  assert told == sorted(told) and told[-1] == len(lengths)


def test_few_shapes_and_little_padding():
  lengths = np.random.default_rng(0).integers(1, 33, 1000)
  embed = _Embed()
  embed_table(embed, tiny_runs.token_table(lengths), batch_size=64, max_length=32)
  assert embed.shapes == {(64, 8), (64, 16), (64, 24), (64, 32)}


def test_what_does_not_fill_a_chunk_moves_up_to_the_next_width():
  embed = _Embed()
  embed_table(embed, tiny_runs.token_table([3, 4, 20, 30]), batch_size=4, max_length=32)
  assert embed.shapes == {(4, 32)}


def test_an_empty_table_embeds_nothing():
  embed = _Embed()
  found = embed_table(embed, tiny_runs.token_table([]), batch_size=4, max_length=8)
  assert found.shape[0] == 0 and found.dtype == np.float32 and not embed.seen


def test_chunks_say_how_many_tokens_they_have_one_number_a_width_where_there_are_several():
  lengths = np.concatenate([np.random.default_rng(0).integers(1, 17, 1200), np.full(64, 30)])
  embed = _Embed()
  embed_table(embed, tiny_runs.token_table(lengths), batch_size=64, max_length=32, packed=True)
  found = dict(embed.most)
  assert len(set(embed.most)) == 3 and found[32] is None  # one chunk is not worth it
  # Of 8 cells 4.5 are real on average, of 16 12.5; the fullest chunk has a little more.
  assert 4.5 * 64 < found[8] <= 5 * 64 and 12.5 * 64 < found[16] <= 14 * 64
