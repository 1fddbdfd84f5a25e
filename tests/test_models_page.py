"""docs/models.md says of each model of the shelf what is tested of it."""

from __future__ import annotations

from tests.held_out.outcomes import OTHER_BITS, REFUSED
from tests.held_out.page import PAGE, page
from tests.held_out.shelf import MODELS


def test_the_page_is_what_the_shelf_says_now() -> None:
    assert PAGE.read_text() == page(), "`make reference`"


def test_outcomes_are_of_models_that_there_are() -> None:
    assert REFUSED.keys() <= MODELS.keys() and OTHER_BITS.keys() <= MODELS.keys()
    assert not REFUSED.keys() & OTHER_BITS.keys()
