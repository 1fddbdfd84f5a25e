"""What was previewed, as a file: applying it makes exactly those changes, or none.

`preview --out FILE` writes it, with the plan as it was then; `apply FILE` decides again (from the
cache), asks every server again, and goes no further where either answer is another by now.

The values of `job.env` are not in it: they may be secrets, and a preview is shown to others. They
are taken from the plan's file when it is applied.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from placewire.agent.contract.state import Change
from placewire.controller.errors import StalePreview, UsageError
from placewire.controller.plan.plan import Plan
from placewire.controller.plan.plan_file import parse_plan
from placewire.frozen import Frozen
from placewire.optimizer.cluster_plan.documents import DocumentError, read_yaml

if TYPE_CHECKING:
    from placewire.controller.story.proposal import Proposal

# Of what differs, how much an error names for each server.
_NAMED = 4


class ServerPreview(Frozen):
    """content_digest: of the state that the server was to have, without its generation."""

    content_digest: str
    changes: tuple[Change, ...]


class PreviewFile(Frozen):
    """plan: as its file was parsed, without the values of `job.env`; plan_file: where it was, for
    these, and for the files that it names."""

    version: Literal[1] = 1
    kind: Literal["preview"] = "preview"
    plan_file: str
    plan: Any
    predicted_step_seconds: float | None
    servers: dict[str, ServerPreview]

    def parsed(self) -> Plan:
        """Raises PlanError where what it needs beside it (a model, a graph) is gone, UsageError
        where the variables in the plan's file are others by now."""
        env = _env_of(_document(Path(self.plan_file)))
        if env.keys() != _env_of(self.plan).keys():
            raise UsageError(
                "the variables of job.env are others than when it was previewed",
                where=self.plan_file,
                remedy="look at it anew: `controller preview PLAN --out FILE`",
            )
        plan = _with_env(self.plan, env)
        return parse_plan(plan, self.plan_file, base=Path(self.plan_file).parent)


def preview_of(document: object, plan_file: Path, proposal: Proposal) -> PreviewFile:
    """document: the plan, as its file has it."""
    return PreviewFile(
        plan_file=str(plan_file.resolve()),
        plan=_with_env(document, dict.fromkeys(_env_of(document))),
        predicted_step_seconds=proposal.decision.predicted_step_seconds,
        servers={
            server: ServerPreview(content_digest=state.content_digest,
                                  changes=proposal.previewed[server].changes)
            for server, state in proposal.desired.items()
        },
    )  # fmt: skip


def write_preview(preview: PreviewFile, file: Path) -> None:
    """Only for its owner: a plan's `env` may hold what others must not read."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as out:
        os.fchmod(descriptor, 0o600)
        out.write(preview.model_dump_json(indent=2) + "\n")


def read_preview(file: Path) -> PreviewFile | None:
    """None: it is none, but perhaps a plan. Raises UsageError where it is a broken one."""
    try:
        document = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(document, dict) or document.get("kind") != "preview":
        return None
    try:
        return PreviewFile.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(
            f"is no preview that this version can read: {first['msg']}",
            where=f"{file} {'.'.join(str(part) for part in first['loc'])}",
            remedy="write it again: `controller preview PLAN --out FILE`",
        ) from error


def _env_of(document: object) -> Mapping[str, object]:
    job = document.get("job") if isinstance(document, dict) else None
    env = job.get("env") if isinstance(job, dict) else None
    return env if isinstance(env, dict) else {}


def _with_env(document: object, env: Mapping[str, object]) -> object:
    """The plan with these variables in place of its own, if it has a job that may have some."""
    if not isinstance(document, dict) or not isinstance(document.get("job"), dict) or not env:
        return document
    return {**document, "job": {**document["job"], "env": dict(env)}}


def _document(plan_file: Path) -> object:
    """Nothing where it is gone: a plan without variables does not need it."""
    try:
        return read_yaml(plan_file)
    except (OSError, DocumentError):
        return None


def require_as_previewed(preview: PreviewFile, proposal: Proposal) -> None:
    """Raises StalePreview, which says of each server what is no longer as it was shown."""
    found: dict[str, list[str]] = {}
    for server, state in proposal.desired.items():
        then = preview.servers[server]
        now = proposal.previewed[server].changes
        if differing := _differing(then.changes, now):
            found[server] = differing
        elif then.content_digest != state.content_digest:
            found[server] = ["the state that it is to have is another"]
    if found:
        raise StalePreview(found)


def _differing(then: tuple[Change, ...], now: tuple[Change, ...]) -> list[str]:
    """What would be changed now and was not shown so, or was shown and is not to be changed."""
    before, after = _by_place(then), _by_place(now)
    places = [p for p in (*before, *after) if before.get(p) != after.get(p)]
    named = [" ".join(place) for place in dict.fromkeys(places)]
    more = len(named) - _NAMED
    return [*named[:_NAMED], *([f"and {more} more"] if more > 0 else [])]


def _by_place(changes: tuple[Change, ...]) -> Mapping[tuple[str, str], Change]:
    return {(change.collection, change.key): change for change in changes}
