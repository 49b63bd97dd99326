"""Which server, and with which token: checked before anything is sent."""

from urllib.parse import urlsplit

from tenuto.errors import ConfigurationError


def server_url(text: str) -> str:
    """The URL under which a server's /v1 is, without a slash at its end. Raises `ConfigurationError`."""
    shown = text.strip()[:200]
    try:
        parts = urlsplit(text.strip())
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigurationError(f"server URL {shown!r}: {error}") from error
    if parts.username is not None or parts.password is not None:
        raise ConfigurationError("a server URL has no user and no password: the token goes beside it")
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigurationError(f"server URL {shown!r} is not one such as https://host:8000")
    if parts.query or parts.fragment or any(character.isspace() for character in shown):
        raise ConfigurationError(f"server URL {shown!r} ends with the path: no ?, no #, no spaces")
    return text.strip().rstrip("/").removesuffix("/v1")


def bearer(token: str) -> str:
    """The token without the white space around it; "" for none. Raises `ConfigurationError`."""
    token = token.strip()
    if not token.isascii() or any(character <= " " or character == "\x7f" for character in token):
        raise ConfigurationError("the server's token has characters that no token has")
    return token
