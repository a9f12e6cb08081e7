"""Event files say what was appended, once a step."""

import struct
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event

from eagleray.monitoring.tensorboard import TensorBoardLog


def read_events(folder: Path) -> list[Event]:
    """Records of a length, its checksum, the event and its checksum."""
    events = []
    for path in sorted(folder.glob("events.*")):
        content = path.read_bytes()
        at = 0
        while at < len(content):
            (length,) = struct.unpack_from("<Q", content, at)
            events.append(Event.FromString(content[at + 12 : at + 12 + length]))
            at += 12 + length + 4
    return events


def test_curves_can_be_read_back_and_a_restart_strikes_out_repeated_steps(tmp_path: Path) -> None:
    first = TensorBoardLog(tmp_path)
    first.append(1, {"loss": 4.0})
    first.append(2, {"loss": 3.0, "tau/replay": 1.5})
    first.close()
    values = [(e.step, v.tag, v.simple_value) for e in read_events(tmp_path) for v in e.summary.value]
    assert values == [(1, "loss", 4.0), (2, "loss", 3.0), (2, "tau/replay", 1.5)]
    again = TensorBoardLog(tmp_path / "again")
    again.append(2, {"loss": 2.5})
    again.close()
    starts = [e for e in read_events(tmp_path / "again") if e.session_log.status == e.session_log.START]
    assert [event.step for event in starts] == [2]
