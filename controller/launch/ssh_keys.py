"""Which keys a server is offered: those of files and those that ssh-agent holds, as ssh does it."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from functools import cache
from pathlib import Path

import paramiko
from paramiko.auth_strategy import AuthResult, AuthSource, AuthStrategy

_BEGIN, _END = b"-----BEGIN OPENSSH PRIVATE KEY-----", b"-----END OPENSSH PRIVATE KEY-----"
_MAGIC = b"openssh-key-v1\0"

Held = Callable[[], Sequence[paramiko.AgentKey]]


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

            @cache
            def held() -> Sequence[paramiko.AgentKey]:
                if not self._uses_agent:
                    return ()
                return stack.enter_context(closing(paramiko.Agent())).get_keys()

            self._try(transport, held)
        return AuthResult(strategy=self)

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
        raise paramiko.AuthenticationException(f"{refusal}{untried and f' Not tried: {untried}'}")

    def keys(self, held: Held) -> Iterator[paramiko.PKey]:
        """held: what ssh-agent has, which may be a key whose file needs a passphrase or is not
        here. It is asked only where that matters: one that is forwarded may be silent for good."""
        named: set[bytes] = set()
        for file in self._files:
            public = public_parts(file)
            new, named = public - named, named | public
            key = _loaded(file)
            if isinstance(key, paramiko.PKey):
                named.add(key.asbytes())
                yield key
            elif of_agent := [one for one in held() if one.blob in new]:
                yield from of_agent
            else:
                self._unusable.append(f"{file}, which {key}")
        if not self._only_files:
            yield from (key for key in held() if key.blob not in named)


def _loaded(file: Path) -> paramiko.PKey | str:
    """The private key, or why there is none."""
    try:
        return paramiko.PKey.from_path(file)
    except (TypeError, paramiko.PasswordRequiredException):  # cryptography has a TypeError for it
        return "needs a passphrase, and is not in ssh-agent"
    except OSError as error:
        return f"cannot be read ({error.strerror}), and is not in ssh-agent"
    except Exception:  # Of the many ways in which a file may be no key, or one of a security key.
        return "is no private key that is used without ssh-agent, and is not in ssh-agent"


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
