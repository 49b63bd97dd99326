"""Who may do what over HTTP: callers and their roles, the two secrets of the environment, and which browsers'
pages are listened to.

    submit    start threads, send messages, cancel, extend
    read      see threads, their events, and the inbox
    approve   decide what waits for a person; see the inbox
    admin     all of that, and who else may do it

The simple case needs no stored token (`tokens`): two secrets in the environment, which are these callers:

    approver  APPROVER_SECRET   submit, read, approve. Unset: nobody decides by it.
    user      SUBMIT_TOKEN      submit, read. Unset, and without stored tokens: so may all who can connect.

Secrets are compared as bytes in constant time, and occur in no message, log line or repr.
"""

import hmac
import ipaddress
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Self, get_args
from urllib.parse import urlsplit

from tenuto.errors import ConfigurationError

Headers = Sequence[tuple[bytes, bytes]]
Role = Literal["submit", "read", "approve", "admin"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)


@dataclass(frozen=True)
class Caller:
    """Who sends a request. `agents`: those whose threads it has to do with; none named means all. `known_as`
    is for refusals. `stored`: it is a person's or program's own token, not a secret that several share.
    """

    name: str
    known_as: str
    roles: tuple[Role, ...]
    agents: tuple[str, ...] = ()
    stored: bool = False

    def may(self, *needs: Role) -> bool:
        """Has it one of these roles?"""
        return any(role in self.roles for role in (*needs, "admin"))

    def sees(self, agent: str) -> bool:
        """Do this agent's threads exist for it?"""
        return not self.agents or agent in self.agents

    def by(self, claimed: str) -> str:
        """The name under which the log records what it asks for. `claimed`: for whom it says that it speaks,
        which is a claim and recorded as one; "user" is what clients say who speak for nobody.
        """
        return self.name if claimed in ("", "user", self.name) else f"{claimed} via {self.name}"


APPROVER: Final = Caller("approver", "APPROVER_SECRET", ("submit", "read", "approve"))
USER: Final = Caller("user", "SUBMIT_TOKEN", ("submit", "read"))
ANYBODY: Final = Caller("user", "a request without a token", USER.roles)


@dataclass(frozen=True)
class Access:
    """The two secrets; "" means that there is none. Surrounding white space is no part of a secret.

    `anonymous` False: nobody without a token is listened to, whatever else there is.
    """

    approver: str = field(default="", repr=False)
    submit: str = field(default="", repr=False)
    anonymous: bool = True

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """APPROVER_SECRET and SUBMIT_TOKEN of `environment`, by default the process's own."""
        values = os.environ if environment is None else environment
        return cls(values.get("APPROVER_SECRET", "").strip(), values.get("SUBMIT_TOKEN", "").strip())

    def caller(self, token: bytes) -> Caller | None:
        """Whose secret this is; None when it is neither."""
        if _same(self.approver, token):
            return APPROVER
        return USER if _same(self.submit, token) else None

    def check_host(self, host: str, *, tokens: bool = False) -> None:
        """Raises `ConfigurationError` where others could connect while a secret is missing. `tokens`: there
        are stored ones, which do as well.
        """
        missing = [
            name
            for name, value in (("APPROVER_SECRET", self.approver), ("SUBMIT_TOKEN", self.submit))
            if not value
        ]
        if missing and not tokens and not is_loopback(host):
            raise ConfigurationError(
                f"not listening on {host or 'every address'}: others could start and decide threads there. "
                f"Set {' and '.join(missing)}, or make tokens (tenuto token create), or listen on 127.0.0.1"
            )


def foreign_page(headers: Headers) -> bool:
    """Does a browser send this for a page of another origin than ours?"""
    origin = _value(headers, b"origin")
    host = _value(headers, b"host").lower()
    return bool(origin) and (not host or _authority(origin) != host)


def foreign_host(headers: Headers) -> bool:
    """Was this machine asked for by a name that is not its own loopback's?

    A page that had its name resolve to this machine (DNS rebinding) has the right Origin, and that name.
    Where a token is needed for everything that does not help it, so that any name will do behind a proxy.
    """
    host = _value(headers, b"host").lower()
    return bool(host) and not is_loopback(_name(host))


def is_loopback(host: str) -> bool:
    """Is `host` an address or name that only this machine itself can reach? No name is looked up."""
    host = host.removeprefix("[").removesuffix("]").rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bearer(headers: Headers) -> bytes:
    """The bearer token (RFC 6750) of exactly one Authorization header, else b""."""
    given = [value for name, value in headers if name == b"authorization"]
    scheme, _, token = given[0].strip().partition(b" ") if len(given) == 1 else (b"", b"", b"")
    return token.strip() if scheme.lower() == b"bearer" else b""


def _same(token: str, given: bytes) -> bool:
    return bool(token) and hmac.compare_digest(token.encode("utf-8", "surrogateescape"), given)


def _value(headers: Headers, name: bytes) -> str:
    """The header's value; several are joined, and so equal to none that would be accepted."""
    return b", ".join(value for key, value in headers if key == name).decode("latin-1").strip()


def _authority(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _name(host: str) -> str:
    """The Host header without its port."""
    return host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]
