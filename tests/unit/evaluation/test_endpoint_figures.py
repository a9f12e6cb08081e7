"""From served answers to a verdict per load: planted losses, nulls and lies are called what they are."""

import random

import pytest

from eagleray.errors import DataError
from eagleray.evaluation.endpoint.client import Served
from eagleray.evaluation.endpoint.config import ArmConfig, EndpointConfig
from eagleray.evaluation.endpoint.figures import load_entry, token_gaps_s
from eagleray.evaluation.endpoint.load import Block
from eagleray.evaluation.endpoint.report import build_endpoint_report, shared_regime
from eagleray.evaluation.html import render_html
from eagleray.evaluation.machine_load import WindowLoad
from eagleray.evaluation.markdown import to_markdown
from eagleray.speculation.acceptance import Cycle

CONFIG = EndpointConfig(
    plain=ArmConfig(url="http://127.0.0.1:1/plain"),
    drafted={"eagle3": ArmConfig(url="http://127.0.0.1:1/eagle3/v1")},
    concurrencies=(1, 4),
)
PROMPTS = 24
STEP_S = 0.05


def served(number, cycle_s, tau, noise, changed=False):
    """An answer of 20 cycles of `tau` tokens, each of which takes `cycle_s`."""
    times = [0.1]
    for _ in range(20):
        times.append(times[-1] + cycle_s * noise())
    return Served(
        prompt_id=f"p{number}",
        family="code" if number % 2 else "prose",
        prompt_tokens=10,
        tokens=1 + 20 * tau,
        answer_ids=(*range(20 * tau), 99 if changed else 98),
        text="",
        finish_reason="length",
        first_token_s=times[0],
        chunk_s=tuple(times),
        first_chunk_tokens=1,
        end_s=times[-1],
        cycles=(Cycle(drafted=tau - 1, accepted=tau - 1, delivered=tau),) * 20,
    )


def measured(cycle_s, tau=1, lossy=False, plain_drift=1.0, concurrency=1):
    """Blocks of 4 prompts; plain steps take 50 ms, every time with 5 % of noise."""
    draw = random.Random(3)

    def noise():
        return draw.gauss(1.0, 0.05)

    blocks = []
    for number in range(PROMPTS // 4):
        places = range(4 * number, 4 * number + 4)
        drift = plain_drift if number >= PROMPTS // 8 else 1.0
        plain = [served(place, STEP_S * drift, 1, noise) for place in places]
        if tau > 1:
            plain = [one.model_copy(update={"answer_ids": (*range(20 * tau), 98)}) for one in plain]
        drafted = [served(place, cycle_s, tau, noise, changed=lossy and place == 5) for place in places]
        for arm, answers in (("plain", plain), ("eagle3", drafted)):
            blocks.append(
                Block(
                    arm=arm,
                    load=f"closed-{concurrency}",
                    concurrency=concurrency,
                    number=number,
                    wall_s=sum(answer.end_s for answer in answers),
                    machine_load=WindowLoad(
                        wall_s=1.0,
                        load_average_before=1.0,
                        load_average_after=2.0,
                        cpu_ratio=0.9,
                        own_cpu_ratio=0.1,
                    ),
                    answers=tuple(answers),
                )
            )
    return blocks


def test_a_drafter_of_which_nothing_is_accepted_and_that_costs_time_is_a_loss():
    entry = load_entry("eagle3", measured(cycle_s=STEP_S * 1.3), CONFIG)
    assert entry["verdict"] == "loss"
    assert entry["speedup_ratio"] == pytest.approx(1 / 1.3, rel=0.03)


def test_a_drafter_with_a_high_acceptance_length_that_is_slower_still_is_a_loss():
    entry = load_entry("eagle3", measured(cycle_s=STEP_S * 4, tau=3), CONFIG)
    assert entry["acceptance_length"] == 3.0
    assert entry["verdict"] == "loss"


def test_a_drafter_that_pays_for_itself_exactly_is_undecided():
    entry = load_entry("eagle3", measured(cycle_s=STEP_S), CONFIG)
    assert entry["verdict"] == "undecided"
    assert entry["speedup_low"] < 1.0 < entry["speedup_high"]


def test_a_drafter_that_wins_is_a_win_for_users_and_in_all():
    entry = load_entry("eagle3", measured(cycle_s=STEP_S * 1.5, tau=3), CONFIG)
    assert entry["verdict"] == "win"
    assert entry["speedup_ratio"] == pytest.approx(2.0, rel=0.03)
    assert 1.5 < entry["throughput_ratio"] < 2.0


def test_one_answer_that_differs_takes_the_verdict_away():
    entry = load_entry("eagle3", measured(cycle_s=STEP_S * 1.5, tau=3, lossy=True), CONFIG)
    assert entry["verdict"] == "undecided"
    assert entry["divergences"] == ["p5"]
    report = build_endpoint_report(
        {"closed-1": measured(cycle_s=STEP_S * 1.5, tau=3, lossy=True)}, CONFIG, {"server": {}}
    )
    assert report["drafters"]["eagle3"]["families"]["code"]["greedy_exact_ratio"] < 1.0
    assert report["exactness"][0]["outcome"] == "failed"
    assert "closed-1, prompt p5" in report["exactness"][0]["detail"]


def test_a_machine_that_changes_its_speed_gives_no_verdict():
    entry = load_entry("eagle3", measured(cycle_s=STEP_S * 1.5, tau=3, plain_drift=1.5), CONFIG)
    assert (entry["verdict"], "drifted" in entry["verdict_reason"]) == ("undecided", True)


def test_a_speedup_beyond_the_acceptance_length_is_called_impossible_and_wins_nothing():
    entry = load_entry("eagle3", measured(cycle_s=STEP_S * 0.5, tau=3), CONFIG)
    assert entry["verdict"] == "undecided"
    assert entry["verdict_reason"].startswith("impossible: speedup 5.9")


def test_the_slowest_family_is_named():
    blocks = measured(cycle_s=STEP_S * 1.5, tau=3)
    slow = [
        block.model_copy(
            update={
                "answers": tuple(
                    one.model_copy(update={"chunk_s": tuple(2 * s for s in one.chunk_s)})
                    if one.family == "prose"
                    else one
                    for one in block.answers
                )
            }
        )
        if block.arm == "eagle3"
        else block
        for block in blocks
    ]
    drafter = build_endpoint_report({"closed-1": slow}, CONFIG, {"server": {}})["drafters"]["eagle3"]
    assert drafter["worst_slice"] == "category prose"
    assert set(drafter["slices"]) == {"category code", "category prose", "prompts of 1 to 63 tokens"}


def test_time_by_part_is_per_token_that_cycles_delivered_and_unknown_where_a_server_does_not_tell():
    blocks = measured(cycle_s=STEP_S * 1.5, tau=3)
    assert load_entry("eagle3", blocks, CONFIG)["drafted"]["engine_ms_per_token"] is None
    # A block is 4 answers of 60 tokens after the first.
    engine_s = {"prefill": 9.0, "draft": 2.4, "verify": 4.8, "host": 0.24}
    told = [block.model_copy(update={"engine_s": engine_s}) for block in blocks]
    parts = load_entry("eagle3", told, CONFIG)["drafted"]["engine_ms_per_token"]
    assert parts == pytest.approx({"draft": 10.0, "verify": 20.0, "host": 1.0})


def test_tokens_of_one_chunk_come_after_no_wait():
    one = served(0, 1.0, 3, lambda: 1.0)
    gaps = token_gaps_s([one])
    assert len(gaps) == one.tokens - 1
    assert gaps.count(0.0) == 40


def test_servers_that_differ_in_more_than_the_drafter_do_not_compare():
    plain = {"engine": "native", "machine": {"threads": 1}, "draft": None, "drafter_hash": None}
    drafted = {**plain, "draft": {"depth": 5}, "drafter_hash": "abc"}
    regime = shared_regime({"plain": plain, "eagle3": drafted})
    assert regime["drafter_hashes"] == {"eagle3": "abc"}
    with pytest.raises(DataError, match=r"machine\.threads was 1, now 2"):
        shared_regime({"plain": plain, "eagle3": {**drafted, "machine": {"threads": 2}}})


def test_the_report_says_its_verdicts_first_in_every_form():
    blocks = {
        "closed-1": measured(cycle_s=STEP_S * 1.5, tau=3),
        "closed-4": measured(cycle_s=STEP_S * 4, tau=3, concurrency=4),
    }
    regime = {"server": {"engine": "native"}, "drafts": {"eagle3": {"depth": 2}}}
    report = build_endpoint_report(blocks, CONFIG, regime)
    # From 2.0 at 1 to 0.75 at 4: four fifths of the way over two doublings.
    assert report["drafters"]["eagle3"]["break_even"]["concurrency"] == pytest.approx(2**1.6, rel=0.05)
    markdown = to_markdown(report)
    assert markdown.index("speeds up closed-1") < markdown.index("| eagle3 | closed-1 | win |")
    page = render_html(report)
    assert page.index("slows down closed-4") < page.index("<table>")
    assert "Break-even of eagle3" in page
    assert "<script" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    # Cycles of 1.5 and of 4 plain steps, whatever the category: each category predicts the other.
    drafter = report["drafters"]["eagle3"]
    costs = [cost["fixed_steps"] for cost in drafter["prediction"]["costs"].values()]
    assert costs == pytest.approx([1.5, 4.0], rel=0.05)
    for point in drafter["prediction"]["points"]:
        assert point["predicted_speedup"] == pytest.approx(point["measured_speedup"], rel=0.1)
