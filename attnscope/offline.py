"""Keep this process, or a part of its work, off the network.

Python calls an audit hook before every connection, whichever library makes it; the hook refuses those to
other machines. Addresses of this machine stay open.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import local
from typing import Any

from attnscope.errors import ModelError

EVENTS = {f"socket.{name}": 1 for name in ("connect", "sendto", "sendmsg")}
EVENTS |= {f"socket.{name}": 0 for name in ("getaddrinfo", "gethostbyname")}
"""Audit events of a connection, and which argument holds the host (the first), or an address: for other
machines a tuple with the host first."""


class _Reasons(local):
    """Why the network is closed to this thread."""

    here: tuple[str, ...] = ()


_everywhere: list[str] = []
_reasons = _Reasons()


def close_network() -> None:
    """Close the network to the whole process, for good, and set the hub library to offline."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when the library is imported
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is not None:
        vars(constants)["HF_HUB_OFFLINE"] = True
    _watch()
    _everywhere.append("the network is closed (--offline)")


@contextmanager
def network_closed(reason: str) -> Iterator[None]:
    """Close the network to this thread: a connection raises ``ModelError``, with ``reason`` and its host."""
    _watch()
    before = _reasons.here
    _reasons.here = (reason, *before)
    try:
        yield
    finally:
        _reasons.here = before


@cache
def _watch() -> None:
    """Install the audit hook, once: Python cannot remove one."""
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """The audit hook: raise for a connection to another machine while the network is closed."""
    if event not in EVENTS:
        return
    reason = next(iter((*_reasons.here, *_everywhere)), None)
    address = arguments[EVENTS[event]] if len(arguments) > EVENTS[event] else None
    if reason is None or (EVENTS[event] and not isinstance(address, tuple)):
        return  # such as a Unix socket, whose address is a path
    host = address[0] if isinstance(address, tuple) and address else address
    host = host.decode("utf-8", "replace") if isinstance(host, bytes) else host
    if isinstance(host, str) and not _is_local(host):
        raise ModelError(f"{reason}, and {host} was asked for")


def _is_local(host: str) -> bool:
    """Whether a host is this machine."""
    if host in ("", "localhost", "ip6-localhost"):
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
