"""The command `labkit`: doctor, lessons, run, bench, progress, edition, badges, index and new."""

from __future__ import annotations

import argparse
import errno
import functools
import io
import json
import math
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from labkit import __version__
from labkit.errors import BadArgument, LabError

_OK, _FAILED, _BAD_INPUT, _INTERRUPTED = 0, 1, 2, 130
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns 0, 1 (something failed), 2 (bad input) or 130 (interrupted)."""
    parser = _parser()
    options = parser.parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name that it cannot show
    try:
        if options.command is None:
            parser.print_help()
            code = _BAD_INPUT
        else:
            code = options.command(options)
        print(end="", flush=True)  # what cannot be written fails here, not after the end
        return code
    except LabError as error:
        print(f"labkit: {error}", file=sys.stderr)
        return _BAD_INPUT
    except KeyboardInterrupt:
        print("labkit: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:  # the reader, as in `labkit lessons | head`, has seen enough
        _discard_output()
        return _FAILED
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        print(f"labkit: the output cannot be written ({error.strerror}); free some space, or "
              "send it elsewhere.", file=sys.stderr)
        _discard_output()
        return _FAILED


def _discard_output() -> None:
    """What Python still holds for stdout goes nowhere, so that the exit does not fail on it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="labkit", description="Lessons on GPU kernels: check this machine, run the lessons.")
    parser.add_argument("--version", action="version", version=f"labkit {__version__}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(metavar="COMMAND")

    doctor = commands.add_parser("doctor", help="what this machine can do, and what is missing")
    doctor.add_argument("--json", action="store_true", help="print the report as JSON")
    doctor.set_defaults(command=_doctor)

    listing = commands.add_parser("lessons", help="list the lessons")
    listing.set_defaults(command=_lessons)

    run = commands.add_parser(
        "run", help="run lessons and report",
        description="Runs each lesson in a kernel of its own and writes report.json, report.html, "
                    "report.xml (JUnit), the executed copies and the kernels' logs. Exit code: 0 "
                    "none failed, 1 one failed or was left out, 2 bad input, 130 interrupted.")
    run.add_argument("lesson", nargs="*", metavar="LESSON",
                     help="number, file name or name, as in 2, 02_gemm or gemm; none: all")
    run.add_argument("--device", choices=("cpu", "gpu", "auto"), default="auto",
                     help="where the kernels run (default: auto, the GPU if there is one)")
    run.add_argument("--gpu", default="", metavar="NAME", help="the GPU to compile for, as in H100")
    run.add_argument("--quick", action="store_true", help="small sizes")
    run.add_argument("--out", metavar="DIR", help="folder for the report (default: runs/<time>)")
    run.add_argument("--timeout", type=_seconds, default=900.0, metavar="SECONDS",
                     help="limit for one lesson (default: 900)")
    run.add_argument("--total-timeout", type=_seconds, metavar="SECONDS",
                     help="limit for the whole run (default: none)")
    run.add_argument("--retries", type=_count(0), default=0, metavar="N",
                     help="how often a lesson that fails is run again (default: 0)")
    run.add_argument("--jobs", type=_count(1), default=1, metavar="N",
                     help="lessons at once; each has a GPU to itself (default: 1)")
    run.add_argument("--parameters", metavar="FILE",
                     help="JSON: parameters for lessons, as in "
                          '{"all": {"size_gpu": 2048}, "06": {"S_gpu": 1024}}')
    run.add_argument("--resume", action="store_true",
                     help="take up the run in --out, else the newest one: what passed is not run "
                          "again")
    run.set_defaults(command=_run)

    bench = commands.add_parser(
        "bench", help="measure every kernel beside its baselines",
        description="Measures what the lessons measure, with their own cells, into one file; "
                    "compares two such files; or writes README's table and plot from one. Without "
                    "a GPU each kernel is checked, and nothing is timed. Exit code: 0 all went "
                    "well, 1 a name failed, a cost is above its limit or a ratio is below "
                    "--fail-below, 2 bad input, 130 interrupted.")
    bench.add_argument("--only", nargs="+", default=[], metavar="NAME",
                       help="names of a results file, such as gemm softmax (default: all)")
    bench.add_argument("--out", metavar="FILE", help="the JSON file to write")
    bench.add_argument("--device", choices=("cpu", "gpu", "auto"), default="auto",
                       help="where the kernels run (default: auto, the GPU if there is one)")
    bench.add_argument("--quick", action="store_true", help="small sizes, each name once")
    bench.add_argument("--everything", action="store_true",
                       help="on a GPU also the lessons' tables, plans and sweeps, each into a file "
                            "beside FILE")
    bench.add_argument("--resume", action="store_true",
                       help="what FILE has of an earlier run is not measured again")
    bench.add_argument("--jobs", type=_count(0), metavar="N",
                       help="processes that compile ahead (default: one a core; 0: none)")
    bench.add_argument("--timeout", type=_seconds, default=300.0, metavar="SECONDS",
                       help="limit for one name at one size (default: 300)")
    bench.add_argument("--compare", nargs=2, metavar=("A", "B"),
                       help="the times of file A over those of file B, measured nothing")
    bench.add_argument("--fail-below", type=_seconds, metavar="RATIO",
                       help="with --compare: exit code 1 if a kernel's ratio is lower")
    bench.add_argument("--readme", action="store_true",
                       help="write README's table and plot from the recorded file of the H200")
    bench.set_defaults(command=_bench)

    progress = commands.add_parser("progress", help="which exercises are solved")
    progress.set_defaults(command=_progress)

    edition = commands.add_parser(
        "edition", help="write the lessons with or without solutions",
        description="Writes all lessons into a folder: `student` with the exercises unsolved, "
                    "`solved` with the solutions in their cells.")
    edition.add_argument("kind", choices=("student", "solved"))
    edition.add_argument("--out", metavar="DIR", required=True, help="folder for the lessons")
    edition.set_defaults(command=_edition)

    badges = commands.add_parser(
        "badges", help="write the repository's address into the lessons and the README",
        description="Writes the setup cell and the badge that opens it in Colab into every lesson, "
                    "and both into the README; call it in a checkout. Exit code of --check: 0 all "
                    "agree, 1 some do not.")
    what = badges.add_mutually_exclusive_group(required=True)
    what.add_argument("--repo", metavar="OWNER/NAME", help="the repository on GitHub")
    what.add_argument("--unstamped", action="store_true", help="write no address")
    what.add_argument("--check", action="store_true",
                      help="only say which lessons disagree with the README")
    badges.add_argument("--branch", metavar="NAME", default="main",
                        help="a branch or tag of it (default: main)")
    badges.set_defaults(command=_badges)

    index = commands.add_parser(
        "index", help="write the index of all lessons", description="Writes index.ipynb beside the "
        "lessons, from their front matter: the index and the glossary.")
    index.add_argument("--check", action="store_true",
                       help="write nothing; exit code 1 if the index is out of date")
    index.set_defaults(command=_index)

    new = commands.add_parser(
        "new", help="begin a new lesson", description="Writes a small lesson that passes the "
        "tests, to fill in: the notebook, its exercises, and what the tests know of it. "
        "CONTRIBUTING.md says how to go on.")
    new.add_argument("number", metavar="NN", help="the lesson's number, as in 18")
    new.add_argument("name", metavar="NAME", help="its name, as in my_kernel")
    new.add_argument("--title", default="", help="its title (default: made from the name)")
    new.set_defaults(command=_new)
    return parser


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def _count(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,6}", text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return parse


def _doctor(options: argparse.Namespace) -> int:
    from labkit.environment import doctor

    report = doctor()
    print(json.dumps(report.as_dict(), indent=2) if options.json else report)
    return _OK if report.ok else _FAILED


def _lessons(options: argparse.Namespace) -> int:
    from labkit.lessons import all_lessons

    for lesson in all_lessons():
        try:
            matter: dict[str, Any] = lesson.front_matter
        except LabError as error:
            print(f"{lesson.number}  {lesson.stem[3:]}: {error}")
            continue
        need = f"GPU {matter['gpu']}" + (f", sm_{matter['min_sm']}" if matter["min_sm"] else "")
        print(f"{lesson.number}  {matter['title']:<32} {matter['minutes']:>4} min  {need}")
    return _OK


def _run(options: argparse.Namespace) -> int:
    from labkit import runner

    before = signal.signal(signal.SIGTERM, _interrupt)  # a cancelled CI job still gets its report
    try:
        report = runner.run(options.lesson, device=options.device, gpu=options.gpu,
                            quick=options.quick, out=options.out, timeout=options.timeout,
                            total=options.total_timeout, retries=options.retries,
                            jobs=options.jobs, parameter_file=options.parameters,
                            resume=options.resume)
    finally:
        signal.signal(signal.SIGTERM, before)
    print(f"\n{report.table(shutil.get_terminal_size((120, 24)).columns)}")
    if report.unwritten:
        print(f"labkit: {report.unwritten}", file=sys.stderr)
    return report.exit_code


def _bench(options: argparse.Namespace) -> int:
    if options.compare:
        from labkit.benching import compare

        found = compare.files(*options.compare)
        print(found)
        return _OK if options.fail_below is None or found.holds(options.fail_below) else _FAILED
    if options.fail_below is not None:
        raise BadArgument("--fail-below goes with --compare A B.")
    if options.readme:
        from labkit.benching import readme

        print("\n".join(str(path) for path in readme.write()))
        return _OK
    if not options.out:
        raise BadArgument("Name the file to write, as in --out h200.json.")
    from labkit.benching import session

    before = signal.signal(signal.SIGTERM, _interrupt)  # no process is left behind
    try:
        return session.run(options.only, out=options.out, device=options.device,
                           quick=options.quick, everything=options.everything,
                           resume=options.resume, jobs=options.jobs,
                           timeout=options.timeout, tell=functools.partial(print, flush=True))
    finally:
        signal.signal(signal.SIGTERM, before)


def _progress(options: argparse.Namespace) -> int:
    from labkit.exercises import progress

    print(progress())
    return _OK


def _edition(options: argparse.Namespace) -> int:
    from labkit import editions

    written = editions.write(options.kind, options.out)
    count = sum(path.name[:2].isdigit() for path in written)  # not the index
    print(f"{count} lessons written to {options.out}")
    return _OK


def _index(options: argparse.Namespace) -> int:
    from labkit import index

    if options.check:
        if index.is_up_to_date():
            return _OK
        print("The index is out of date; run `labkit index`.")
        return _FAILED
    print(f"{index.write()} written")
    return _OK


def _new(options: argparse.Namespace) -> int:
    from labkit import new_lesson

    for path in new_lesson.write(options.number, options.name, options.title):
        print(f"{path} written")
    print("CONTRIBUTING.md says how to go on.")
    return _OK


def _badges(options: argparse.Namespace) -> int:
    from labkit import badges
    from labkit.setup_cell import Address

    root = badges.checkout()
    if options.check:
        wrong = badges.problems(root)
        print("\n".join(wrong) if wrong else "The lessons and the README agree.")
        return _FAILED if wrong else _OK
    address = Address(options.repo, options.branch) if options.repo else None
    changed = badges.stamp(address, root)
    print(f"{len(changed)} files written for {address.kit if address else 'no address'}")
    return _OK


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
