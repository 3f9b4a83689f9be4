"""Meters on a network: what they answer in JSON, over HTTP and HTTPS, with a password that stands nowhere else."""

from __future__ import annotations

import json
import os
import ssl
from base64 import b64encode
from collections.abc import Sequence
from decimal import Decimal
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, Request, build_opener

from powerd_core.errors import ConfigError, SensorError
from powerd_daemon.sources.polled import Unanswered, micro_code

MOST_BYTES = 1 << 20
"""Of an answer."""


def parse_json(text: bytes) -> Any:
    """A document with its fractions as `Decimal`. Raises `Unanswered`."""
    try:
        return json.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        raise Unanswered(f"the answer is no JSON: {text[:60]!r}") from error


def find_code(document: Any, path: Sequence[str | int], scale: str = "1") -> int | None:
    """The micro-units of the number at a path of keys and positions; None where there is none, or null."""
    for key in path:
        if key == 0 and not isinstance(document, list):
            continue  # a list of one is often no list
        try:
            document = document[key]
        except (LookupError, TypeError):
            return None
    if isinstance(document, bool) or not isinstance(document, int | Decimal):
        return None
    try:
        return micro_code(Decimal(document) * Decimal(scale))
    except (ValueError, ArithmeticError):
        return None


def read_secret(path: str, variable: str) -> str:
    """A password from the first line of a file or from an environment variable; empty where neither is named. Raises
    `ConfigError`."""
    if path:
        try:
            return Path(path).read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"password_file {path} cannot be read: {error}") from error
    if variable and variable not in os.environ:
        raise ConfigError(f"password_env: the environment has no variable {variable}")
    return os.environ.get(variable, "")


class _NoRedirect(HTTPRedirectHandler):
    """A password goes to the address that was given, and to no other."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _trust(certificate: str, *, names: bool) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=certificate or None)
    except OSError as error:
        raise ConfigError(f"certificate {certificate} cannot be used: {error}") from error
    context.check_hostname = names
    return context


class Web:
    """A server that is asked for JSON over HTTP or HTTPS: directly, whatever proxy the environment names."""

    def __init__(
        self,
        url: str,
        timeout_s: float,
        *,
        user: str = "",
        password: str = "",
        certificate: str = "",
        names: bool = True,
    ) -> None:
        """``certificate`` is a file of what to trust instead of the system's authorities; without ``names`` it may be
        of any host. Raises `ConfigError`."""
        if not url.startswith(("http://", "https://")) or "@" in url:
            raise ConfigError(f"url {url.rpartition('@')[2]!r} must be http://HOST or https://HOST, without a password")
        self.url, self._timeout_s = url.rstrip("/"), timeout_s
        handlers = [ProxyHandler({}), _NoRedirect()]
        if url.startswith("https://"):
            handlers.append(HTTPSHandler(context=_trust(certificate, names=names)))
        self._opener = build_opener(*handlers)
        self._headers = {"Accept": "application/json"}
        if user:
            self._headers["Authorization"] = "Basic " + b64encode(f"{user}:{password}".encode()).decode()

    def get(self, path: str) -> Any:
        """The document at a path. Raises `Unanswered`, or `SensorError` where asking again cannot help."""
        try:
            request = Request(self.url + path, headers=self._headers)
            with self._opener.open(request, timeout=self._timeout_s) as reply:
                text = reply.read(MOST_BYTES)
        except HTTPError as error:
            error.close()
            if error.code in (401, 403):
                raise SensorError(
                    f"{self.url} refuses the user or the password ({error.code} {error.reason})"
                ) from error
            raise Unanswered(f"{self.url}{path.partition('?')[0]}: {error.code} {error.reason}") from error
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            hint = ": name its file by the option 'certificate'" * isinstance(reason, ssl.SSLCertVerificationError)
            raise Unanswered(f"{self.url} does not answer: {reason}{hint}") from error
        return parse_json(text)
