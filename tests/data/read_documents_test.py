"""Documents to label: a text a line, a file each, or the rows of a table."""

import re

import docx
import pytest
import sample_folders as samples

from xmc_jax.data import Options, documents, extracted
from xmc_jax.errors import DataError


def read(path, whole=False, **options):
  notices: list[str] = []
  found = list(documents.read(path, whole, Options(**options), notices))
  return [(document.id, document.text) for document in found], notices


def test_a_file_is_lines_or_one_document(tmp_path):
  path = samples.write(tmp_path / "a.txt.gz", "one\r\n\ntwo ±")
  assert read(path) == ([(None, "one"), (None, ""), (None, "two ±")], [])
  assert read(path, whole=True) == ([("a.txt.gz", "one\n\ntwo ±")], [])
  path.write_bytes(b"\x1f\x8b no gzip")
  with pytest.raises(DataError, match=r"a\.txt\.gz: expected intact gzip data"):
    documents.files_of(path)


def test_a_txt_file_with_the_runs_columns_is_a_table(tmp_path):
  path = samples.write(tmp_path / "new.txt", "id\ttitle\r\n7\ta\r\n".encode("utf-16"))
  assert read(path) == ([("7", "a")], ["new.txt: texts from column 'title', ids from column 'id'"])
  assert read(path, text="Text")[0] == [(None, "id\ttitle"), (None, "7\ta")]


def test_labels_of_fasttext_are_no_texts(tmp_path):
  path = samples.write(tmp_path / "new.txt", "__label__a __label__b x y\n__label__c\nno __label__d\n")
  rows, notices = read(path)
  assert [text for _, text in rows] == ["x y", "", "no __label__d"]
  assert set(notices) == {"new.txt: __label__ and what follows it is left out of the texts"}


@pytest.mark.parametrize(
  "notice, shown",
  [
    ("a: texts from 'b' (guessed; change with --config.data.text), c", "a: texts from 'b' (guessed), c"),
    ("split at ';' in 2 rows (change with --config.data.label_separator)", "split at ';' in 2 rows"),
    ("a (b); c", "a (b); c"),
  ],
)
def test_a_trained_runs_notes_name_no_setting_to_change(notice, shown):
  assert documents.without_settings(notice) == shown
  assert documents.without_settings(notice, ("text", "label_separator")) == notice


def test_bytes_that_are_not_utf_8_are_said(tmp_path):
  path = samples.write(tmp_path / "a.txt", b"one\nna\xefve\n")
  rows, (notice,) = read(path)
  assert rows == [(None, "one"), (None, "naïve")] and notice.startswith("a.txt: not UTF-8 from line 2 on")


@pytest.mark.parametrize(
  "names",
  [("b/2.txt", "a.txt", "a.key", ".x.txt"), ("b/2.md", "a.txt", "a.key"), ("b/2.md", "a.html", "t.csv")],
)
def test_a_folder_is_documents(tmp_path, names):
  """Files of subjects beside the texts, tables and hidden files are none."""
  for name in names:
    samples.write(tmp_path / name, f"{name}\nmore\n")
  assert read(tmp_path) == ([(name, f"{name}\nmore") for name in sorted(names[:2])], [])


def test_files_of_a_folder_that_are_not_read_are_said(tmp_path):
  for name in ("a.md", "b.odt", "c/d.doc"):
    samples.write(tmp_path / name, b"%PDF")
  rows, notices = read(tmp_path)
  assert rows == [("a.md", "%PDF")]
  assert notices == [f"{tmp_path.name}: files that are not read: 2, such as 'b.odt'"]


def test_pdf_and_word_files_are_documents(tmp_path):
  """One that cannot be read, or has no text, ends nothing."""
  word = docx.Document()
  word.add_paragraph("Art and")
  word.add_table(1, 2).rows[0].cells[1].text = "music"
  word.save(tmp_path / "a.docx")
  samples.write(tmp_path / "b.pdf", pdf("Art"))
  samples.write(tmp_path / "c.pdf", pdf(""))
  samples.write(tmp_path / "d.pdf", b"%PDF-1.4\n")
  samples.write(tmp_path / "e.txt", "x")
  rows, notices = read(tmp_path)
  assert rows[:2] == [("a.docx", "Art and\n\tmusic"), ("b.pdf", "Art")]
  assert rows[2:] == [("c.pdf", ""), ("d.pdf", ""), ("e.txt", "x")]
  assert notices[0] == "c.pdf: no text, as in scanned pages"
  assert re.fullmatch(r"d\.pdf: expected a PDF or Word file \(pypdf.*\); it gets no labels", notices[1])
  assert read(tmp_path / "b.pdf") == ([("b.pdf", "Art")], [])


def test_without_the_extra_a_folders_pdf_files_are_said_and_left(tmp_path, monkeypatch):
  monkeypatch.setattr(extracted, "is_installed", lambda: False)
  samples.write(tmp_path / "a.txt", "x")
  samples.write(tmp_path / "b.pdf", b"%PDF-1.4\n")
  assert read(tmp_path) == (
    [("a.txt", "x")],
    [f"{tmp_path.name}: files that are not read: 1, such as 'b.pdf'"],
  )


def pdf(text: str) -> bytes:
  """Returns a PDF file of one page with a text."""
  shown = f"BT /F 9 Tf 9 9 Td ({text}) Tj ET"
  objects = (
    "<</Type/Catalog/Pages 2 0 R>>",
    "<</Type/Pages/Kids[3 0 R]/Count 1>>",
    "<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>>>",
    f"<</Length {len(shown)}>> stream\n{shown}\nendstream",
    "<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
  )
  content, offsets = "%PDF-1.4\n", ""
  for number, each in enumerate(objects, 1):
    offsets += f"{len(content):010} 00000 n \n"
    content += f"{number} 0 obj {each} endobj\n"
  table = f"xref\n0 6\n0000000000 65535 f \n{offsets}trailer <</Root 1 0 R/Size 6>>\n"
  return f"{content}{table}startxref\n{len(content)}\n%%EOF\n".encode()


def test_a_file_that_takes_too_long_is_refused(monkeypatch):
  monkeypatch.setattr(extracted, "_SECONDS", 1e-3)
  with pytest.raises(DataError, match=r"a\.pdf: its text takes longer than 0\.001 s; convert it"):
    extracted.text_of(pdf("Art"), "a.pdf")


ROWS = [{"uid": 7, "title": "a\nb", "tags": "x"}, {"uid": 8, "title": "", "tags": ""}]


@pytest.mark.parametrize("kind", ["csv", "tsv", "xlsx", "jsonl", "parquet"])
def test_a_table_is_read_by_the_runs_columns_with_its_ids(tmp_path, kind):
  path = samples.table(tmp_path / f"new.{kind}", ROWS)
  number = int if kind in ("jsonl", "parquet") else str
  texts = [(number(7), "a\nb"), (number(8), "")]
  assert read(path) == (texts, [f"new.{kind}: texts from column 'title', ids from column 'uid'"])
  other = [(key, f"{text} x".strip() if text else "") for key, text in texts]
  assert read(path, text="title+tags")[0] == other


@pytest.mark.parametrize(
  ("name", "content", "options", "texts"),
  [
    ("t.csv", "title\na, b\nc\n", {}, ["a, b", "c"]),
    ("t.csv", "7,a\n8,b\n", {"text": "2", "label_column": "tags"}, ["a", "b"]),
    ("t.csv", "7,a\n8,b\n", {"text": "2", "label_column": "2"}, ["a", "b"]),
    ("t.txt", "7\ta\n8\tb\n", {"text": "2", "label_column": "tags"}, ["7\ta", "8\tb"]),
    ("t.txt", "x\ta\ny\tb\n", {"text": "2", "label_column": "tags"}, ["a", "b"]),
    ("t.jsonl", '{"title": "a"}\n{"id": 7}\n', {}, ["a", ""]),
  ],
)
def test_tables_need_no_labels_and_no_header(name, content, options, texts, tmp_path):
  rows, _ = read(samples.write(tmp_path / name, content), **options)
  assert [text for _, text in rows] == texts


@pytest.mark.parametrize(
  ("name", "whole", "expected"),
  [
    ("only", False, r"only: .* of documents, found only tables; give one, as --input=.*t\.csv$"),
    ("none", False, "none: expected a folder of documents, found no file$"),
    ("gone.txt", False, r"gone\.txt: no such file$"),
    ("only/t.csv", False, r"'title' of texts, as the run was trained on \(columns: 'a', 'b'\); set .*=NAME$"),
    ("a.bin", False, r"a\.bin: expected plain text, found a PDF, Word or zip file; name it .pdf or .docx$"),
    ("x.txt", True, "x.txt"),
  ],
)
def test_what_holds_no_documents_is_one_line(name, whole, expected, tmp_path):
  samples.write(tmp_path / "only" / "t.csv", "a,b\n1,2\n")
  (tmp_path / "none").mkdir()
  samples.write(tmp_path / "x.txt", b"%PDF\0")
  samples.write(tmp_path / "a.bin", b"%PDF-1.4\n")
  with pytest.raises(DataError, match=expected):
    read(tmp_path / name, whole)
