"""The forms of tables parse back to the same numbers and texts."""

import csv
import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quern.report._experiments import read_experiments
from quern.report._tables import Cell, Table, latex, marked, measured, to_csv, to_latex, to_markdown
from tests.sample_records import write_experiments


@given(st.floats(0, 1), st.floats(0, 100))
def test_signs_follow_what_is_printed(share: float, paper: float) -> None:
    cell = marked(measured([share]), paper)
    ours, theirs = float(cell.text), float(f"{paper:.2f}")
    assert cell.sign == ("better" if ours > theirs else "worse" if ours < theirs else "equal")


texts = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"], exclude_characters="±"), min_size=1)


def test_all_forms_parse_back_to_the_same_numbers(tmp_path: Path) -> None:
    for table in read_experiments(write_experiments(tmp_path, ("mnist",))).tables():
        shown = [[str(cell) for cell in cells] for cells in table.rows]
        lines = [line for line in to_markdown(table).splitlines() if line.startswith("| ")][2:]
        parsed = [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
        assert [[re.sub(r"\\(.)", r"\1", c) for c in cells] for cells in parsed] == shown
        head, *rows = csv.reader(io.StringIO(to_csv(table)))
        for cells, values in zip(table.rows, rows, strict=True):
            by_name = dict(zip(head, values, strict=True))
            for name, cell in zip(table.columns, cells, strict=True):
                if cell.value is not None:
                    assert float(by_name[name]) == pytest.approx(cell.value, rel=1e-9)
                if cell.spread is not None:
                    assert float(by_name[f"{name} (std)"]) == pytest.approx(cell.spread, rel=1e-9)
        body = [line for line in to_latex(table).splitlines() if line.endswith(r" \\")][1:]
        for cells, line in zip(shown, body, strict=True):
            set_ = line.removesuffix(r" \\").split(" & ")
            numbers = [re.findall(r"[-+]?\d[\d,]*\.\d+", text) for text in set_]
            assert numbers == [re.findall(r"[-+]?\d[\d,]*\.\d+", text) for text in cells]


@given(texts)
def test_text_survives_markdown_csv_and_latex(text: str) -> None:
    table = Table("t", "t", ("a", "b"), ((Cell("x"), Cell(text)),))
    line = to_markdown(table).splitlines()[-1]
    cells = re.findall(r"((?:\\.|[^\\|])*)\|", line)  # a bar after a backslash is none
    assert [re.sub(r"\\(.)", r"\1", cell.strip()) for cell in cells] == ["", "x", text]
    assert list(csv.reader(io.StringIO(to_csv(table))))[1] == ["x", text]
    bare = re.sub(r"\\[&%$#_{}]", "", latex(text))
    bare = re.sub(r"\$[^$]*\$", "", bare)  # mathematics
    bare = re.sub(r"\\[a-zA-Z]+(\{\d*\})?|(?<=-)\{\}", "", bare)
    assert "--" not in latex(text)
    assert not set(bare) & set("&%#~^\\{}$_")
    assert latex(text).count("$") % 2 == latex(text).count(r"\$") % 2


def test_latex_sets_mathematics_and_obeys_nothing() -> None:
    assert latex("R_Q + BN, R_QL, ℓ1") == r"$R_{Q}$ + BN, $R_{QL}$, $\ell_{1}$"
    assert latex("a & b_c 100% ~\\x{}") == r"a \& b\_c 100\% \textasciitilde{}\textbackslash{}x\{\}"
    assert latex("--max-neurons ---") == "-{}-max-neurons -{}-{}-"
