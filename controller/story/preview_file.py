"""Preview files: applying one makes exactly the changes that it shows, or none.

`preview --out FILE` writes the file, with the plan as it was then. `apply FILE` stops where the
plan's own file has another plan by now; it decides again (from the cache), asks every server again,
and stops where either answer has changed. It asks once more right before it stages, and restores
all where a server then made other changes all the same.

The file leaves out the values of `job.env`: they may be secrets, and a preview is shown to others.
`apply` takes them from the plan's file.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from placewire.agent.contract.state import Change
from placewire.controller.errors import PlacewireError, PlanError, StalePreview, UsageError
from placewire.controller.plan.plan import Plan
from placewire.controller.plan.plan_file import parse_plan
from placewire.controller.story.proposal import Proposal
from placewire.frozen import Frozen
from placewire.optimizer.cluster_plan.documents import DocumentError, read_yaml
from placewire.optimizer.graph.named_output import open_stream

# A preview of 2000 servers with a hundred changes each has less; of a larger one no whole document
# is read, so that it is none.
_LARGEST_BYTES = 64 * 2**20
_BEGIN_BYTES = 64
# An error names at most so many differences for each server.
_NAMED = 4
# A difference shows at most so many characters of what it was and is.
_SHOWN = 60


class ServerPreview(Frozen):
    """content_digest: of the server's desired state, without its generation."""

    content_digest: str
    changes: tuple[Change, ...]


class PreviewFile(Frozen):
    """plan: the parsed YAML, without the values of `job.env`. plan_file: the plan's path, for these
    values and for the files that the plan names."""

    version: Literal[1] = 1
    kind: Literal["preview"] = "preview"
    plan_file: Annotated[str, Field(pattern=r"^/[^\x00]*$")]
    plan: Any
    predicted_step_seconds: float | None
    servers: dict[str, ServerPreview]

    def parsed(self) -> Plan:
        """Raises PlanError where a file that the plan needs (a model, a graph) is gone, UsageError
        where the plan's file has another plan by now, and where it is gone and has variables."""
        try:
            document: object = read_yaml(Path(self.plan_file))
            env = _env_of(document)
        except OSError:
            document, env = self.plan, {}  # a plan without variables does not need its file
        except DocumentError as error:
            raise PlanError(self.plan_file, error.mistakes) from error
        if differing := differences(self.plan, _without_values(document)):
            more = len(differing) - _NAMED
            told = [*differing[:_NAMED], *([f"and {more} more"] if more > 0 else [])]
            raise UsageError(
                f"the plan is not as it was previewed: {'; '.join(told)}",
                where=self.plan_file,
                remedy="preview it again: `controller preview PLAN --out FILE`",
            )
        if env.keys() != _env_of(self.plan).keys():
            raise UsageError(
                "job.env names other variables than when the plan was previewed",
                where=self.plan_file,
                remedy="preview it again: `controller preview PLAN --out FILE`",
            )
        plan = _with_env(self.plan, env)
        return parse_plan(plan, self.plan_file, base=Path(self.plan_file).parent)


def preview_of(document: object, plan_file: Path, proposal: Proposal) -> PreviewFile:
    """document: the plan's parsed YAML."""
    return PreviewFile(
        plan_file=str(plan_file.resolve()),
        plan=_without_values(document),
        predicted_step_seconds=proposal.decision.predicted_step_seconds,
        servers={
            server: ServerPreview(content_digest=state.content_digest,
                                  changes=proposal.previewed[server].changes)
            for server, state in proposal.desired.items()
        },
    )  # fmt: skip


def write_preview(preview: PreviewFile, file: Path) -> None:
    """Only the file's owner may read it. What is no file, as /dev/null, stays as it is; a file is
    replaced as a whole. Raises PlacewireError where it cannot be written; the former one is then as
    it was."""
    content = preview.model_dump_json(indent=2).encode() + b"\n"
    try:
        if (stream := open_stream(file)) is not None:
            with stream:
                stream.write(content)
        else:
            _replace(file, content)
    except OSError as error:
        raise PlacewireError(
            f"the preview is not written: {error.strerror}",
            where=f"--out {file}",
            remedy="free space on its disk, or name a file in another folder",
        ) from error


def _replace(file: Path, content: bytes) -> None:
    staged = file.with_name(f".{secrets.token_hex(16)}.part")
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(content)
        staged.replace(file)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise


def read_preview(file: Path) -> PreviewFile | None:
    """Returns None where the file is no preview. Raises UsageError where it is a broken one."""
    try:
        with file.open("rb") as opened:
            begin = opened.read(_BEGIN_BYTES)
            # A plan is read by the reader of plans, which has bounds of its own.
            data = begin + opened.read(_LARGEST_BYTES) if begin.lstrip()[:1] == b"{" else b""
        document = json.loads(data)
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or document.get("kind") != "preview":
        return None
    try:
        return PreviewFile.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(
            f"this version of Placewire cannot read this preview: {first['msg']}",
            where=f"{file} {'.'.join(str(part) for part in first['loc'])}",
            remedy="write it again: `controller preview PLAN --out FILE`",
        ) from error


def _env_of(document: object) -> Mapping[str, object]:
    job = document.get("job") if isinstance(document, dict) else None
    env = job.get("env") if isinstance(job, dict) else None
    return env if isinstance(env, dict) else {}


def _without_values(document: object) -> object:
    return _with_env(document, dict.fromkeys(_env_of(document)))


def differences(then: object, now: object, path: str = "") -> list[str]:
    """Says for each part of a plan's document that is not the same where it is, and that of both,
    by YAML path. Names of `job.env` are left to who reads them."""
    if path == "job.env":
        return []
    if isinstance(then, dict) and isinstance(now, dict):
        keys = [*then, *(key for key in now if key not in then)]
        within = ((f"{path}.{key}".lstrip("."), then.get(key), now.get(key)) for key in keys)
        return [told for where, a, b in within for told in differences(a, b, where)]
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        pairs = enumerate(zip(then, now, strict=True))
        return [told for k, (a, b) in pairs for told in differences(a, b, f"{path}[{k}]")]
    return [] if then == now else [f"{path or 'plan'} was {_shown(then)}, is {_shown(now)}"]


def _shown(part: object) -> str:
    if part is None:
        return "not there"
    text = json.dumps(part, default=str)  # YAML has dates, too.
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _with_env(document: object, env: Mapping[str, object]) -> object:
    """Returns the plan with these variables in place of its own, if it has a job."""
    if not isinstance(document, dict) or not isinstance(document.get("job"), dict) or not env:
        return document
    return {**document, "job": {**document["job"], "env": dict(env)}}


def require_as_previewed(preview: PreviewFile, proposal: Proposal) -> None:
    """Raises StalePreview, which says for each server what is no longer as previewed."""
    shown, desired = preview.servers, proposal.desired
    now = {s: proposal.previewed[s].changes for s in desired if s in shown}
    found = _differing_by_server(preview, now)
    for server in now:
        if shown[server].content_digest != desired[server].content_digest:
            found.setdefault(server, ["it would get another desired state"])
    found |= {s: ["the preview does not have it"] for s in desired if s not in shown}
    found |= {s: ["the plan does not have it any more"] for s in shown if s not in desired}
    if found:
        raise StalePreview(found)


def require_made_as_previewed(preview: PreviewFile, made: Mapping[str, tuple[Change, ...]]) -> None:
    """made: by server, the changes that staging made. Raises StalePreview, as the caller then
    restores every server."""
    if found := _differing_by_server(preview, made):
        raise StalePreview(found, made=True)


def _differing_by_server(
    preview: PreviewFile, changes: Mapping[str, tuple[Change, ...]]
) -> dict[str, list[str]]:
    found = {
        server: _differing(preview.servers[server].changes, now) for server, now in changes.items()
    }
    return {server: differing for server, differing in found.items() if differing}


def _differing(then: tuple[Change, ...], now: tuple[Change, ...]) -> list[str]:
    """Names what would change now and was not shown so, or was shown and would not change now."""
    before, after = ({f"{c.collection} {c.key}": c for c in some} for some in (then, now))
    named = [name for name in before | after if before.get(name) != after.get(name)]
    more = len(named) - _NAMED
    return [*named[:_NAMED], *([f"and {more} more"] if more > 0 else [])]
