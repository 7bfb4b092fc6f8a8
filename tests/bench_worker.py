"""Stands in for `labkit.benching.worker`, so that the bench is tested without a GPU: answers as
the plan in the file FAKE says, {name: what happens}."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path


def measurement(name: str, ms: float) -> str:
    return json.dumps({
        "gpu": "NVIDIA Test", "date": "2026-01-02", "versions": json.loads(os.environ["VERSIONS"]),
        "floors": {"copy_gb_s": 4000.0, "tensor_tflops": {"float16": 800.0}},
        "measurement": {"name": name, "shape": {"N": 4}, "dtype": "float16", "kernel_ms": ms,
                        "spread_ms": 0.01, "floor_ms": 0.1, "error": 1e-4, "schedule": {},
                        "baselines": {"other": 2 * ms}, "references": {}}})


answers = os.fdopen(int(sys.argv[1]), "w")
for line in sys.stdin:
    request = json.loads(line)
    with open(os.environ["FAKE"] + ".log", "a") as log:
        log.write(f"{request['mode']} {request['name']}\n")
    what = json.loads(Path(os.environ["FAKE"]).read_text()).get(request["name"], 1.0)
    found = {"status": "done", "reason": "", "lines": [], "checks": [], "files": {},
             "broken": False, "seconds": 0.1}
    if request["mode"] == "prepare":
        pass
    elif what == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif what == "hang":
        time.sleep(60)
    elif what == "broken":
        print("an illegal memory access")
        found.update(status="failed", reason="illegal memory access", broken=True)
    elif request["cost"]:
        found["cost"] = {"name": request["name"], "seconds": what / 10, "limit": 0.3, "note": "",
                         "cores": 2}
    elif request["kind"]:
        found["files"] = {f"{request['kind']}-{request['name']}": json.dumps({"rows": [what]})}
    elif isinstance(what, dict):
        found["lines"] = [measurement(name, 1.0) for name in what["both"]]
    else:
        found["lines"] = [measurement(request["name"], what)]
    answers.write(json.dumps(found) + "\n")
    answers.flush()
