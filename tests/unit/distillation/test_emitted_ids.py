"""The bound on ids that nobody confirmed."""

import pytest

from eagleray.distillation.emitted_ids import require_emitted_ids
from eagleray.engines.native.config import NativeEngineConfig
from eagleray.engines.openai.config import OpenAIEngineConfig
from eagleray.errors import DataError


def test_distilling_stops_once_the_bound_cannot_be_kept_any_more() -> None:
    engine = OpenAIEngineConfig(url="http://h", max_retokenised_mismatch_ratio=0.02)
    require_emitted_ids(20, 1000, engine)
    with pytest.raises(DataError, match=r"http://h gives text .* for 21 of 1000 .*\(now 0\.02\)"):
        require_emitted_ids(21, 1000, engine)


def test_one_is_too_many_where_none_is_allowed() -> None:
    engine = OpenAIEngineConfig(url="http://h", max_retokenised_mismatch_ratio=0.0)
    require_emitted_ids(0, 10, engine)
    with pytest.raises(DataError):
        require_emitted_ids(1, 10, engine)


def test_engines_that_emit_ids_have_no_bound() -> None:
    require_emitted_ids(10, 10, NativeEngineConfig())
