"""NCCL's flight recorder answers the watchdog's question while its process runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from eagleray.cluster.last_resorts import worker_environment
from eagleray.watchdog.snapshots import flight_files, flight_records

pytestmark = pytest.mark.gpu

RANK = (
    "import sys, time, torch, torch.distributed as dist;"
    "dist.init_process_group('nccl', init_method=f'file://{sys.argv[1]}', rank=0, world_size=1);"
    "dist.all_reduce(torch.ones(1, device='cuda')); torch.cuda.synchronize();"
    "print('ready', flush=True); time.sleep(60)"
)


def test_records_of_a_running_rank_come_when_they_are_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "beats"
    environment = os.environ | worker_environment(folder, nccl=True)["env_vars"]
    rank = subprocess.Popen(
        [sys.executable, "-c", RANK, str(tmp_path / "rendezvous")], stdout=subprocess.PIPE, env=environment
    )
    try:
        assert rank.stdout is not None
        assert rank.stdout.readline() == b"ready\n"
        assert len(flight_files(folder)) == 1
        records = flight_records(folder)
    finally:
        rank.kill()
        rank.communicate()
    assert list(records) == ["nccl-0"]
    assert b"allreduce" in records["nccl-0"].lower()
