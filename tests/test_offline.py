"""The closed network: other machines are refused whoever asks, this machine stays open."""

import socket
import subprocess
import sys
import threading
import urllib.request

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
def test_another_machine_is_refused_with_the_reason_and_its_name(reach):
    said = r"^the folder asks for the network, and (192\.0\.2\.1|example\.invalid) was asked for"
    with network_closed("the folder asks for the network"), pytest.raises(ModelError, match=said):
        reach()


def test_this_machine_stays_open():
    with network_closed("closed"), socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        with socket.create_connection(server.getsockname()):
            pass
        assert socket.getaddrinfo("localhost", 80)
        left, right = socket.socketpair()
        left.close()
        right.close()


def test_other_threads_are_left_alone_and_the_network_opens_again():
    raised: list[BaseException] = []

    def reach():
        try:
            connect("192.0.2.1")
        except Exception as error:
            raised.append(error)

    with network_closed("closed"):
        thread = threading.Thread(target=reach)
        thread.start()
        thread.join()
    reach()
    assert [isinstance(error, OSError) for error in raised] == [True, True]


def test_offline_closes_the_network_to_the_whole_process_and_every_thread():
    code = (
        "import socket, threading\n"
        "from attnscope.limits import close_network\n"
        "from attnscope.errors import ModelError\n"
        "close_network()\n"
        "def reach():\n"
        "    try:\n"
        "        socket.create_connection(('192.0.2.1', 9), timeout=0.01)\n"
        "    except ModelError as error:\n"
        "        print(error)\n"
        "reach()\n"
        "thread = threading.Thread(target=reach); thread.start(); thread.join()\n"
        "import huggingface_hub.constants as constants; print(constants.HF_HUB_OFFLINE)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    sentence = "the network is closed (--offline), and 192.0.2.1 was asked for"
    assert done.stdout.splitlines() == [sentence, sentence, "True"]
