"""Verdicts on small jobs told second by second; every threshold crossed by hand."""

import dataclasses
import re

import numpy as np
import pytest

from eagleray.errors import ConfigError, DataError
from eagleray.settings import validate
from eagleray.watchdog.config import DetectorConfig
from eagleray.watchdog.detector import watch
from eagleray.watchdog.telemetry import RankRecord
from tests.unit.watchdog.story import DEVICE, HEARTBEAT, Story


@pytest.fixture
def story() -> Story:
    story = Story()
    story.run(40)
    assert story.verdicts == []
    return story


def evidence(story: Story) -> str:
    return " ".join(story.verdicts[-1].evidence)


def test_a_rank_that_never_enters_the_exchange_is_warned_of_and_then_ends_the_attempt(story: Story) -> None:
    story.stand(14, story.freeze(2))
    assert story.verdicts == []
    story.stand(2, story.freeze(2))
    assert story.kinds() == [("collective_hang", 2, False)]
    assert "Ranks 0, 1, 3 waited in an exchange that rank 2 never entered." in evidence(story)
    assert "in the phase forward" in evidence(story)
    story.stand(43, story.freeze(2))
    assert len(story.verdicts) == 1
    story.stand(2, story.freeze(2))
    assert story.kinds()[1:] == [("collective_hang", 2, True)]
    assert story.verdicts[-1].stalled_s == pytest.approx(60.2, abs=1.0)


def test_a_failed_allocation_makes_it_an_oom_and_brings_the_warning_forward(story: Story) -> None:
    story.stand(10, story.freeze(1, oom_count=1))
    assert story.kinds() == [("oom_hang", 1, False)]
    assert "failed to allocate memory 1 times" in evidence(story)
    story.stand(51, story.freeze(1, oom_count=1))
    assert story.kinds()[1:] == [("oom_hang", 1, True)]


def test_memory_that_grew_beyond_the_peers_makes_it_an_oom_without_any_counter(story: Story) -> None:
    story.stand(16, story.freeze(3, oom_count=None, device_used_bytes=78 << 30))
    assert story.kinds() == [("oom_hang", 3, False)]
    assert re.search(r"Rank 3 holds 78\.0 GiB, \+2\d\.\d% against its own healthy mean", evidence(story))


def test_memory_of_processes_stands_in_where_no_device_tells() -> None:
    story = Story(ranks=2)
    no_device = {rank: dict(DEVICE) for rank in range(2)}
    story.run(40, no_device)
    grown = story.freeze(1, host_rss_bytes=5 << 30)
    story.stand(16, {rank: changes | DEVICE for rank, changes in grown.items()})
    assert story.kinds() == [("oom_hang", 1, False)]


def test_memory_that_grew_on_all_ranks_alike_is_no_oom(story: Story) -> None:
    frozen = story.freeze(3)
    for changes in frozen.values():
        changes["device_used_bytes"] = 78 << 30
    story.stand(16, frozen)
    assert story.kinds() == [("collective_hang", 3, False)]


def test_a_failed_allocation_that_was_survived_is_forgotten(story: Story) -> None:
    story.run(1, {1: {"oom_count": 1}})
    story.run(5, {1: {"oom_count": 1}})
    counted = story.freeze(2)
    counted[1]["oom_count"] = 1
    story.stand(16, counted)
    assert story.kinds() == [("collective_hang", 2, False)]


def test_with_equal_counts_the_one_that_idles_among_the_spinning_is_the_culprit(story: Story) -> None:
    story.stand(16, {2: {"utilisation_ratio": 0.0}})
    assert story.kinds() == [("collective_hang", 2, False)]
    assert "Every rank has entered the same exchange" in evidence(story)


def test_with_equal_counts_and_equal_signs_no_rank_is_blamed(story: Story) -> None:
    story.stand(16)
    assert story.kinds() == [("collective_hang", None, False)]


def test_a_stopped_process_inside_the_exchange_is_the_culprit_and_ends_sooner(
    story: Story,
) -> None:
    story.stand(31, {0: {"process_stopped": True}})
    assert story.kinds() == [("collective_hang", 0, False), ("collective_hang", 0, True)]
    assert "stopped by a signal" in evidence(story)


def test_a_stopped_loader_is_no_lack_of_data(story: Story) -> None:
    story.stand(31, story.freeze(0, phase="data", process_stopped=True))
    assert story.kinds()[-1] == ("collective_hang", 0, True)


def test_a_blocked_loader_is_told_early_and_ends_late(story: Story) -> None:
    blocked = story.freeze(1, phase="data")
    story.stand(19, blocked)
    assert story.verdicts == []
    story.stand(3, blocked)
    assert story.kinds() == [("data_starved", 1, False)]
    story.stand(277, blocked)
    assert len(story.verdicts) == 1
    story.stand(3, blocked)
    assert story.kinds()[1:] == [("data_starved", 1, True)]


def test_data_that_no_rank_gets_has_no_culprit(story: Story) -> None:
    story.stand(25, {rank: {"phase": "data", "collectives_entered": story.step} for rank in range(4)})
    assert story.kinds() == [("data_starved", None, False)]


def test_a_process_that_is_gone_ends_the_attempt_at_the_second_look(story: Story) -> None:
    gone = story.freeze(2, process_alive=False) | {}
    story.stand(1, gone)
    assert story.verdicts == []
    story.stand(1, gone)
    assert story.kinds() == [("dead_rank", 2, True)]


def test_of_several_dead_the_first_to_fall_silent_is_the_culprit(story: Story) -> None:
    story.stand(5, {3: {"process_alive": True}})
    early = story.last[3].beat_time_s
    assert early is not None
    story.stand(2, {0: {"process_alive": False}, 3: {"process_alive": False, "beat_time_s": early - 4}})
    assert story.kinds() == [("dead_rank", 3, True)]


def test_of_several_dead_the_first_to_be_missed_is_the_culprit(story: Story) -> None:
    """Rank 0 was silent longer, but still there when rank 3 was gone already."""
    story.stand(1, {3: {"process_alive": False}})
    early = story.last[0].beat_time_s
    assert early is not None
    story.stand(2, {3: {"process_alive": False}, 0: {"process_alive": False, "beat_time_s": early - 4}})
    assert story.kinds() == [("dead_rank", 3, True)]


def test_a_machine_that_was_suspended_wakes_without_an_alarm(story: Story) -> None:
    """Ten minutes in which nobody looked, after which every rank's last word is ten minutes old."""
    story.stand(2)
    story.time_s += 600
    story.last = [dataclasses.replace(record, time_s=record.time_s + 600) for record in story.last]
    story.stand(2)
    assert story.verdicts == []
    story.stand(50, story.freeze(3))
    assert [kind for kind, _, _ in story.kinds()] == ["collective_hang", "collective_hang"]


def test_ranks_that_have_finished_may_leave(story: Story) -> None:
    story.stand(2, {rank: {"finished": True} for rank in range(4)})
    story.stand(600, {rank: {"finished": True, "process_alive": False} for rank in range(4)})
    assert story.verdicts == []


@pytest.mark.parametrize(
    ("phase", "seconds"), [("evaluate", 20 * 60), ("checkpoint", 25 * 60), ("compile", 10 * 60)]
)
@pytest.mark.parametrize("everyone", [True, False])
def test_long_announced_pauses_raise_nothing(story: Story, phase: str, seconds: int, everyone: bool) -> None:
    paused = story.freeze(0, phase=phase)
    if everyone:
        paused = dict.fromkeys(range(4), paused[0])
    story.stand(seconds, paused)
    story.run(30)
    assert story.verdicts == []


@pytest.mark.parametrize("phase", ["init", "compile"])
def test_a_first_compile_of_ten_minutes_raises_nothing(phase: str) -> None:
    story = Story()
    story.run(1)
    start = {rank: {"phase": phase, "optimizer_step_time_s": None, "step": 0} for rank in range(4)}
    story.stand(600, start)
    story.run(30)
    assert story.verdicts == []


def test_first_steps_are_given_more_time(story: Story) -> None:
    young = Story()
    young.run(3)
    young.stand(40, young.freeze(2))
    assert young.verdicts == []
    young.stand(10, young.freeze(2))
    assert young.kinds() == [("collective_hang", 2, False)]
    young.stand(840, young.freeze(2))
    assert len(young.verdicts) == 1
    young.stand(15, young.freeze(2))
    assert young.kinds()[1:] == [("collective_hang", 2, True)]


def test_an_oom_inside_an_evaluation_is_warned_of_and_does_not_end_it(story: Story) -> None:
    paused = story.freeze(0, phase="evaluate", oom_count=1)
    story.stand(1200, paused)
    assert story.kinds() == [("oom_hang", 0, False)]


def test_a_pause_that_is_overdone_ends(story: Story) -> None:
    story.stand(1801, story.freeze(0, phase="checkpoint"))
    assert ("collective_hang", 0, True) in story.kinds()


def test_a_culprit_that_draws_power_may_be_working_and_gets_five_minutes(story: Story) -> None:
    working = story.freeze(2, power_w=590.0)
    story.stand(290, working)
    assert story.kinds() == [("collective_hang", 2, False)]
    story.stand(15, working)
    assert story.kinds()[1:] == [("collective_hang", 2, True)]


def test_long_steps_are_given_longer() -> None:
    story = Story()
    for _ in range(20):
        story.run(1)
        story.stand(11)
    assert story.verdicts == []
    story.run(1)
    story.stand(20, story.freeze(1))
    assert story.verdicts == []
    story.stand(6, story.freeze(1))
    assert story.kinds() == [("collective_hang", 1, False)]


def test_forty_minutes_without_device_telemetry_are_told_and_end_nothing(story: Story) -> None:
    story.run(2636, {1: dict(DEVICE), 2: dict(DEVICE)})
    assert story.kinds() == [("telemetry_lost", None, False)]
    assert "No device telemetry of ranks 1, 2" in evidence(story)
    story.run(1)
    assert story.kinds()[1:] == [("healthy", None, False)]


def test_a_rank_that_is_not_heard_while_others_step_is_told_by_number(story: Story) -> None:
    story.run(60, {3: HEARTBEAT | DEVICE | {"process_alive": None}})
    assert story.kinds() == [("telemetry_lost", 3, False)]


def test_silence_of_all_ranks_is_never_a_hang(story: Story) -> None:
    story.stand(1200, dict.fromkeys(range(4), HEARTBEAT | DEVICE))
    assert {kind for kind, _, _ in story.kinds()} == {"telemetry_lost"}
    assert not any(ends for _, _, ends in story.kinds())


def test_waiting_for_a_rank_that_is_not_heard_is_given_longer(story: Story) -> None:
    lost = story.freeze(3) | {3: HEARTBEAT | DEVICE | {"process_alive": None}}
    story.stand(850, lost)
    assert not any(verdict.ends_attempt for verdict in story.verdicts)
    story.stand(60, lost)
    assert story.verdicts[-1].ends_attempt


def test_a_rank_that_works_half_as_long_again_is_a_straggler() -> None:
    slow = Story()
    for _ in range(40):
        waited = {rank: {"waited_s": 0.5 * (slow.step + 1)} for rank in (0, 2, 3)}
        slow.run(1, waited | {1: {"waited_s": 0.01 * (slow.step + 1)}})
    assert slow.kinds() == [("straggler", 1, False)]
    assert "outside of waiting for data" in evidence(slow)


def test_a_rank_that_is_slow_because_of_its_data_is_starved() -> None:
    story = Story()
    for _ in range(40):
        step = story.step + 1
        waited = {rank: {"waited_s": 0.6 * step} for rank in (0, 2, 3)}
        story.run(1, waited | {1: {"waited_s": 0.01 * step, "data_s": 0.65 * step}})
    assert story.kinds() == [("data_starved", 1, False)]


def test_moving_again_is_told_once(story: Story) -> None:
    story.stand(30, story.freeze(2))
    story.run(30)
    assert story.kinds() == [("collective_hang", 2, False), ("healthy", None, False)]


def test_signs_of_life_without_any_step_end_in_the_end(story: Story) -> None:
    for second in range(320):
        beats = {"beat_time_s": story.time_s + 1.0 - 0.1, "collectives_entered": story.step}
        story.stand(1, {0: beats | {"collectives_entered": story.step - 1}})
        if second < 290:
            assert story.verdicts == []
    assert story.kinds() == [("collective_hang", 0, True)]


def test_the_state_is_a_value(story: Story) -> None:
    assert story.state is not None
    before = {f.name: getattr(story.state, f.name).copy() for f in dataclasses.fields(story.state)}
    records = [dataclasses.replace(record, step=story.step + 1) for record in story.last]
    first = watch(story.state, records, ranks=4, config=story.config)[0]
    second = watch(story.state, records, ranks=4, config=story.config)[0]
    for name, values in before.items():
        np.testing.assert_array_equal(getattr(story.state, name), values)
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


def test_records_of_foreign_ranks_are_refused() -> None:
    with pytest.raises(DataError, match=r"\[0, 4\]"):
        watch(
            None,
            [RankRecord(rank=0, time_s=1.0), RankRecord(rank=4, time_s=1.0)],
            ranks=4,
            config=DetectorConfig(),
        )


def test_an_end_before_its_warning_is_refused() -> None:
    with pytest.raises(ConfigError, match="warn_after_s 70"):
        validate(DetectorConfig, {"warn_after_s": 70}, "test")


def test_a_failed_allocation_does_not_shorten_the_patience_with_storage(story: Story) -> None:
    blocked = story.freeze(1, phase="data", oom_count=1)
    story.stand(290, blocked)
    assert story.kinds() == [("oom_hang", 1, False)]
    story.stand(15, blocked)
    assert story.kinds()[1:] == [("oom_hang", 1, True)]


def test_seconds_without_telemetry_are_not_seconds_of_standing_still(story: Story) -> None:
    """The last word was 55 s old when telemetry stopped; 9 s of silence do not make it 64."""
    story.stand(55, story.freeze(2))
    story.stand(9, dict.fromkeys(range(4), HEARTBEAT | DEVICE))
    assert not any(verdict.ends_attempt for verdict in story.verdicts)


def test_ranks_that_are_taken_down_after_one_has_failed_are_no_dead_ranks(story: Story) -> None:
    story.stand(1, {1: {"finished": True}})
    story.stand(5, {1: {"finished": True}} | {rank: {"process_alive": False} for rank in (0, 2, 3)})
    assert story.verdicts == []


def test_a_rank_that_died_stays_dead_when_its_peers_fail_of_it(story: Story) -> None:
    story.stand(2, story.freeze(2, process_alive=False) | {0: {"finished": True}})
    assert story.kinds() == [("dead_rank", 2, True)]


def test_of_ranks_that_fell_silent_together_none_is_blamed(story: Story) -> None:
    together = {rank: {"phase": "forward", "collectives_entered": story.step} for rank in range(4)}
    story.stand(16, together)
    assert story.kinds() == [("collective_hang", None, False)]


def test_of_ranks_before_the_exchange_the_one_silent_longest_is_the_culprit(story: Story) -> None:
    before = {rank: {"phase": "forward", "collectives_entered": story.step} for rank in range(4)}
    first = story.last[3].beat_time_s
    assert first is not None
    before[3]["beat_time_s"] = first - 3
    story.stand(17, before)
    assert story.kinds() == [("collective_hang", 3, False)]
