"""Faults injected into a whole run: no room, a killed runner, two runs at once, a clock that jumps.

Where a test names a command, it is the kit's own in a process of its own.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import psutil
import pytest
from test_runner import output, write

import labkit
from labkit import processes, run_folder, runner
from labkit.errors import BadArgument

pytestmark = pytest.mark.faults

ROOT = Path(labkit.__file__).parents[1]
RUN = [sys.executable, "-m", "labkit", "run", "--device", "cpu"]
FILLS = "print('x' * 4_000_000)"
WAITS = "import pathlib, time\npathlib.Path({!r}).touch()\ntime.sleep(600)"


def environment(folder: Path, **more: str) -> dict[str, str]:
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "LABKIT_NOTEBOOKS": str(folder), "PYTHONPATH": paths, **more}


def start(folder: Path, *arguments: str, **more: str) -> subprocess.Popen:
    return subprocess.Popen([*RUN, *arguments], cwd=folder.parent, text=True,
                            env=environment(folder, **more), stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, start_new_session=True)


def wait_for(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def load(out: Path) -> dict:
    return json.loads((out / "report.json").read_text())


def statuses(out: Path) -> dict[str, str]:
    return {entry["lesson"]: entry["status"] for entry in load(out)["lessons"]}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "lessons").mkdir()
    return tmp_path / "lessons"


# No room

def test_a_copy_that_is_too_large_for_its_disk(folder):
    """A limit on the size of a file, as a quota sets it."""
    write(folder, "01_fills", [FILLS])
    write(folder, "02_two", ["print(2)"])
    done = subprocess.run(
        [*RUN, "--out", "out"], cwd=folder.parent, env=environment(folder), text=True,
        capture_output=True, timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000)))
    out = folder.parent / "out"
    assert done.returncode == 1, done.stderr
    assert list(statuses(out).values()) == ["crashed", "passed"]
    assert ("The executed copy could not be written (File too large); free some space, and run "
            "again with --resume.") in load(out)["lessons"][0]["error"]["message"]
    assert (out / "01_fills.ipynb").read_bytes() == (folder / "01_fills.ipynb").read_bytes()
    assert "Traceback" not in done.stdout + done.stderr


MOUNT = "mount -t tmpfs -o size=3m none {disk} && {then}"


def on_a_small_disk(disk: Path, script: str, folder: Path) -> subprocess.CompletedProcess:
    """Runs `script` where `disk` is a disk of 3 MB, which nothing outside sees."""
    for user in ([], ["--map-root-user"]):
        command = ["unshare", *user, "--mount", "sh", "-c"]
        if not subprocess.run([*command, MOUNT.format(disk=disk, then="true")],
                              capture_output=True).returncode:
            return subprocess.run([*command, MOUNT.format(disk=disk, then=script)], text=True,
                                  cwd=folder.parent, capture_output=True, timeout=240,
                                  env=environment(folder, RUN=" ".join(RUN)))
    pytest.skip("needs the right to mount a small disk")


@pytest.mark.slow
def test_a_full_disk_costs_one_lesson(folder, tmp_path):
    disk, out = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    write(folder, "01_fills", [FILLS])
    write(folder, "02_two", ["print(2)"])
    done = on_a_small_disk(disk, f"$RUN --out {disk}/out; echo code $?; cp -r {disk}/out {out}",
                           folder)
    assert "code 1" in done.stdout, done.stderr
    assert list(statuses(out).values()) == ["crashed", "passed"]
    assert "No space left on device" in load(out)["lessons"][0]["error"]["message"]
    assert output(out / "02_two.ipynb") == "2\n"
    assert not done.stderr and not load(out)["waiting"]


def test_a_disk_that_stays_full_is_resumed_when_there_is_room(folder, tmp_path):
    disk, out = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    write(folder, "01_fills", [f"import errno\nif not __import__('os').path.exists({str(out)!r}):\n"
                               f"    with open({str(disk / 'filler')!r}, 'wb', 0) as file:\n"
                               "        while file.write(bytes(4096)):\n            pass"])
    write(folder, "02_two", ["print(2)"])
    done = on_a_small_disk(
        disk, f"$RUN --out {disk}/out; echo code $?; cp -r {disk}/out {out}; rm {disk}/filler; "
        f"$RUN --resume --out {disk}/out; echo code $?; cp -r {disk}/out {out}-2", folder)
    assert done.stdout.count("code 1") == 1 and done.stdout.count("code 0") == 1, done.stderr
    assert statuses(out) == {}
    assert load(out)["waiting"] == ["01_fills", "02_two"]
    sentence, = done.stderr.splitlines()
    assert sentence.startswith("labkit: The report cannot be written to ") and (
        "No space left on device" in sentence and sentence.endswith("run again with --resume."))
    assert set(statuses(out.with_name("kept-2")).values()) == {"passed"}


def test_a_disk_that_may_only_be_read(folder, tmp_path):
    (disk := tmp_path / "disk").mkdir()
    write(folder, "01_one", ["print(1)"])
    done = on_a_small_disk(disk, f"mount -o remount,ro {disk}; $RUN --out {disk}; echo code $?; "
                           f"$RUN --out {disk}/out; echo code $?", folder)
    assert done.stdout.count("code 2") == 2
    assert done.stderr.count("cannot be written (Read-only file system); choose another one") == 2
    assert len(done.stderr.splitlines()) == 2


# A runner that dies

def test_a_lesson_ends_with_its_runner(folder, tmp_path):
    """Also what it started in another session; and the files it had are gone."""
    (temporary := tmp_path / "tmp").mkdir()
    write(folder, "01_waits", [
        "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; "
        "time.sleep(600)'], start_new_session=True)", WAITS.format(str(tmp_path / "waits"))])
    process = start(folder, "--out", "out", TMPDIR=str(temporary))
    wait_for((tmp_path / "waits").exists)
    run = load(tmp_path / "out")["id"]
    assert len(list(processes.marked(run))) >= 3  # the worker, its kernel, what that started
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not list(processes.marked(run)), 15)
    wait_for(lambda: not list(temporary.iterdir()), 15)
    assert statuses(tmp_path / "out") == {}
    assert load(tmp_path / "out")["waiting"] == ["01_waits"]


def test_what_a_killed_run_left_is_ended_when_it_is_resumed(folder, tmp_path):
    """The worker was killed with its runner, so nobody was left to end the kernel's child."""
    write(folder, "01_waits", [
        f"import os, pathlib, subprocess, sys\nflag = pathlib.Path({str(tmp_path / 'waits')!r})\n"
        "if not flag.exists():\n    subprocess.Popen([sys.executable, '-c', 'import time; "
        "time.sleep(600)'], start_new_session=True)\n    flag.touch()\n    "
        "import time; time.sleep(600)"])
    process = start(folder, "--out", "out")
    wait_for((tmp_path / "waits").exists)
    run = load(tmp_path / "out")["id"]
    everything = list(processes.marked(run))
    worker = [one for one in everything if "labkit.worker" in one.cmdline()]
    sleeper = [one for one in everything if "-c" in one.cmdline()]
    assert len(worker) == len(sleeper) == 1
    worker[0].suspend()  # so that it does not act on its runner's death
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    worker[0].kill()
    assert processes.alive(sleeper[0])
    report = runner.run(resume=True, out=tmp_path / "out", folder=folder, device="cpu")
    assert report.lessons[0].status == "passed"
    wait_for(lambda: not list(processes.marked(run)), 10)


def test_a_second_ctrl_c_waits_for_nothing(folder, tmp_path):
    """The lesson has suspended its worker, which can save no copy."""
    write(folder, "01_suspends", [
        f"import os, pathlib, signal, time\npathlib.Path({str(tmp_path / 'waits')!r}).touch()\n"
        "os.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(600)"])
    process = start(folder, "--out", "out")
    wait_for((tmp_path / "waits").exists)
    run = load(tmp_path / "out")["id"]
    wait_for(lambda: any(one.status() == psutil.STATUS_STOPPED for one in processes.marked(run)))
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130 and not error
    assert time.monotonic() - began < processes.GRACE
    assert statuses(tmp_path / "out") == {"01_suspends": "failed"}
    assert not list(processes.marked(run))


SMALL = {
    "01_one": ["print(1)"],
    "02_two": ["import time; time.sleep(0.5)", "print(2)"],
    "03_fails": ["raise ValueError('always')"],
    "04_four": ["print('x' * 100_000)", "print(4)"],
    "05_dies": ["import os; os._exit(3)"],
}


def comparable(out: Path) -> dict:
    """The report without what differs between two runs: times, the run's id, and whether a kernel
    that is being ended still says something."""
    report = load(out)
    for key in ("id", "started", "resumed", "finished"):
        del report[key]
    for entry in report["lessons"]:
        assert entry.pop("seconds") > 0
        entry.pop("log", None)
    return report


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow),
                                  pytest.param(3, marks=pytest.mark.slow)])
def test_a_run_killed_five_times_ends_as_an_unkilled_one(folder, tmp_path, seed):
    for stem, cells in SMALL.items():
        write(folder, stem, cells)
    arguments = ("--jobs", "2", "--quick", "--gpu", "T4")
    whole = start(folder, "--out", "whole", *arguments)
    _, error = whole.communicate(timeout=180)
    assert whole.returncode == 1, error
    chance, kills = random.Random(seed), 0
    while kills < 5:
        process = start(folder, "--out", "killed", "--resume", *arguments)
        try:
            process.communicate(timeout=chance.uniform(0.3, 4))
            assert process.returncode == 1  # it was faster; what failed runs again next time
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            kills += 1
            for name in ("report.html", "report.xml", "report.json"):
                path = tmp_path / "killed" / name
                assert not path.exists() or path.read_text().endswith(("\n",)), "cut off"
            if (tmp_path / "killed" / "report.json").exists():
                load(tmp_path / "killed")
    last = start(folder, "--out", "killed", "--resume", *arguments)
    assert last.wait(180) == 1
    killed, unkilled = comparable(tmp_path / "killed"), comparable(tmp_path / "whole")
    for one, other in zip(killed["lessons"], unkilled["lessons"], strict=True):
        assert one == other
    assert killed == unkilled
    for copy in (tmp_path / "whole").glob("*.ipynb"):
        assert output(copy) == output(tmp_path / "killed" / copy.name)
    assert not list(processes.marked(load(tmp_path / "killed")["id"]))


# Two runs at once, and time

def test_two_runs_never_share_a_folder(folder, tmp_path, monkeypatch):
    write(folder, "01_waits", [WAITS.format(str(tmp_path / "waits"))])
    process = start(folder, "--out", "out")
    wait_for((tmp_path / "waits").exists)
    before = (tmp_path / "out" / "report.json").read_bytes()
    for resume in (False, True):
        with pytest.raises(BadArgument, match=r"Another run is writing to .*--out\.$"):
            runner.run(device="cpu", out=tmp_path / "out", folder=folder, resume=resume)
    assert (tmp_path / "out" / "report.json").read_bytes() == before
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert load(tmp_path / "out")["finished"]
    monkeypatch.chdir(tmp_path)
    with run_folder.claimed(None, folder, False) as one, run_folder.claimed(
            None, folder, False) as two:  # within one second, most likely
        assert one != two and one.is_dir() and two.is_dir()


CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long ahead(void) {
  return (access(BACK, F_OK) ? 0 : -86400) + (access(FORTH, F_OK) ? 0 : 31536000);
}
int clock_gettime(clockid_t which, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int status = real(which, now);
  if (which == CLOCK_REALTIME) now->tv_sec += ahead();
  return status;
}
int gettimeofday(struct timeval *now, void *zone) {
  struct timespec exact;
  int status = clock_gettime(CLOCK_REALTIME, &exact);
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return status;
}
"""


@pytest.mark.slow
def test_a_clock_that_jumps(folder, tmp_path):
    """A day back during one lesson, a year ahead during the next: what hangs is ended in time,
    what passes is not, and the report's times are those of a stopwatch."""
    (tmp_path / "clock.c").write_text(CLOCK)
    back, forth = tmp_path / "back", tmp_path / "forth"
    subprocess.run(["cc", "-shared", "-fPIC", f'-DBACK="{back}"', f'-DFORTH="{forth}"',
                    str(tmp_path / "clock.c"), "-o", str(tmp_path / "clock.so"), "-ldl"],
                   check=True)
    jump = ("import pathlib, time\nbefore = time.time()\npathlib.Path({!r}).touch()\n"
            "print(round((time.time() - before) / 86400), flush=True)\ntime.sleep(0.5)")
    write(folder, "01_back", [jump.format(str(back)), "while True:\n    pass"])
    write(folder, "02_forth", [jump.format(str(forth)), "print('after')"])
    began = time.monotonic()
    process = start(folder, "--out", "out", "--timeout", "12",
                    LD_PRELOAD=str(tmp_path / "clock.so"))
    _, error = process.communicate(timeout=120)
    took = time.monotonic() - began
    assert process.returncode == 1, error
    assert list(statuses(tmp_path / "out").values()) == ["timed_out", "passed"]
    assert output(tmp_path / "out" / "01_back.ipynb") == "-1\n"
    assert output(tmp_path / "out" / "02_forth.ipynb") == "365\nafter\n"
    report = load(tmp_path / "out")
    times = [datetime.fromisoformat(report[key]) for key in ("started", "finished")]
    assert 0 <= (times[1] - times[0]).total_seconds() <= took + 1
    assert all(0 < entry["seconds"] < took for entry in report["lessons"])


def test_nothing_is_left_of_all_this():
    assert not [child for child in psutil.Process().children(recursive=True)
                if processes.alive(child)]
