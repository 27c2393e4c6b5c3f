"""The closed network: remote hosts are refused, localhost stays reachable."""

import socket
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from attnscope.errors import ModelError
from attnscope.limits import network_closed


def connect(host):
    with socket.socket() as one:
        one.settimeout(0.01)
        one.connect((host, 9))


@pytest.mark.parametrize(
    "reach",
    [
        lambda: connect("192.0.2.1"),
        lambda: socket.getaddrinfo("example.invalid", 80),
        lambda: socket.gethostbyname("example.invalid"),
        lambda: socket.create_connection(("example.invalid", 80)),
        lambda: urllib.request.urlopen("http://example.invalid/", timeout=1),
        lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 9)),
    ],
)
def test_remote_host_is_refused_with_reason_and_name(reach):
    said = r"^the folder asks for the network, and (192\.0\.2\.1|example\.invalid) was asked for"
    with network_closed("the folder asks for the network"), pytest.raises(ModelError, match=said):
        reach()


def test_localhost_stays_reachable():
    with network_closed("closed"), socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        with socket.create_connection(server.getsockname()):
            pass
        assert socket.getaddrinfo("localhost", 80)
        for end in socket.socketpair():
            end.close()


def test_network_block_spares_other_threads_and_ends():
    with network_closed("closed"), ThreadPoolExecutor() as pool:
        assert isinstance(pool.submit(connect, "192.0.2.1").exception(), OSError)
    with suppress(OSError):  # nobody answers there
        connect("192.0.2.1")


def test_offline_blocks_network_for_every_thread():
    code = """
import socket
from concurrent.futures import ThreadPoolExecutor
from attnscope.limits import close_network
close_network()
print(ThreadPoolExecutor().submit(socket.create_connection, ("192.0.2.1", 9), timeout=0.01).exception())
import huggingface_hub.constants as constants; print(constants.HF_HUB_OFFLINE)
socket.create_connection(("192.0.2.1", 9), timeout=0.01)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    sentence = "the network is closed (--offline), and 192.0.2.1 was asked for"
    assert done.stdout.splitlines() == [sentence, "True"]
    assert done.stderr.endswith(f"ModelError: {sentence}\n")
