"""Marks what we start on servers, so that only that is ever ended or removed. Pure.

A run is one program, in a session of its own and with a folder of its own. It is known by marks
that must agree, never by what a command line or a path looks like:

- The folder, which we make anew, holds a file that names the run and the folder itself. A folder
  is removed only where that file says so, and where it belongs to the user who removes it.
- The environment of the run's processes names the run, its plan, its session and its folder. A
  session is ours only where a process in it says that this very session is. Somebody who copies a
  rank's environment into a shell of their own has another session, and is left alone.
- What a run's processes left behind as a daemon has a session of its own. It is ended with the run
  where it bears the run's mark, has no terminal, and whoever started it is gone: the shell of
  somebody who copied an environment has a parent. A container of podman's has its watcher, conmon,
  as a parent: it is ended where no podman that bears the mark runs any more.

Several plans may share a server, so a run is its plan's alone. A former release did not write the
plan: such a run is found, and whose it is is not known.

What is here are texts for a POSIX shell on the server, and what their output means.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from placewire.job.contract.specification import SCRIPT_GONE_SECONDS, SCRIPT_WORDS

VARIABLE = "PLACEWIRE_RUN"
MARK_FILE = "placewire-run"
# The file in the run's folder that holds a rank's specification.
SPEC_FILE = "spec.json"
# The exit status of `making` where the user there is root.
IS_ROOT = 77
_KIND = re.compile("[a-z0-9-]{1,40}")
_PLAN = re.compile("[a-z][a-z0-9-]{0,63}")
_END_SECONDS = 3
# A killed process ends when a processor is free for that; one that waits for a disk may not.
_KILL_SECONDS = 10
# Each without success takes 0.1 s: podman that was killed ends when a processor is free for that.
_STRAY_TURNS = 30
_BETWEEN = "--"
_LONGEST_NUMBER = 18

RANK = "rank"
OTHER = "other"


@dataclass(frozen=True)
class Run:
    """kind: RANK, OTHER for a program that is no rank, or another word of letters, digits and
    dashes. identifier: random, so that no two runs share it. plan: the name of the plan that it is
    of; "" where a former release started it."""

    kind: str
    identifier: str = field(default_factory=lambda: secrets.token_hex(16))
    plan: str = field(default="", kw_only=True)

    def mark(self, folder: str) -> str:
        """Returns the first line of the folder's mark."""
        return f"placewire {self.kind} {self.identifier} {folder}"


@dataclass(frozen=True)
class LeftRun:
    """A run that was found on a server. session: its session's id. pid: of its program. seconds:
    how long that has run."""

    run: Run
    folder: str
    session: int
    pid: int
    seconds: float


class _Process(NamedTuple):
    pid: int
    parent: int
    session: int
    seconds: float


def making(run: Run, maker: str, *, root_too: bool) -> str:
    """Makes and marks the run's folder among temporary files, and prints its path. maker: who makes
    it, for people. root_too: whether root may; otherwise root ends with IS_ROOT."""
    refuse_root = f'[ "$(id -u)" -ne 0 ] || exit {IS_ROOT}; '
    return (
        f"{'' if root_too else refuse_root}umask 077; "
        "f=$(mktemp -d -t placewire-XXXXXXXXXX) || exit 1; "
        f"""printf '%s\\n' "{run.mark("$f")}" {shlex.quote("made by " + maker)} """
        f'> "$f/{MARK_FILE}" || {{ rm -f -- "$f/{MARK_FILE}"; rmdir -- "$f"; exit 1; }}; '
        """printf '%s\\n' "$f\""""
    )


def is_usable_folder(path: str) -> bool:
    """Whether this is what `making` prints, unless the user's TMPDIR is an odd one."""
    return path.startswith("/") and path.isprintable()


def removing(run: Run, folder: str) -> str:
    """Removes the folder where it carries this run's mark and belongs to the user; else nothing."""
    path, mark = shlex.quote(folder), shlex.quote(f"{folder}/{MARK_FILE}")
    return (
        f"if [ -d {path} ] && [ ! -L {path} ] && [ -O {path} ] && [ -f {mark} ] && [ ! -L {mark} ] "
        f'&& IFS= read -r m < {mark} && [ "$m" = {shlex.quote(run.mark(folder))} ]; '
        f"then rm -rf --one-file-system -- {path}; fi"
    )


def entering(run: Run, folder: str) -> str:
    """Goes before the command of the leader of the run's session, and marks it. To be run within
    that session, so that nobody outside has the mark."""
    return f"env {shlex.quote(f'{VARIABLE}={_value(run, 0, folder)}')}"


def leading(run: Run, folder: str) -> str:
    """Marks, in the leader's shell, all that it starts from now on."""
    before, behind = f"{run.identifier}:{run.kind}:", f":{_behind(run, folder)}"
    return f"export {VARIABLE}={shlex.quote(before)}$${shlex.quote(behind)}"


def asking(run: Run, leader: int) -> str:
    """Sends SIGTERM to the process group of the run's leader; to nobody where the session of that
    number is somebody else's by now, as after the server has started anew. A script's processes
    are in other groups: the program that started them asks them itself, once."""
    return _signalling(run, leader, f"kill -s TERM -- -{leader} 2>&-")


def killing(run: Run, leader: int) -> str:
    """Kills all of the run's session; as above, nobody where that is somebody else's by now."""
    return _signalling(
        run,
        leader,
        # First the leader and the program, which could start more.
        f"kill -s KILL -- -{leader} 2>&-; "
        f"for g in $(ps -o pgid= -s {leader} | sort -u); do kill -s KILL -- -$g 2>&-; done",
    )


def _signalling(run: Run, leader: int, command: str) -> str:
    return (
        f"for p in $(ps -o pid= -s {leader}); do "
        f"""if grep -qasz '^{VARIABLE}={run.identifier}:' "/proc/$p/environ"; then """
        f"{command}; break; fi; done"
    )


def ending_strays(run: Run) -> str:
    """Kills what the run left behind in sessions of its own; to be run when the run has ended. What
    a killed process had started is found in the next turn, and a container once whoever started it
    has come to its end."""
    return (
        f"k=0; while [ $k -lt {_STRAY_TURNS} ]; do n=; w=; c=; "
        f"m=$(grep -lasz '^{VARIABLE}={run.identifier}:' /proc/[0-9]*/environ | tr -dc '0-9\\n'); "
        'for p in $m; do grep -qsx podman "/proc/$p/comm" && c=1; done; '
        # For no terminal ps has `?`, which the shell would take for files of one letter.
        "for p in $m; do set -f; set -- $(ps -o tty=,ppid= -p $p); set +f; "
        """if [ "$p" != $$ ] && [ "$1" = '?' ] && """
        """case "$2 $(ps -o comm= -p $2)" in "1 "*|*" systemd") true;; """
        '*" conmon") w=1; [ -z "$c" ];; *) false;; esac; '
        "then kill -s KILL $p 2>&- && n=1; fi; done; "
        '[ -n "$n" ] || { [ -n "$w" ] && sleep 0.1; } || break; k=$((k+1)); done'
    )


def finding() -> str:
    """Prints this user's processes, and what they say of runs; to be read by `found`."""
    return (
        "LC_ALL=C; export LC_ALL; "
        'ps -ww -u "$(id -u)" -o pid=,ppid=,sess=,etimes=,stat=; '
        f"echo {_BETWEEN}; grep -asHoz '^{VARIABLE}=.*' /proc/[0-9]*/environ; true"
    )


def found(printed: str) -> list[LeftRun]:
    """Returns the runs that `finding` found, in the order of their programs' pids."""
    listed, _, said = printed.partition(f"\n{_BETWEEN}\n")
    processes = _processes(listed)
    sessions: dict[int, list[_Process]] = defaultdict(list)
    for process in processes.values():
        sessions[process.session].append(process)
    runs: dict[int, LeftRun] = {}
    for line in said.split("\0"):
        place, _, value = line.partition(f":{VARIABLE}=")
        pid = place.removeprefix("/proc/").removesuffix("/environ")
        marked = _parsed(value)
        if marked is None or not pid.isdigit() or int(pid) not in processes:
            continue
        process = processes[int(pid)]
        run, session, folder = marked
        leads = session == 0 and process.pid == process.session
        if process.session > 1 and (leads or session == process.session):
            program = _program(sessions[process.session])
            runs[process.session] = LeftRun(
                run, folder, process.session, program.pid, program.seconds
            )
    return sorted(runs.values(), key=lambda one: one.pid)


def ending(left: Sequence[LeftRun]) -> str:
    """Ends these runs, politely first, and removes their folders. Prints the pids that remain. A
    run whose folder says that it is of a script has the time in which a script may save."""
    which = "; ".join(
        f"ours {one.session} {one.run.identifier} {shlex.quote(f'{one.folder}/{SPEC_FILE}')}"
        for one in left
    )
    removals = "; ".join(
        f"{ending_strays(one.run)}; {removing(one.run, one.folder)}" for one in left
    )
    # ps still lists, as Z, a process that has ended and that nobody has waited for yet.
    return (
        f"LC_ALL=C; export LC_ALL; t=; w={_END_SECONDS * 10}; "
        # Between the search and now a session may have ended, and its number be somebody else's.
        'ours() { for p in $(ps -o pid= -s "$1"); do '
        f'if grep -qasz "^{VARIABLE}=$2:" "/proc/$p/environ"; then t="$t $1"; '
        f'! grep -qs {shlex.quote(SCRIPT_WORDS)} "$3" || w={int(SCRIPT_GONE_SECONDS * 10)}; '
        "return; fi; done; }; "
        # A script's processes are in other groups than the leader and the program that started
        # them, which asks them itself. Where both are gone, nobody else would.
        'signal() { for s in $t; do [ "$1" = TERM ] && kill -s TERM -- "-$s" 2>&- || '
        "for g in $(ps -o pgid= -s $s | sort -u); do "
        'kill -s "$1" -- "-$g" 2>&-; done; done; }; '
        "alive() { for s in $t; do ps -o stat=,pid= -s $s; done | "
        "sed -n '/^Z/!s/^[^ ]* *//p'; }; "
        'end() { signal "$1"; k=0; while [ -n "$(alive)" ] && [ $k -lt "$2" ]; do '
        "sleep 0.1; k=$((k+1)); done; }; "
        f"{which}; end TERM $w; "
        f'if [ -n "$(alive)" ]; then end KILL {_KILL_SECONDS * 10}; fi; '
        f"{removals}; alive"
    )


def _value(run: Run, session: int, folder: str) -> str:
    return f"{run.identifier}:{run.kind}:{session}:{_behind(run, folder)}"


def _behind(run: Run, folder: str) -> str:
    return f"{run.plan}:{folder}" if run.plan else folder


def _parsed(value: str) -> tuple[Run, int, str] | None:
    """Returns (run, session, folder); None where somebody else set the variable."""
    parts = value.split(":", 3)
    if len(parts) != 4:
        return None
    identifier, kind, session, behind = parts
    # A former release wrote no plan's name, and a folder begins with a slash.
    plan, _, folder = ("", "", behind) if behind.startswith("/") else behind.partition(":")
    hexadecimal = len(identifier) == 32 and not set(identifier) - set("0123456789abcdef")
    number = session.isascii() and session.isdigit() and len(session) <= 10
    words = _KIND.fullmatch(kind) and (not plan or _PLAN.fullmatch(plan))
    if not (hexadecimal and number and words and is_usable_folder(folder)):
        return None
    return Run(kind, identifier, plan=plan), int(session), folder


def is_row(words: Sequence[str], count: int, *, numbers: int) -> bool:
    """Whether these are as many columns as ps was asked for, of which the first are numbers, and no
    longer than its are: the server's user may print anything."""
    return len(words) == count and all(map(_is_number, words[:numbers]))


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= _LONGEST_NUMBER


def _processes(listed: str) -> dict[int, _Process]:
    rows = [line.split() for line in listed.splitlines()]
    return {
        int(pid): _Process(int(pid), int(parent), int(session), float(seconds))
        for pid, parent, session, seconds, state in (
            row for row in rows if is_row(row, 5, numbers=4)
        )
        if not state.startswith("Z")
    }


def _program(members: Sequence[_Process]) -> _Process:
    """Returns what the session's leader runs; where it is gone, the oldest of the others."""
    children = [one for one in members if one.parent == one.session]
    return min(children or members, key=lambda one: (-one.seconds, one.pid))
