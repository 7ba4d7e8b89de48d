"""The main number of each section."""

from pathlib import Path

import pytest

from quern.report import _rows
from quern.report._experiments import read_experiments
from quern.report._load import load
from tests.report.pages import there
from tests.sample_records import run_record, write_run


@pytest.mark.slow
def test_folded_sections_say_their_main_number(experiments: tuple[Path, Path], tmp_path: Path) -> None:
    results, _ = experiments
    page = read_experiments(results)
    headlines = {section.name: section.headline for section in page.sections}
    table = there(_rows.table1(load(results), "mnist"))
    beaten = [cells for cells in table.rows if cells[1].text == "quern" and cells[6].sign == "yes"]
    assert headlines["claims"] == "Of 4 judgements 0 hold, 4 fail, 0 are open."
    assert headlines["table1"] == f"Methods by which quern beats the paper: {len(beaten)} of 2 on MNIST."
    assert headlines["table2"].endswith("penalty: 1.04 on MNIST.")
    assert headlines["curves"] == "Quaternions that R_Q makes zero: 59.50\u00a0% on MNIST."
    assert headlines["neurons"] == "Neurons that L1(BN) leaves: 18.18\u00a0% on MNIST."
    assert headlines["compress"] == "Files up to 5.0 times smaller; runs: 1."
    assert headlines["front"].endswith(": 97.10\u00a0% at 59.50\u00a0% on MNIST.")
    assert headlines["tuning"] == "λ of R_Q: 4 from 6 trials on MNIST."
    assert headlines["layers"] == "Quaternions that R_Q leaves: 1,144 of 2,825 on MNIST."
    assert headlines["moduli"].endswith(" and 0.00\u00a0% on MNIST.")
    assert headlines["runs"] == "13 runs, 6.5 hours."
    write_run(tmp_path, run_record("digits", "paper", "l1"))  # has none of it
    assert {section.name for section in read_experiments(tmp_path).sections if section.headline} == {"runs"}
