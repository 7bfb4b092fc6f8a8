"""What a run shows while it lasts: a moving line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time

from tqdm import tqdm

from labkit.report import Result, plain

_SILENCE = 300.0  # seconds after which a plain log says that a lesson still runs


class Live:
    """Lessons that run and have ended. `started` may be called from any thread, the rest from
    one. Output that cannot be written is no reason to end a run: then nothing more is shown."""

    def __init__(self, total: int) -> None:
        # disable=None: a bar on a terminal only
        self._bar = tqdm(total=total, unit="lesson", leave=False, disable=None,
                         bar_format="{desc} |{bar:20}| {n_fmt} of {total_fmt} lessons, {elapsed}")
        self._running: dict[str, float] = {}
        self._said: dict[str, float] = {}
        self._lock = threading.Lock()
        self._mute = False

    def kept(self, number: int) -> None:
        """So many lessons passed in the run that is taken up."""
        if number:
            self._show(f"labkit: {number} passed before, and are not run again"
                       if number > 1 else "labkit: 1 passed before, and is not run again")
            self._bar.update(number)

    def started(self, lesson: str) -> None:
        with self._lock:
            self._running[lesson] = self._said[lesson] = time.monotonic()

    def tick(self) -> None:
        """Shows what runs; to be called several times a second."""
        with self._lock:
            running = list(self._running.items())
        now = time.monotonic()
        if not self._bar.disable:
            self._bar.set_description_str(", ".join(
                f"{plain(lesson)} {now - since:.0f} s" for lesson, since in running) or "waiting")
            return
        for lesson, since in running:
            if now - self._said[lesson] > _SILENCE:
                self._said[lesson] = now
                self._show(f"{plain(lesson):<24} running since {now - since:.0f} s")

    def ended(self, result: Result) -> None:
        with self._lock:
            self._running.pop(result.lesson, None)
        self._show(result.line)
        self._bar.update()

    def close(self) -> None:
        self._bar.close()

    def _show(self, line: str) -> None:
        if self._mute:
            return
        try:
            if self._bar.disable:
                print(line, flush=True)
            else:
                self._bar.write(line)
        except OSError:
            self._mute = True
