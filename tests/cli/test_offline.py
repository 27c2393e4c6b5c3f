"""--offline: nothing goes to the network, and what is here still works."""

import socket

import pytest

MODEL_COMMANDS = {
    "show": ["show", "The cat."],
    "stats": ["stats", "The cat."],
    "info": ["info"],
    "export": ["export", "The cat.", "-o", "{folder}/out"],
    "check": ["check", "any.previous > 0", "--text", "The cat."],
    "compare": ["compare", "The cat."],
}


@pytest.fixture
def reached(monkeypatch):
    """The addresses that anything tried to reach; nothing is reached."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")  # what the command sets is taken back after the test
    addresses = []

    def refuse(*arguments, **options):
        addresses.append(arguments)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return addresses


@pytest.mark.parametrize("command", MODEL_COMMANDS)
def test_offline_a_model_that_is_not_here_is_one_sentence_and_no_connection(run, reached, tmp_path, command):
    arguments = [part.format(folder=tmp_path) for part in MODEL_COMMANDS[command]]
    model = ["nobody/nothing"] if command == "info" else ["-m", "nobody/nothing"]
    run(*arguments, *model, "--offline").refuses("it is not in the cache, and the hub is switched off")
    assert reached == []


def test_without_it_the_hub_is_asked(run, reached):
    run("show", "The cat.", "-m", "nobody/nothing").refuses("the hub cannot be reached")
    assert reached


@pytest.mark.parametrize("model", ["own", "causal_folder"])
def test_offline_a_model_that_is_here_works(run, reached, request, model):
    name = "own" if model == "own" else request.getfixturevalue(model)
    assert run("show", "The cat.", "-m", name, "--offline").code == 0
    assert reached == []
