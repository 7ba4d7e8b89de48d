"""Penalties as they stand in files, read without torch."""

import pytest

from quern.records import Written, respelled

OLD = {"kind": "GammaL1 with_beta=True", "weight": 1.0, "normalize": True}
NEW = {"kind": "GammaL1", "weight": 1.0, "normalize": True, "with_beta": True}


@pytest.mark.parametrize(
    ("terms", "shown"),
    [
        ([OLD], "GammaL1(1, with_beta=True)"),
        ([NEW], "GammaL1(1, with_beta=True)"),
        ([{**OLD, "kind": "GammaL1"}], "GammaL1(1)"),
        (
            [{"kind": "RQ", "weight": 0.5, "normalize": False}, NEW],
            "RQ(0.5, normalize=False) + GammaL1(1, with_beta=True)",
        ),
        ([{"kind": "RQ", "weight": 50.0, "normalize": True, "by_cost": 0.5}], "RQ(50, by_cost=0.5)"),
        ([{"kind": "Mine", "weight": 3, "normalize": True, "depth": 2}], "Mine(3, depth=2)"),
    ],
)
def test_a_penalty_is_shown_as_it_is_called(terms: list[dict[str, object]], shown: str) -> None:
    penalty = Written.from_plain(terms)
    assert repr(penalty) == shown
    assert repr(Written.from_plain(penalty.to_list())) == shown


def test_settings_in_an_older_spelling_are_brought_up_to_date() -> None:
    assert respelled({"epochs": 3, "penalty": [OLD]}) == {"epochs": 3, "penalty": [NEW]}
    stages = {"dense": None, "small": {"penalty": [OLD]}, "budget": {"max_drop": 1.0}}
    assert respelled(stages) == {**stages, "small": {"penalty": [NEW]}}
    damaged = {"penalty": [{**NEW, "normalize": []}]}
    assert respelled(damaged) == damaged
    for same in ({"penalty": None}, {"epochs": 3}, {"penalty": [NEW]}):
        assert respelled(same) == same


@pytest.mark.parametrize("term", [3, {}, {"kind": "RQ"}, {**NEW, "weight": -1.0}, {**NEW, "with_beta": [1]}])
def test_what_is_no_term_is_refused(term: object) -> None:
    with pytest.raises(ValueError, match=r"should be|missing|not negative"):
        Written.from_plain([term])
