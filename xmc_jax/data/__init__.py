"""Data: turns users' raw files into memory-mapped token ids, relevance and graphs.

load, load_prepared      open a Dataset from raw files, or from a prepared folder
write                    writes texts and labels in memory as a folder that `load` reads
prepare, summary         turn raw files into a prepared folder, and show its counts
encode_texts             turns texts into token ids, for prediction
load_tokenizer, train_tokenizer
hold_out, link_into, with_labels, with_test_rows, bundled_path
"""

from xmc_jax.data.added import with_labels, with_test_rows
from xmc_jax.data.arrays import Texts
from xmc_jax.data.dataset import Dataset, Graph, Split, TextSet, Truth, hold_out, load_prepared
from xmc_jax.data.formats import LAYOUTS
from xmc_jax.data.formats.source import Options
from xmc_jax.data.in_memory import write
from xmc_jax.data.loading import bundled_path, load
from xmc_jax.data.prepare import Prepared, prepare
from xmc_jax.data.prepared import link_into, read_manifest, summary
from xmc_jax.data.tokenizers import add_prompt, load_tokenizer, special_ids, train_tokenizer
from xmc_jax.data.tokens import TokenTable, encode_texts

__all__ = [
  "LAYOUTS",
  "Dataset",
  "Graph",
  "Options",
  "Prepared",
  "Split",
  "TextSet",
  "Texts",
  "TokenTable",
  "Truth",
  "add_prompt",
  "bundled_path",
  "encode_texts",
  "hold_out",
  "link_into",
  "load",
  "load_prepared",
  "load_tokenizer",
  "prepare",
  "read_manifest",
  "special_ids",
  "summary",
  "train_tokenizer",
  "with_labels",
  "with_test_rows",
  "write",
]
