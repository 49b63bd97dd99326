"""Who may do what over HTTP: two bearer tokens, and which browsers' pages are listened to.

    approver  APPROVER_SECRET   decides; may also do all that the other may. Unset: nobody decides here.
    user      SUBMIT_TOKEN      starts threads and reads them. Unset: everybody who can connect may.

Tokens are compared as bytes in constant time, and occur in no message, log line or repr.
"""

import hmac
import ipaddress
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

from tenuto.errors import ConfigurationError

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Access:
    """The two tokens; "" means that there is none. Surrounding white space is no part of a token."""

    approver: str = field(default="", repr=False)
    submit: str = field(default="", repr=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """APPROVER_SECRET and SUBMIT_TOKEN of `environment`, by default the process's own."""
        values = os.environ if environment is None else environment
        return cls(values.get("APPROVER_SECRET", "").strip(), values.get("SUBMIT_TOKEN", "").strip())

    def may_decide(self, headers: Headers) -> bool:
        """Is this request the approver's?"""
        return _same(self.approver, _token(headers))

    def may_submit(self, headers: Headers) -> bool:
        """May this request start and read threads?"""
        return not self.submit or _same(self.submit, _token(headers)) or self.may_decide(headers)

    def who(self, headers: Headers, by: str = "") -> str:
        """The name under which the log records what this request asks for. `by`: for whom it says that it
        speaks, which is a claim, and recorded as one.
        """
        name = "approver" if self.may_decide(headers) else "user"
        return f"{by} via {name}" if by and by != name else name

    def check_host(self, host: str) -> None:
        """Raises `ConfigurationError` where others could connect while a token is missing."""
        missing = [
            name
            for name, value in (("APPROVER_SECRET", self.approver), ("SUBMIT_TOKEN", self.submit))
            if not value
        ]
        if missing and not is_loopback(host):
            raise ConfigurationError(
                f"not listening on {host or 'every address'}: others could start and decide threads there. "
                f"Set {' and '.join(missing)}, or listen on 127.0.0.1"
            )

    def refuses_page(self, headers: Headers) -> str:
        """Why this request looks like one that a foreign web page makes a browser send; "" when it does not.

        A page elsewhere has another Origin than ours. One that had its name resolve to this machine (DNS
        rebinding) has the right Origin and a Host that is not this machine's; where a token is needed for
        everything that does not help it, so that any Host will do behind a proxy.
        """
        host = _value(headers, b"host").lower()
        origin = _value(headers, b"origin")
        if origin and (not host or _authority(origin) != host):
            return "requests from pages of another origin are refused"
        if not self.submit and host and not is_loopback(_name(host)):
            return "without SUBMIT_TOKEN only requests to this machine's own loopback name are served"
        return ""


def is_loopback(host: str) -> bool:
    """Is `host` an address or name that only this machine itself can reach? No name is looked up."""
    host = host.removeprefix("[").removesuffix("]").rstrip(".").lower()
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _same(token: str, given: bytes) -> bool:
    return bool(token) and hmac.compare_digest(token.encode("utf-8", "surrogateescape"), given)


def _value(headers: Headers, name: bytes) -> str:
    """The header's value; several are joined, and so equal to none that would be accepted."""
    return b", ".join(value for key, value in headers if key == name).decode("latin-1").strip()


def _token(headers: Headers) -> bytes:
    """The bearer token (RFC 6750) of exactly one Authorization header, else b""."""
    given = [value for name, value in headers if name == b"authorization"]
    scheme, _, token = given[0].strip().partition(b" ") if len(given) == 1 else (b"", b"", b"")
    return token.strip() if scheme.lower() == b"bearer" else b""


def _authority(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _name(host: str) -> str:
    """The Host header without its port."""
    return host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]
