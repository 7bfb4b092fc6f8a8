"""An engine for papermill that keeps a cell's output within bounds, so that a cell that prints
without end leaves a copy that can be read, and the worker the memory to write it."""

from __future__ import annotations

from typing import Any

CELL_BYTES = 8_000_000  # of one cell's output; the longest of the kit's own lessons takes 1 % of it
LESSON_BYTES = 64_000_000
_NOTE = f"\n[output cut off: a run keeps {CELL_BYTES // 1_000_000} MB of a cell]\n"
_OUTPUTS = ("stream", "display_data", "execute_result", "update_display_data", "error")


def engine() -> str:
    """Registers the engine with papermill, and returns its name."""
    from papermill import engines
    from papermill.clientwrap import PapermillNotebookClient

    class Client(PapermillNotebookClient):
        def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
            if getattr(self, "_counted", None) is not cell:
                kept = max(self._left, 0) if hasattr(self, "_left") else 0
                self._room = getattr(self, "_room", LESSON_BYTES) + kept
                self._counted, self._left = cell, min(CELL_BYTES, self._room)
                self._room -= self._left
            kind, content = msg["msg_type"], msg["content"]
            if kind in _OUTPUTS:
                size = _size(content)
                if size > self._left:
                    if self._left < 0 and kind != "error":
                        return None  # noted already
                    msg = {**msg, "content": _cut(kind, content, max(self._left, 0))}
                    self._left = -1
                else:
                    self._left -= size
            return super().process_message(msg, cell, cell_index)

    class Engine(engines.NBClientEngine):
        @classmethod
        def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, start_timeout: int = 60,
                                     **options: Any) -> Any:
            options.pop("input_path", None)
            for name in ("log_output", "execution_timeout", "stdout_file", "stderr_file"):
                options.pop(name, None)
            return Client(nb_man, kernel_name=kernel_name, startup_timeout=start_timeout,
                          timeout=None, log=engines.logger, **options).execute()

    engines.papermill_engines.register("labkit", Engine)
    return "labkit"


def _size(content: dict[str, Any]) -> int:
    if "text" in content:
        return len(content["text"])
    if "ename" in content:
        return len(content["evalue"]) + sum(map(len, content["traceback"]))
    return sum(len(part) if isinstance(part, str) else len(repr(part))
               for part in content.get("data", {}).values())


def _cut(kind: str, content: dict[str, Any], room: int) -> dict[str, Any]:
    """`content` with what fits in `room`: of a text its beginning, of a picture only the note,
    of an error always what it is."""
    if kind == "error":
        return {**content, "evalue": content["evalue"][:10_000],
                "traceback": [line[:10_000] for line in content["traceback"][-20:]]}
    if kind == "stream":
        return {**content, "text": content["text"][:room] + _NOTE}
    return {**content, "data": {"text/plain": _NOTE.strip()}}
