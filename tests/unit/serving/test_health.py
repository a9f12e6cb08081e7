"""Health is progress, not a process that is up."""

from eagleray.drafters.prompt_lookup.config import PromptLookupConfig
from eagleray.serving.account import Account
from eagleray.serving.config import DraftConfig, HealthConfig
from eagleray.serving.health import judge_health
from eagleray.speculation.acceptance import Cycle, summarize

CONFIG = HealthConfig(stall_s=10, window_cycles=4, collapse_tau=1.02)
DRAFT = DraftConfig(drafter=PromptLookupConfig(), expected_tau=3.0)
USELESS = summarize([Cycle(drafted=5, accepted=0, delivered=1)] * 4)


def judge(**facts):
    known = {"alive": True, "fault": None, "idle_s": 0.0, "draft": DRAFT, "recent": None}
    return judge_health(CONFIG, **{**known, **facts})


def test_an_engine_that_emits_tokens_or_has_nothing_to_do_is_healthy():
    assert judge().status == "healthy"
    assert judge(idle_s=9.9).serves


def test_requests_without_tokens_are_a_stall():
    health = judge(idle_s=10.1)
    assert (health.status, health.serves) == ("stalled", False)
    assert "10 s are allowed" in health.reason


def test_a_process_that_ended_is_stopped_with_its_reason():
    health = judge(fault="vLLM ended with exit code 9")
    assert (health.status, health.reason, health.serves) == ("stopped", "vLLM ended with exit code 9", False)


def test_a_thread_that_ended_is_stopped():
    assert judge(alive=False).status == "stopped"


def test_a_drafter_of_which_nothing_is_accepted_degrades_but_serves():
    health = judge(recent=USELESS)
    assert (health.status, health.serves) == ("degraded", True)
    assert judge(recent=USELESS, draft=None).status == "healthy"


def test_traffic_that_the_drafter_was_not_trained_on_is_told_of():
    weak = summarize([Cycle(drafted=5, accepted=1, delivered=2)] * 4)
    health = judge(recent=weak)
    assert (health.status, health.serves) == ("drifted", True)
    assert "80% of the expected 3.0" in health.reason
    assert judge(recent=weak, draft=DraftConfig(drafter=PromptLookupConfig())).status == "healthy"
    assert judge(recent=summarize([Cycle(drafted=5, accepted=2, delivered=3)] * 4)).status == "healthy"


def test_acceptance_of_now_is_known_once_the_window_is_full():
    account = Account(2)
    assert account.recent is None
