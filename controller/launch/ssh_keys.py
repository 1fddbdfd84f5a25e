"""Which keys a server is offered: those of files and those that ssh-agent holds, as ssh does it."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path

import paramiko
from paramiko.auth_strategy import AuthResult, AuthSource, AuthStrategy

from placewire.controller.abandonable import each_in_a_thread

_BEGIN, _END = b"-----BEGIN OPENSSH PRIVATE KEY-----", b"-----END OPENSSH PRIVATE KEY-----"
_MAGIC = b"openssh-key-v1\0"
# For the list of its keys, for which ssh-agent asks nobody. One that is forwarded may be silent for
# good.
_AGENT_SECONDS = 5.0

# None: there is no ssh-agent to ask. Raises OSError and SSHException where it does not answer.
Held = Callable[[], Sequence[paramiko.AgentKey] | None]


class Offered(AuthStrategy):
    """files: the private part of each may be in ssh-agent alone. only_files: ssh-agent offers no
    other key than theirs.

    paramiko itself reads each file as a key of several kinds, and what it says in the end is of the
    last of these, not that the server refused a key."""

    def __init__(
        self, user: str, files: Sequence[Path], *, uses_agent: bool, only_files: bool
    ) -> None:
        super().__init__(paramiko.SSHConfig())
        self._user, self._files = user, tuple(files)
        self._uses_agent, self._only_files = uses_agent, only_files
        self._unusable: list[str] = []

    def get_sources(self) -> Iterator[AuthSource]:
        """None: `authenticate` goes through the keys itself."""
        return iter(())

    def authenticate(self, transport: paramiko.Transport) -> AuthResult:
        """Raises AuthenticationException where keys were refused, and SSHException where there is
        none to try or the connection ended."""
        with ExitStack() as stack:
            self._try(transport, partial(self._held, stack))
        return AuthResult(strategy=self)

    def _held(self, stack: ExitStack) -> Sequence[paramiko.AgentKey] | None:
        """stack: has the connection over which the keys sign. As Held."""
        if not self._uses_agent or not os.environ.get("SSH_AUTH_SOCK"):
            return None
        (agent,) = each_in_a_thread([_agent], 1, seconds=_AGENT_SECONDS, otherwise=lambda _: None)
        if agent is None:
            raise TimeoutError(f"gave no answer within {_AGENT_SECONDS:g} s")
        return stack.enter_context(closing(agent)).get_keys()

    def _try(self, transport: paramiko.Transport, held: Held) -> None:
        refusal, tried = "", 0
        for key in self.keys(held):
            tried += 1
            try:
                wanted = transport.auth_publickey(self._user, key)
            except paramiko.SSHException as error:
                if not transport.is_active() and tried > 1:
                    # paramiko's words for it; a server may end the connection after many keys.
                    raise paramiko.SSHException("No existing session") from error
                if not transport.is_active() or "timeout" in str(error).lower():
                    raise
                refusal = str(error)
                continue
            if transport.is_authenticated():
                return
            refusal = f"besides a key it wants {', '.join(wanted)}"
        untried = "; ".join(self._unusable)
        if not tried:
            raise paramiko.SSHException(f"there is no key to offer{untried and f': {untried}'}")
        if untried:
            refusal = f"{refusal.removesuffix('.')}. Not tried: {untried}"
        raise paramiko.AuthenticationException(refusal)

    def keys(self, held: Held) -> Iterator[paramiko.PKey]:
        """held: what ssh-agent has, which may be a key whose file needs a passphrase or is not
        here. It is asked only where that matters, once, and after all that files give: a sick one
        hinders none of these."""
        named: set[bytes] = set()
        without: list[tuple[Path, set[bytes], str]] = []
        for file in self._files:
            public, key = public_parts(file), _loaded(file)
            if isinstance(key, paramiko.PKey):
                named |= public | {key.asbytes()}
                yield key
            else:
                without.append((file, public, key))
        # A .pub may be named besides its private file.
        without = [(file, public, why) for file, public, why in without if _is_new(public, named)]
        if self._only_files and not without:
            return
        of_agent = self._answered(held)
        for file, public, why in without:
            if not _is_new(public, named):
                continue
            new, named = public - named, named | public
            if here := [one for one in of_agent or () if one.blob in new]:
                yield from here
            else:
                absent = ", and is not in ssh-agent" if public and of_agent is not None else ""
                self._unusable.append(f"{file}, which {why}{absent}")
        if not self._only_files:
            yield from (key for key in of_agent or () if key.blob not in named)

    def _answered(self, held: Held) -> Sequence[paramiko.AgentKey] | None:
        """What ssh-agent has; None where that is not known."""
        try:
            return held()
        except (OSError, paramiko.SSHException) as error:
            self._unusable.append(f"keys of ssh-agent, which {error}")
            return None


def _agent() -> paramiko.Agent | None:
    """Raises SSHException where it does not list its keys."""
    try:
        return paramiko.Agent()
    except Exception as error:  # paramiko raises whatever it met in what was answered.
        raise paramiko.SSHException(
            f"does not list them ({str(error) or type(error).__name__})"
        ) from error


def _is_new(public: set[bytes], named: set[bytes]) -> bool:
    """Whether a file may have a key that is not named yet: one without a public part may."""
    return not public or not public <= named


def _loaded(file: Path) -> paramiko.PKey | str:
    """The private key, or why there is none."""
    try:
        return paramiko.PKey.from_path(file)
    except (TypeError, paramiko.PasswordRequiredException):  # cryptography has a TypeError for it
        return "needs a passphrase"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except Exception:  # Of the many ways in which a file may be no key, or one of a security key.
        return "is no private key that can be used from its file"


def public_parts(file: Path) -> set[bytes]:
    """What ssh-agent knows this key by, and its certificate. Empty where no file tells: a key in
    one of the older formats, without its .pub."""
    found = set()
    for path in (file, Path(f"{file}.pub"), Path(f"{file}-cert.pub")):
        with suppress(OSError, ValueError):
            found.add(_public(path.read_bytes()))
    return found


def _public(content: bytes) -> bytes:
    """Raises ValueError where there is none."""
    if content.lstrip().startswith(_BEGIN):
        # A passphrase covers the private part alone.
        raw = base64.b64decode(content.partition(_BEGIN)[2].partition(_END)[0])
        message = paramiko.Message(raw.removeprefix(_MAGIC))
        for _ in ("cipher", "way to make a key of the passphrase", "its settings"):
            message.get_binary()
        message.get_int()
        return message.get_binary()
    kind, _, rest = content.strip().partition(b" ")
    blob = base64.b64decode(rest.partition(b" ")[0], validate=True)
    if not blob or paramiko.Message(blob).get_binary() != kind:
        raise ValueError("no public key")
    return blob
