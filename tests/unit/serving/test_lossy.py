"""Answers that drafting may change say so, and are not compared with others."""

import pytest

from eagleray.drafters.prompt_lookup.config import PromptLookupConfig
from eagleray.errors import DataError
from eagleray.evaluation.endpoint.report import shared_regime
from eagleray.serving.config import DraftConfig
from eagleray.serving.opening import draft_facts
from eagleray.speculation.config import TypicalAcceptance


def test_a_lossy_server_is_not_compared_with_a_plain_one() -> None:
    exact = DraftConfig(drafter=PromptLookupConfig())
    lossy = DraftConfig(drafter=PromptLookupConfig(), typical=TypicalAcceptance())
    plain = draft_facts(None)
    assert shared_regime({"plain": plain, "drafted": draft_facts(exact)})["server"] == {"lossy": False}
    with pytest.raises(DataError, match="lossy"):
        shared_regime({"plain": plain, "drafted": draft_facts(lossy)})


def test_an_answer_says_whether_it_is_lossy(serve) -> None:
    assert serve().complete().json()["speculation"]["lossy"] is False
