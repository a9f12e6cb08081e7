"""What is kept of a verdict: one page to read, and everything it rests on.

incidents/3/
├── summary.md         what happened, which rank, why we think so, what was done
├── plot.html          power, memory and steps of the last minutes
├── records.jsonl      the records, one second a line; `sources/replay.py` reads them back
├── stacks/0.txt       where every rank stood
├── verdict.json       the same for programs
└── attachments/       nvidia-smi, NCCL's flight recorder, when there are any
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from eagleray.drawing.charts import Line, Point, line_panel
from eagleray.drawing.svg import nice_ticks
from eagleray.files import write_atomically, write_json_atomically, write_text_atomically
from eagleray.watchdog.sources.replay import write_trace
from eagleray.watchdog.telemetry import RankRecord
from eagleray.watchdog.verdicts import Verdict

GIB = 2.0**30
MAX_ROWS = 16
"""Ranks in the table of a summary: the culprit and its neighbours."""
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;margin:2rem;color:#1b1f24;background:#fff}"
    "figure{display:inline-block;width:24rem;margin:0 1rem 1rem 0}"
    ".plot text{fill:#1b1f24}.plot .tick{fill:#57606a;font-size:11px}.grid{stroke:#d8dee4}"
    ".line{fill:none;stroke-width:2}.series-0{stroke:#d55e00}.series-1{stroke:#0072b2}.series-2{stroke:#9aa5b1}"
)

Seconds = Sequence[Sequence[RankRecord]]


@dataclass(frozen=True, kw_only=True)
class Incident:
    """A verdict and what was gathered when it came."""

    verdict: Verdict
    seconds: Seconds
    """The last records, oldest first."""
    stacks: Mapping[int, str]
    attachments: Mapping[str, bytes]
    """File name -> content."""
    action: str
    """What was done about it, as a sentence."""


def write_incident(folder: Path, incident: Incident) -> Path:
    """Write the next incident of a run under `folder`, the summary last, and return its folder."""
    number = 1 + max((int(path.name) for path in folder.glob("*") if path.name.isdigit()), default=0)
    place = folder / str(number)
    place.mkdir(parents=True)
    write_trace(place / "records.jsonl", incident.seconds)
    for rank, text in incident.stacks.items():
        write_text_atomically(place / "stacks" / f"{rank}.txt", text)
    for name, content in incident.attachments.items():
        write_atomically(place / "attachments" / name, _writes(content))
    write_text_atomically(place / "plot.html", plot(incident))
    write_json_atomically(place / "verdict.json", asdict(incident.verdict))
    write_text_atomically(place / "summary.md", summary(incident, number))
    return place


def summary(incident: Incident, number: int) -> str:
    """The page that a person reads first."""
    verdict = incident.verdict
    culprit = "no single rank" if verdict.culprit is None else f"rank {verdict.culprit}"
    level = "ended the attempt" if verdict.ends_attempt else "warning"
    lines = [
        f"# Incident {number}: {verdict.kind}, {culprit} ({level})",
        "",
        "## Why",
        "",
        *(f"- {sentence}" for sentence in verdict.evidence),
        f"- Confidence {verdict.confidence:.2f}; {verdict.stalled_s:.0f} s without a sign of life.",
        "",
        "## What was done",
        "",
        incident.action,
        "",
        "## Ranks at the time",
        "",
        *_table(incident),
        "",
        "## Where they stood",
        "",
    ]
    for rank in _shown(incident):
        if rank in incident.stacks:
            lines += [f"Rank {rank}:", "", "```text", incident.stacks[rank].rstrip(), "```", ""]
    lines.append("All records are in records.jsonl, curves in plot.html, every rank's stacks in stacks/.")
    return "\n".join(lines) + "\n"


def plot(incident: Incident) -> str:
    """Power, memory and steps over the last minutes: the culprit, and lowest and highest of the others."""
    panels = (
        ("Power, W", lambda record: record.power_w),
        ("Device memory, GiB", lambda record: _gib(record.device_used_bytes)),
        ("Process memory, GiB", lambda record: _gib(record.host_rss_bytes)),
        ("Steps", lambda record: record.step),
    )
    figures = [
        f"<figure><figcaption>{title}</figcaption>{image}</figure>"
        for title, value in panels
        if (image := _panel(incident, title, value))
    ]
    legend = "<p>Orange: the culprit. Blue and grey: lowest and highest of the other ranks. Seconds.</p>"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{incident.verdict.kind}</title>'
        f"<style>{STYLE}</style>{legend}{''.join(figures)}</html>\n"
    )


def _panel(incident: Incident, title: str, value: Callable[[RankRecord], float | None]) -> str | None:
    culprit = incident.verdict.culprit
    series: dict[int, list[Point]] = {0: [], 1: [], 2: []}
    for second in range(len(incident.seconds)):
        known = {r.rank: float(v) for r in incident.seconds[second] if (v := value(r)) is not None}
        at_s = float(second - len(incident.seconds) + 1)
        others = [number for rank, number in known.items() if rank != culprit]
        if culprit in known:
            series[0].append(Point(at_s, known[culprit]))
        if others:
            series[1].append(Point(at_s, min(others)))
            series[2].append(Point(at_s, max(others)))
    lines = [
        Line(name, number, tuple(series[number]))
        for number, name in ((2, "highest"), (1, "lowest"), (0, "culprit"))
        if len(series[number]) > 1
    ]
    if not lines:
        return None
    heights = [point.y for line in lines for point in line.points]
    y_ticks = nice_ticks(min(0.0, *heights), max(max(heights), 1e-3))
    x_ticks = [tick for tick in nice_ticks(-len(incident.seconds), 0.0, 4) if tick <= 0]
    return str(line_panel(title, lines, x_ticks, y_ticks, "seconds before the verdict", marks=False))


def _table(incident: Incident) -> list[str]:
    newest = {record.rank: record for record in incident.seconds[-1]} if incident.seconds else {}
    rows = [
        "| rank | step | phase | silent, s | exchanges | power, W | device, GiB | process, GiB | alive |",
        "| ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for rank in _shown(incident):
        record = newest[rank]
        silent_s = None if record.beat_time_s is None else record.time_s - record.beat_time_s
        cells = (
            rank,
            record.step,
            record.phase,
            silent_s,
            record.collectives_entered,
            record.power_w,
            _gib(record.device_used_bytes),
            _gib(record.host_rss_bytes),
            record.process_alive,
        )
        rows.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    if (hidden := len(newest) - MAX_ROWS) > 0:
        rows.append(f"\n{hidden} more ranks are in records.jsonl.")
    return rows


def _shown(incident: Incident) -> list[int]:
    """The culprit first, then the others by number."""
    ranks = sorted(record.rank for record in incident.seconds[-1]) if incident.seconds else []
    return sorted(ranks, key=lambda rank: (rank != incident.verdict.culprit, rank))[:MAX_ROWS]


def _cell(value: object) -> str:
    if value is None:
        return "missing"
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def _gib(size_bytes: int | None) -> float | None:
    return None if size_bytes is None else size_bytes / GIB


def _writes(content: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(content)

    return write
