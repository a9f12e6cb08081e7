"""The watchdog of one attempt: an agent on every node, and a thread of the driver that listens to them.

The thread decides nothing: `Watcher` judges, this carries out. Everything it looks at lies outside the ranks,
so it sees them also when they hang, are stopped or are dead.
"""

import logging
import os
import secrets
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.train import NCCLHangError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from eagleray.monitoring.catalogue import CATALOGUE, INCIDENTS, WATCHDOG
from eagleray.monitoring.ray_metrics import RayMetrics
from eagleray.settings import fingerprint
from eagleray.watchdog.agent import NodeAgent
from eagleray.watchdog.config import WatchdogConfig
from eagleray.watchdog.incident import Incident, write_incident
from eagleray.watchdog.telemetry import RankRecord
from eagleray.watchdog.verdicts import Verdict
from eagleray.watchdog.watcher import KEPT_KINDS, Watcher

LOOK_TIMEOUT_S = 5.0
"""A node whose agent does not answer by then is not heard of in this second."""
GATHER_TIMEOUT_S = 60.0
AGENTS_PER_NODE = 5
"""One after another: where so many were lost in one attempt, the next would be too."""
LAST_LOOKS = 3
"""Looks after the attempt has ended by itself: a dead rank may not have been judged yet."""

logger = logging.getLogger(__name__)


def heartbeat_folder(run: Path) -> Path:
    """A new place for the heartbeats of an attempt, the same path on every node, in memory."""
    memory = Path("/dev/shm")
    base = memory if memory.is_dir() else Path(tempfile.gettempdir())
    return base / f"eagleray-{os.getuid()}-{fingerprint(str(run))}-{secrets.token_hex(4)}"


class RunWatch:
    """Watches an attempt for the length of a block.

    Args:
        folder: Of the heartbeats.
        incidents: Where incidents are written.
        ray_evidence: Where Ray's own detector leaves what it found.
        label: Names the run in metrics and in the log.
    """

    def __init__(
        self,
        folder: Path,
        incidents: Path,
        ray_evidence: Path,
        label: str,
        ranks: int,
        config: WatchdogConfig,
    ):
        self._folder = folder
        self._ray_evidence = ray_evidence
        self._incidents = incidents
        self._label = label
        self._config = config
        self._watcher = Watcher(ranks, config)
        self._metrics = RayMetrics(WATCHDOG)
        self._agents: dict[str, Any] = {}
        self._placed: Counter[str] = Counter()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    @property
    def ending(self) -> Verdict | None:
        """The verdict that ended the attempt; None when it ended by itself."""
        return self._watcher.ending

    def __enter__(self) -> "RunWatch":
        self._place_agents()
        self._thread.start()
        return self

    def take_over(self, hang: NCCLHangError) -> None:
        """Keep a hang for which Ray's detector has ended the attempt."""
        verdict = self._watcher.take_over(f"Ray's detector over NCCL: {hang}")
        if verdict is not None:
            self._act(verdict)

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for _look in range(LAST_LOOKS):
            self._look()
        self._ask(lambda agent: agent.clear.remote(), GATHER_TIMEOUT_S)
        for agent in self._agents.values():
            ray.kill(agent)

    def _follow(self) -> None:
        next_s = time.monotonic()
        while not self._ended.wait(max(0.0, next_s - time.monotonic())):
            next_s = max(next_s + self._config.poll_s, time.monotonic())
            self._look()

    def _look(self) -> None:
        self._place_agents()
        if self._watcher.ending is not None:
            # An agent may have been lost when the ranks were to be ended, and a rank left that hangs.
            self._end_ranks()
            return
        records: list[RankRecord] = []
        for found in self._ask(lambda agent: agent.look.remote(), LOOK_TIMEOUT_S):
            records += found
        for verdict in self._watcher.observe(records):
            self._act(verdict)
        for reading in self._watcher.readings():
            tags = {"run": self._label} | ({} if reading.rank is None else {"rank": str(reading.rank)})
            self._metrics.set(CATALOGUE[reading.metric], reading.value, tags)

    def _act(self, verdict: Verdict) -> None:
        who = "no single rank" if verdict.culprit is None else f"rank {verdict.culprit}"
        told = f"Watchdog of {self._label}: {verdict.kind}, {who}. {' '.join(verdict.evidence)}"
        if verdict.kind not in KEPT_KINDS:
            logger.info("%s", told)
            return
        stacks: dict[int, str] = {}
        for found in self._ask(lambda agent: agent.stacks.remote(), GATHER_TIMEOUT_S):
            stacks |= found
        attachments: dict[str, bytes] = {}
        for kept in self._ask(lambda agent: agent.attachments.remote(), GATHER_TIMEOUT_S):
            attachments |= kept
        for path in self._ray_evidence.rglob("*.*"):
            attachments[f"ray-{path.name}"] = path.read_bytes()
        action = self._end() if verdict.ends_attempt else "A warning: the attempt goes on."
        incident = Incident(
            verdict=verdict,
            seconds=self._watcher.seconds,
            stacks=stacks,
            attachments=attachments,
            action=action,
        )
        place = write_incident(self._incidents, incident)
        self._metrics.add(INCIDENTS, 1, {"run": self._label, "kind": verdict.kind})
        logger.warning("%s %s See %s.", told, action, place / "summary.md")

    def _end_ranks(self) -> list[int]:
        ended = self._ask(lambda agent: agent.end_ranks.remote(), GATHER_TIMEOUT_S)
        return sorted(rank for ranks in ended for rank in ranks)

    def _end(self) -> str:
        """End every rank; returns what was done, as a sentence."""
        ended = self._end_ranks()
        done = (
            f"The processes of ranks {', '.join(map(str, ended))} were killed, which Ray Train "
            "reports as a failed worker group."
            if ended
            else "No rank was left to be ended: Ray Train had taken the worker group down."
        )
        return f"{done} The run goes on from its newest checkpoint as its recovery settings allow."

    def _place_agents(self) -> None:
        """Give every node its agent: an autoscaler may bring nodes for this very attempt, and agents die."""
        for node in ray.nodes():
            name = node["NodeID"]
            if node["Alive"] and name not in self._agents and self._placed[name] < AGENTS_PER_NODE:
                place = NodeAffinitySchedulingStrategy(name, soft=False)
                agent = ray.remote(num_cpus=0)(NodeAgent).options(scheduling_strategy=place)
                self._agents[name] = agent.remote(self._folder)
                self._agents[name].forget_others.remote()
                self._placed[name] += 1

    def _ask(self, question: Callable[[Any], Any], timeout_s: float) -> Sequence[Any]:
        """Every agent's answer; an agent that is lost or late gives none."""
        asked = {question(agent): node for node, agent in self._agents.items()}
        answered, late = ray.wait(list(asked), num_returns=len(asked), timeout=timeout_s)
        if late:
            logger.info("%d agents of the watchdog did not answer within %g s.", len(late), timeout_s)
        answers = []
        for answer in answered:
            try:
                answers.append(ray.get(answer))
            except RayError as error:
                logger.info("An agent of the watchdog is lost: %s", error)
                del self._agents[asked[answer]]
        return answers
